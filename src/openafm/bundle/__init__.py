"""Bundles, the folders in which models are exchanged: read, write, sign, verify. Imports no tensor library."""

from openafm.bundle.bundle import Bundle, open_bundle
from openafm.bundle.errors import (
    BundleError,
    BundleNotFoundError,
    BundleTamperedError,
    BundleVersionError,
    NotGenerativeError,
)
from openafm.bundle.store import bundle_place, choose_model, find_bundle, list_bundles, resolve_model, shipped_bundle
from openafm.bundle.writer import RecoveryAdapter, write_bundle
from openafm.compression.numerics import FULL_PRECISION, Numerics

__all__ = [
    "FULL_PRECISION",
    "Bundle",
    "BundleError",
    "BundleNotFoundError",
    "BundleTamperedError",
    "BundleVersionError",
    "NotGenerativeError",
    "Numerics",
    "RecoveryAdapter",
    "bundle_place",
    "choose_model",
    "find_bundle",
    "list_bundles",
    "open_bundle",
    "resolve_model",
    "shipped_bundle",
    "write_bundle",
]
