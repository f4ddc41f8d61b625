"""Layouts of tools in the chat templates of open-weight models, as data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from openafm.core.config import Config

Row: TypeAlias = tuple[str, ...]

FIELD = re.compile(r"\{(\w+)(?:\|(trim|json))?\}")


@dataclass(frozen=True, kw_only=True)
class JsonStyle(Config):
    """How a template writes JSON. `python` is the repr of a Python dictionary."""

    form: Literal["json", "python"] = "json"
    item_separator: str = ", "
    key_separator: str = ": "
    indent: int | None = None

    def text(self, value: Any) -> str:
        if self.form == "python":
            return str(value)
        separators = (self.item_separator, self.key_separator)
        return json.dumps(value, ensure_ascii=False, indent=self.indent, separators=separators)


@dataclass(frozen=True, kw_only=True)
class CallsLayout(Config):
    """Syntax of calls: opening, one JSON object per call with separators between them, closing.

    Without a separator an answer has one call at most. `after_text` separates calls from text before them.
    """

    opening: Row
    separator: Row | None
    closing: Row
    after_text: Row = ()
    arguments_key: str = "arguments"
    style: JsonStyle = JsonStyle()

    @property
    def name_opening(self) -> str:
        """The beginning of every call, up to the name."""
        return f'{{"name"{self.style.key_separator}"'


@dataclass(frozen=True, kw_only=True)
class ToolsLayout(Config):
    """Layout of tool definitions, calls and outputs.

    Attributes:
        start: beginning of a conversation without instructions; contains {tools}.
        instructions: beginning of a conversation with instructions; contains {text} and {tools}.
        separator: pieces between two tools.
        is_wrapped: whether a tool is {"type":"function","function":{...}} rather than the inner object.
        output: one output; outputs of parallel calls have `output_separator` between them.
    """

    start: Row
    instructions: Row
    separator: Row
    is_wrapped: bool
    style: JsonStyle
    calls: CallsLayout
    output_opening: Row
    output: Row
    output_separator: Row
    output_closing: Row
