"""Personal data: find it by format, checksum and context, and mask it or drop the document (report section 3.1).

`privacy.finder` has the finder itself.
"""

from openafm.data.filtering.privacy.config import KINDS, PrivacyConfig, counts_of

__all__ = ["KINDS", "PrivacyConfig", "counts_of"]
