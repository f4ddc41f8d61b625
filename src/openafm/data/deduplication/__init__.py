"""Deduplication of documents over shards (report section 3.1)."""
