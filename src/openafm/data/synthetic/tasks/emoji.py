"""Names and keywords of emoji as texts with labels, in sixteen languages: which keyword belongs to a name.

The same 1,400 emoji are named in every language, so that a text may have English labels: English words are learned beside
their translations. The names are those of CLDR, read from a folder that the project does not contain (the
folder common of package unicode-cldr-core of Debian); `ATTRIBUTION` goes into the card of a model trained on them.
"""

from __future__ import annotations

import functools
import random
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openafm.core.errors import OpenAFMError
from openafm.data.synthetic.tasks.labels import NamedLabel, choice_turns
from openafm.tokenizer.conversation import Turn

ATTRIBUTION = "Unicode CLDR annotations, Unicode license"
_FILES = {"nb": "no", "zh-Hans": "zh", "zh-Hant": "zh_Hant"}
_FIRST = "\u2600"  # arrows, brackets and signs before it are no things
_LEAST, _MOST = 3, 80  # emoji of a keyword that serves as a label
_ENGLISH_SHARE, _NAME_SHARE, _CAPITAL_SHARE = 0.4, 0.6, 0.2
_MOST_LABELS, _MOST_TEXTS, _MOST_DRAWS = 6, 14, 8


class AnnotationsError(OpenAFMError):
    """The folder has no CLDR annotations of a language, or they cannot be read."""


@dataclass(frozen=True)
class Annotations:
    """Names and keywords of emoji in one language, and the emoji of each keyword that serves as a label."""

    names: Mapping[str, str]
    keywords: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, tuple[str, ...]]


def emoji_turns(rng: random.Random, language: str, folder: Path) -> tuple[Turn, ...]:
    """Return names or keywords of emoji, each with its keyword out of two to six, in the same language or in English.

    Raises:
        AnnotationsError: the folder has no annotations of the language.
    """
    written = read_annotations(folder, language)
    labeled = read_annotations(folder, "en") if rng.random() < _ENGLISH_SHARE else written
    found = _draw_labels(rng, labeled)
    style = str.capitalize if rng.random() < _CAPITAL_SHARE else str
    texts: dict[str, str] = {}
    for _ in range(rng.randint(2, _MOST_TEXTS)):
        label = rng.choice(found)
        text = _write(rng, rng.choice(labeled.labels[label]), written, label)
        if text:
            texts.setdefault(text, style(label))
    if not texts:
        return emoji_turns(rng, language, folder)
    choices = [NamedLabel(style(label), "") for label in found]
    return choice_turns(rng, list(texts.items()), choices, language, "train", "")


def _draw_labels(rng: random.Random, annotations: Annotations) -> list[str]:
    """Keywords of which no two belong to one emoji."""
    names = list(annotations.labels)
    found, taken, wanted = [], set[str](), rng.randint(2, _MOST_LABELS)
    for _ in range(_MOST_DRAWS * wanted):
        label = rng.choice(names)
        emoji = annotations.labels[label]
        if taken.isdisjoint(emoji):
            found.append(label)
            taken.update(emoji)
        if len(found) == wanted:
            break
    return found


def _write(rng: random.Random, emoji: str, annotations: Annotations, label: str) -> str | None:
    """The name of an emoji or some keywords, without the label."""
    keywords = [word for word in annotations.keywords.get(emoji, ()) if label.lower() not in word.lower()]
    text = annotations.names.get(emoji, "")
    if len(keywords) > 1 and rng.random() >= _NAME_SHARE:
        text = ", ".join(rng.sample(keywords, rng.randint(2, min(len(keywords), 4))))
    return text if text and label.lower() not in text.lower() else None


@functools.cache
def read_annotations(folder: Path, language: str) -> Annotations:
    """Read the annotations of a language.

    Raises:
        AnnotationsError: the file is absent or cannot be read.
    """
    file = folder / "annotations" / f"{_FILES.get(language, language)}.xml"
    try:
        elements = list(ElementTree.parse(file).getroot().iter("annotation"))
        rows = [(element.attrib["cp"], element.get("type"), element.text or "") for element in elements]
    except (OSError, ElementTree.ParseError, KeyError) as error:
        raise AnnotationsError(f"{file} cannot be read as CLDR annotations: {error}") from error
    names: dict[str, str] = {}
    keywords: dict[str, tuple[str, ...]] = {}
    labels: dict[str, list[str]] = defaultdict(list)
    for emoji, kind, text in rows:
        if emoji < _FIRST or unicodedata.category(emoji[0]) != "So":
            continue
        if kind == "tts":
            names[emoji] = text
            continue
        keywords[emoji] = tuple(word.strip() for word in text.split("|"))
        for word in keywords[emoji]:
            labels[word].append(emoji)
    return Annotations(
        names=names,
        keywords=keywords,
        labels={word: tuple(emoji) for word, emoji in labels.items() if _LEAST <= len(emoji) <= _MOST},
    )
