"""Deduplication of documents over shards (report section 3.1)."""

from openafm.data.deduplication.exact import ExactConfig
from openafm.data.deduplication.minhash import MinHashConfig

__all__ = ["ExactConfig", "MinHashConfig"]
