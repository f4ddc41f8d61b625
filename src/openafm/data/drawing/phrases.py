"""Questions and labels of drawn images in sixteen languages, and numbers as a language writes them."""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from openafm.core.libraries import needed
from openafm.data.drawing.base import SPLITS, Split
from openafm.data.synthetic.languages import locale_of

_SLOT = re.compile(r"\\\{(\w+)\\\}")


def question(language: str, split: Split, key: str, **slots: str) -> str:
    """Return a question in a language with its slots filled. Held-out questions have other words than those of training."""
    return _questions(split)[key][language].format(**slots)


def absence(language: str, row: str) -> str:
    """Return the answer to a question about an entry that is not there."""
    return _questions("train")["absent"][language].format(row=row)


def slots_of(language: str, key: str, text: str) -> dict[str, str] | None:
    """Return the values of the slots of a question; None if `text` is not the question `key`."""
    matches = (_pattern(language, split, key).fullmatch(text) for split in SPLITS)
    return next((match.groupdict() for match in matches if match is not None), None)


def label(language: str, key: str) -> str:
    """Return a word on images, named `group.word` as in `text/labels.toml`."""
    group, _, word = key.partition(".")
    return labels(language, group)[word]


@functools.cache
def labels(language: str, group: str) -> Mapping[str, str]:
    """Return the words of a group in a language, by key."""
    table = _read("labels.toml")
    position: int = table["languages"].index(language)
    return {key: words[position] for key, words in table[group].items()}


def write_number(language: str, value: Decimal) -> str:
    """Return a number with the digits that it has, as a language writes it: 1234.50 is `1.234,50` in German."""
    with needed("drawn images", "babel and faker", "corpus"):
        from babel.numbers import format_decimal
    decimals = max(0, -int(value.as_tuple().exponent))
    pattern = "#,##0" + ("." + "0" * decimals if decimals else "")
    text: str = format_decimal(value, pattern, locale=locale_of(language))
    return text.replace("\xa0", " ").replace("\u202f", " ")


def read_number(language: str, text: str) -> Decimal | None:
    """Return the number that a text is in a language; None if it is not a number."""
    symbols = locale_of(language).number_symbols["latn"]
    digits = re.sub(r"[\s\u2212%]", lambda match: "-" if match[0] == "\u2212" else "", text)
    digits = digits.replace(symbols["group"], "").replace(symbols["decimal"], ".")
    return Decimal(digits) if re.fullmatch(r"-?\d+(\.\d+)?", digits) else None


@functools.cache
def _questions(split: Split) -> Mapping[str, Mapping[str, str]]:
    return dict(_read("questions.toml" if split == "train" else "held_out_questions.toml"))


@functools.cache
def _pattern(language: str, split: Split, key: str) -> re.Pattern[str]:
    escaped = re.escape(_questions(split)[key][language])
    return re.compile(_SLOT.sub(lambda match: f"(?P<{match[1]}>.+?)", escaped), re.DOTALL)


@functools.cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(importlib.resources.files("openafm.data.drawing").joinpath("text", name).read_text("utf-8"))
