"""What can be wrong with a delivery. Nothing is installed when one of these is raised."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError, UsageError


class DeliveryError(OpenAFMError):
    """Something of a delivery is not as it should be."""


class DeliveryLibraryError(UsageError):
    """The library that signs and checks signatures is not installed."""


class DeliveryKeyError(UsageError):
    """A key that is none, or a file in the place of a new one."""


class BadSignatureError(DeliveryError):
    """The manifest was not signed with the key that is trusted, or not in this form."""


class AdapterManifestError(DeliveryError):
    """A manifest that lists what no adapter consists of."""


class OldManifestError(DeliveryError):
    """A manifest older than the one that was seen here before."""


class NotOfferedError(UsageError):
    """The server has no adapter of this name, or none for this base."""


class UnreachableError(DeliveryError):
    """The server does not answer, or refuses."""


class ServerAddressError(UsageError):
    """A server cannot answer at this address: it is taken, or not one of this machine."""


class TruncatedDownloadError(DeliveryError):
    """A file ended early. What came is kept, and the same call goes on from there."""


class OversizeError(DeliveryError):
    """More bytes than are allowed, or than the manifest lists."""


class DigestError(DeliveryError):
    """A file that is not the one that the manifest lists."""
