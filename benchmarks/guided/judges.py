"""Judge generated text independently of the grammar."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
from guided.decoding import STRING
from guided.random_types import RandomType

import openafm as fm

FORMATS = jsonschema.FormatChecker(("date", "uuid"))


def judge_text(text: str, made: RandomType, schema: fm.GenerationSchema) -> None:
    """Raise if a complete text is invalid."""
    judge_value(json.loads(text), made, schema)
    if re.search(rb"\s", STRING.sub(b"", text.encode())):
        raise AssertionError(f"white space outside of strings: {text!r}")


def judge_value(value: Any, made: RandomType, schema: fm.GenerationSchema) -> None:
    """Raise if a JSON value is invalid."""
    jsonschema.Draft202012Validator(schema.to_dict(), format_checker=FORMATS).validate(value)
    converted = fm.GeneratedContent.of(value, Any).value(schema.type_class)
    if not made.judge(converted):
        raise AssertionError(f"the type does not allow {converted!r}")


def judge_beginning(text: str, schema: fm.GenerationSchema) -> None:
    """Raise if the beginning of a text is invalid."""
    fm.GeneratedContent.from_json(text.rstrip("\N{REPLACEMENT CHARACTER}")).partial_value(schema.type_class)
