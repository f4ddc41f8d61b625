"""What can be wrong with what is to be compressed. Every message names the tensor or bundle."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError, UsageError


class UncompressibleWeightError(OpenAFMError):
    """A matrix that no code can stand for: all zero, not finite, or of an unfit shape."""


class AlreadyCompressedError(UsageError):
    """What is to be compressed, or trained further in full precision, has few bits already."""


class UncompressibleModelError(UsageError):
    """A kind of model whose matrices no format here takes; refused before anything is computed."""
