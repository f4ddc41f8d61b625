"""Accounts, sessions, the audit log, and the export and deletion of a person's data."""
