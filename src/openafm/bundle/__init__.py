"""The folder everybody passes on: read, write, verify, sign. Imports no tensor library."""

from openafm.bundle.bundle import Bundle, open_bundle, write_bundle
from openafm.bundle.errors import (
    BundleError,
    BundleNameError,
    BundleNotFoundError,
    BundleTamperedError,
    BundleTruncatedError,
    BundleVersionError,
)
from openafm.bundle.store import bundle_place, choose_model, find_bundle, list_bundles, resolve_model
from openafm.compression.numerics import Numerics

__all__ = [
    "Bundle",
    "BundleError",
    "BundleNameError",
    "BundleNotFoundError",
    "BundleTamperedError",
    "BundleTruncatedError",
    "BundleVersionError",
    "Numerics",
    "bundle_place",
    "choose_model",
    "find_bundle",
    "list_bundles",
    "open_bundle",
    "resolve_model",
    "write_bundle",
]
