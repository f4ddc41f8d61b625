"""The state of a crawl: one SQLite file."""
