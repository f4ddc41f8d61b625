"""Filters of extracted documents (report section 3.1)."""

from openafm.data.filtering.base import DocumentFilter, FilterConfig, LengthConfig, OptOutConfig
from openafm.data.filtering.heuristics import HeuristicConfig, HeuristicsConfig
from openafm.data.filtering.language import LanguageConfig
from openafm.data.filtering.privacy import PrivacyConfig
from openafm.data.filtering.quality import QualityConfig
from openafm.data.filtering.word_lists import WordListConfig

__all__ = [
    "DocumentFilter",
    "FilterConfig",
    "HeuristicConfig",
    "HeuristicsConfig",
    "LanguageConfig",
    "LengthConfig",
    "OptOutConfig",
    "PrivacyConfig",
    "QualityConfig",
    "WordListConfig",
]
