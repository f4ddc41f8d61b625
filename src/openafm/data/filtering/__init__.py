"""Filters of extracted documents (report section 3.1)."""
