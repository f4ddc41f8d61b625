"""How strictly a model is guarded, as an app developer says it."""

from __future__ import annotations

from enum import IntEnum


class SystemLanguageModelGuardrails(IntEnum):
    """The guardrails of a model. Names and numbers are Apple's.

    DEFAULT checks prompts and responses. PERMISSIVE_CONTENT_TRANSFORMATIONS lets plain text through unchecked, for apps that
    rewrite or summarize what people wrote; guided requests are checked all the same.
    """

    DEFAULT = 0
    PERMISSIVE_CONTENT_TRANSFORMATIONS = 1
