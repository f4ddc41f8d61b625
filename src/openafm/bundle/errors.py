"""What can be wrong with a bundle. Every message names the file."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError, UsageError


class BundleError(OpenAFMError):
    """A folder that is not a readable bundle."""


class BundleNotFoundError(UsageError):
    """No bundle of this name or at this path, or none at all on this machine."""


class BundleNameError(UsageError):
    """A name that cannot be a folder of its own among this user's bundles."""


class BundleTruncatedError(BundleError):
    """A file of the bundle is missing or shorter than it says."""


class BundleTamperedError(BundleError):
    """A file of the bundle is not the one that was signed."""


class BundleVersionError(BundleError):
    """The bundle was written for another version of the format."""
