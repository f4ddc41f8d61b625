"""Profiles of sessions: recording, views and exports (report 7)."""
