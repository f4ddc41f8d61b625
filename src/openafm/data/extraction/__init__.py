"""Extraction of documents from pages (report section 3.1)."""
