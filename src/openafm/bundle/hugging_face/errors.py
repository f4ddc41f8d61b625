"""Why a folder cannot be imported. Nothing is written then."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError


class CheckpointError(OpenAFMError):
    """A folder that is no whole Hugging Face checkpoint; the message names the file."""


class UnsupportedCheckpointError(CheckpointError):
    """A checkpoint that needs what openafm does not have; the message says what."""
