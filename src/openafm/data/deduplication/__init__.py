"""Deduplication of documents over shards (report section 3.1)."""

from openafm.data.deduplication.decontamination import DecontaminationConfig
from openafm.data.deduplication.exact import ExactConfig
from openafm.data.deduplication.minhash import MinHashConfig
from openafm.data.deduplication.paragraphs import ParagraphsConfig

__all__ = ["DecontaminationConfig", "ExactConfig", "MinHashConfig", "ParagraphsConfig"]
