"""Errors of GGUF files."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError


class GGUFError(OpenAFMError):
    """A GGUF file is damaged, or needs an unsupported feature; the message names the file and the feature."""
