"""Errors of the import of Hugging Face checkpoints. Nothing is written when one is raised."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError


class HuggingFaceError(OpenAFMError):
    """A folder is not a complete checkpoint, or needs an unsupported feature; the message names the file or feature."""


class UnsupportedTemplateError(HuggingFaceError):
    """A chat template fails to render, or its turns cannot be appended one by one."""
