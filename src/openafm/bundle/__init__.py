"""The folder everybody passes on: read, write, verify, sign. Imports no tensor library."""

from openafm.bundle.bundle import Bundle, Numerics, open_bundle, write_bundle
from openafm.bundle.errors import (
    BundleError,
    BundleNotFoundError,
    BundleTamperedError,
    BundleTruncatedError,
    BundleVersionError,
)
from openafm.bundle.store import choose_model, find_bundle, list_bundles, resolve_model

__all__ = [
    "Bundle",
    "BundleError",
    "BundleNotFoundError",
    "BundleTamperedError",
    "BundleTruncatedError",
    "BundleVersionError",
    "Numerics",
    "choose_model",
    "find_bundle",
    "list_bundles",
    "open_bundle",
    "resolve_model",
    "write_bundle",
]
