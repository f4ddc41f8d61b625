"""Deduplication of documents over shards (report section 3.1)."""

from openafm.data.deduplication.exact import ExactConfig

__all__ = ["ExactConfig"]
