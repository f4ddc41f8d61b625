"""Errors of tokenizers. Conversations, schemas and templates define theirs beside their code."""

from __future__ import annotations

from openafm.core.errors import OpenAFMError, UsageError


class TokenizerError(OpenAFMError):
    """A tokenizer cannot be read, trained or used; the message has the reason."""


class EncodingError(UsageError):
    """A text cannot be encoded, or token ids cannot be decoded."""
