"""Errors of the bundle room. Every message names the file."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError, UsageError


class BundleError(OpenAFMError):
    """A folder is not a readable bundle: a file is missing, truncated or malformed."""


class BundleNotFoundError(UsageError):
    """No bundle has this name or path, or this machine has none at all."""


class NotGenerativeError(UsageError):
    """The bundle's model encodes texts and images and generates none."""


class BundleTamperedError(BundleError):
    """A file of the bundle differs from the signed one."""


class BundleVersionError(BundleError):
    """The bundle has another version of the format."""
