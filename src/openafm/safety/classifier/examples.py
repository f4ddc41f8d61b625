"""Labeled texts for guardrail models: the user's JSONL, and seeds and a corpus in six languages."""

from __future__ import annotations

import json
import re
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from openafm.core.errors import OpenAFMError
from openafm.core.files import lines_of
from openafm.safety.classifier.corpus import LOCALES, corpus_texts
from openafm.safety.taxonomy.taxonomy import UnknownSubcategoryError, taxonomy
from openafm.safety.words import normalize

Side: TypeAlias = Literal["prompt", "response"]
SEED_LOCALES = LOCALES
_MAX_CHARACTERS = 20_000
_STEM, _SHARED = 5, 2  # letters of a stem; stems of a held-out act that no text of the corpus shares with it


class LabeledTextError(OpenAFMError):
    """A line is not a labeled text."""


@dataclass(frozen=True, kw_only=True)
class LabeledText:
    """A text with the categories of the taxonomy that it falls under; none: it is harmless.

    Attributes:
        side: a prompt of a user or a response of a model.
        group: author, topic or template. Texts of one group are never divided between training and calibration.
    """

    text: str
    locale: str
    labels: tuple[str, ...] = ()
    side: Side = "prompt"
    group: str = ""


def read_labeled_texts(path: Path) -> list[LabeledText]:
    """Return the lines of a JSONL file: `text`, `locale`, `labels` and optionally `side` and `group`.

    A label is a category or subcategory of the taxonomy, or a code of AILuminate or Llama Guard.

    Raises:
        LabeledTextError: the file cannot be read, or a line is malformed.
    """
    try:
        lines = lines_of(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LabeledTextError(f"{path} cannot be read: {error}") from error
    found = [_labeled_text(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise LabeledTextError(f"{path} has no lines; each line is an object with text, locale and labels")
    return found


def _labeled_text(line: str, place: str) -> LabeledText:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LabeledTextError(f"{place}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise LabeledTextError(f"{place}: expected an object with text, locale and labels, got {type(values).__name__}")
    text, locale, labels = values.get("text"), values.get("locale"), values.get("labels")
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_CHARACTERS:
        raise LabeledTextError(f"{place}: 'text' must be text of 1 to {_MAX_CHARACTERS:,} characters")
    if not isinstance(locale, str) or not locale:
        raise LabeledTextError(f"{place}: 'locale' must be a locale such as de or zh-Hant")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise LabeledTextError(f"{place}: 'labels' must be a list of categories, empty for harmless texts")
    side = values.get("side", "prompt")
    if side not in get_args(Side):
        raise LabeledTextError(f"{place}: 'side' must be prompt or response, got {side!r}")
    try:
        categories = tuple(dict.fromkeys(taxonomy().category_of(label) for label in labels))
    except UnknownSubcategoryError as error:
        raise LabeledTextError(f"{place}: {error}") from error
    return LabeledText(
        text=text, locale=locale, labels=categories, side=cast("Side", side), group=str(values.get("group", text))
    )


def training_seeds() -> list[LabeledText]:
    """Return prompts and responses: known acts of the seeds in the templates that are for training, and the corpus."""
    return [each for locale in SEED_LOCALES for each in (*known_seeds(locale), *_corpus(locale))]


def known_seeds(locale: str) -> list[LabeledText]:
    """Return known acts of the seeds in the templates that are for training."""
    return [
        each
        for kind in ("templates", "responses")
        for each in _filled(locale, _seeds(locale)[kind], "known", "response" if kind == "responses" else "prompt")
    ]


def held_out_seeds() -> dict[str, list[LabeledText]]:
    """Return prompts that `training_seeds` lacks: known acts in new templates, and new acts in all templates."""
    found: dict[str, list[LabeledText]] = {"new_templates": [], "new_acts": []}
    for locale in SEED_LOCALES:
        data = _seeds(locale)
        found["new_templates"] += _filled(locale, data["held_out_templates"], "known", "prompt")
        found["new_acts"] += _filled(locale, data["templates"] + data["held_out_templates"], "new", "prompt")
    return found


def folds(texts: Iterable[LabeledText], num_folds: int) -> list[int]:
    """Return the fold of each text. Texts of one group are in one fold; it depends on the group alone."""
    return [zlib.crc32(f"{each.locale}\0{each.group}".encode()) % num_folds for each in texts]


def _corpus(locale: str) -> Iterator[LabeledText]:
    """Return the corpus of a language without texts that have two content words of one held-out act."""
    data = _seeds(locale)
    acts = [act for splits in (*data["acts"].values(), data["harmless"]) for act in splits["new"]]
    held_out = [_content(act) for act in acts]
    for each in corpus_texts(locale):
        content = _content(each.act)
        if all(len(content & other) < _SHARED for other in held_out):
            side: Side = "response" if each.is_response else "prompt"
            labels = () if each.category is None else (each.category,)
            yield LabeledText(text=each.text, locale=locale, labels=labels, side=side, group=each.pattern)


def _content(act: str) -> frozenset[str]:
    """Return the first letters of the words of an act that are long enough to have a meaning."""
    return frozenset(word[:_STEM] for word in re.findall(r"[^\W_]{4,}", normalize(act)))


def _filled(locale: str, templates: Iterable[str], split: str, side: Side) -> Iterator[LabeledText]:
    data = _seeds(locale)
    acts: list[tuple[str, tuple[str, ...]]] = [
        (act, (category,)) for category, splits in data["acts"].items() for act in splits[split]
    ]
    acts += [(act, ()) for act in data["harmless"][split]]
    for template in templates:
        for act, labels in acts:
            yield LabeledText(text=template.replace("{}", act), locale=locale, labels=labels, side=side, group=act)


def _seeds(locale: str) -> Mapping[str, Any]:
    return tomllib.loads(files("openafm.safety.classifier").joinpath(f"seeds/{locale}.toml").read_text(encoding="utf-8"))
