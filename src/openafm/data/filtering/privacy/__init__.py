"""Personal data: find it by format, checksum and context, and mask it or drop the document (report section 3.1)."""

from openafm.data.filtering.privacy.config import PrivacyConfig, counts_of
from openafm.data.filtering.privacy.finder import KINDS, Finder, Finding

__all__ = ["KINDS", "Finder", "Finding", "PrivacyConfig", "counts_of"]
