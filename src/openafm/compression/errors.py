"""Errors of the compression room. Every message names the tensor or bundle."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError, UsageError


class CompressionError(OpenAFMError):
    """A tensor cannot be compressed, stored codes cannot be decoded, or the work failed: calibration, memory, workers."""


class UncompressibleModelError(UsageError):
    """A kind of model that the format does not take, or one that is compressed already; raised before any computation."""
