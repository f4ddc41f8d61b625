"""Filters of extracted documents (report section 3.1)."""

from openafm.data.filtering.base import DocumentFilter, FilterConfig, OptOutConfig
from openafm.data.filtering.language import LanguageConfig

__all__ = ["DocumentFilter", "FilterConfig", "LanguageConfig", "OptOutConfig"]
