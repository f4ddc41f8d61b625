"""Errors of adapter delivery. Nothing is installed when one of them is raised."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError, UsageError


class DeliveryError(OpenAFMError):
    """A pull failed."""


class UnreachableError(DeliveryError):
    """The server did not answer, refused, or ended the connection early. A repeated pull resumes the download."""


class UntrustedDeliveryError(DeliveryError):
    """The manifest or a file is not what the publisher signed, is older than before, or is larger than announced."""


class NotOfferedError(UsageError):
    """The server has no adapter of this name for this base."""


class DeliverySetupError(UsageError):
    """A key, the address to serve at, or the library for signatures is missing or invalid."""
