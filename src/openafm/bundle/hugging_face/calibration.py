"""Tokens to calibrate an import on: the user's text, or conversations of the built-in corpus in the model's chat template.

Shapes: B rows, S tokens of a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.core.files import lines_of
from openafm.core.regular_files import read_document
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.schema_text import SchemaTextError
from openafm.tokenizer.template import BaseChatTemplate, ChatTemplateError

_MOST_BYTES = 64 << 20
_MOST_EXAMPLES = 4096


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Text and amount of calibration data.

    Attributes:
        file: UTF-8 text, or JSON lines with "text" or "messages"; None for the built-in conversations.
        num_rows, row_tokens: rows of tokens; fewer rows if the text is shorter.
    """

    file: Path | None = None
    num_rows: int = 16
    row_tokens: int = 512

    def tokens(self, tokenizer: Tokenizer, template: BaseChatTemplate) -> NDArray[np.int64]:
        """Return rows of tokens [B, S].

        Raises:
            HuggingFaceError: the file cannot be read, or has less than one row of text.
        """
        needed, found = self.num_rows * self.row_tokens, list[int]()
        for tokens in _of_corpus(tokenizer, template) if self.file is None else map(tokenizer.encode, _texts(self.file)):
            found += tokens
            if len(found) >= needed:
                break
        rows = min(self.num_rows, len(found) // self.row_tokens)
        if rows == 0:
            raise HuggingFaceError(
                f"{self.file or 'the built-in corpus'} has {len(found)} tokens; calibration needs {self.row_tokens} or more"
            )
        return np.array(found[: rows * self.row_tokens], np.int64).reshape(rows, self.row_tokens)


def _of_corpus(tokenizer: Tokenizer, template: BaseChatTemplate) -> Iterator[list[int]]:
    """Yield the built-in conversations that the template has a place for: one without tools skips those with tools."""
    from openafm.data.synthetic.corpus import SyntheticConfig, example

    config = SyntheticConfig(split="train")
    for index in range(_MOST_EXAMPLES):
        try:
            yield list(template.encode_conversation(tokenizer, example(config, index)).tokens)
        except (ChatTemplateError, SchemaTextError):
            continue


def _texts(file: Path) -> Iterator[str]:
    try:
        text = read_document(file, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise HuggingFaceError(f"{file} is not readable UTF-8 text ({error}); pass text or JSON lines") from error
    if file.suffix != ".jsonl":
        yield text
        return
    for number, line in enumerate(lines_of(text), start=1):
        try:
            yield "\n".join(_strings(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise HuggingFaceError(f"{file} line {number} is not JSON ({error}); correct the line") from error


def _strings(value: Any) -> Iterator[str]:
    """Yield the text of an object with "text", or of its messages."""
    if not isinstance(value, dict):
        raise ValueError("expected an object with 'text' or 'messages'")
    messages = value.get("messages", [])
    parts = [value.get("text"), *(message.get("content") for message in messages if isinstance(message, dict))]
    yield from (part for part in parts if isinstance(part, str))
