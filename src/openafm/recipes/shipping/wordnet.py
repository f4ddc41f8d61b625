"""WordNet as choices for the ranker: words with their definitions, and kinds of things with what is below them.

WordNet 3.0 is read from a folder that the project does not contain (package wordnet-base of Debian); `ATTRIBUTION` goes into
the card of a model trained on it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from openafm.core.errors import OpenAFMError
from openafm.ranking.training import ChoiceSet, RankedChoice

ATTRIBUTION = "WordNet 3.0, Princeton University, WordNet license"
_PARTS = ("noun", "verb", "adj", "adv")
_POINTERS_UP = ("@", "@i", "&")  # kinds of a noun or verb, and the adjective that a similar one belongs to
_OFFENSIVE = re.compile(r"slur|offensive|obscene|vulgar|disparag|derogat|taboo|sexual|racial|ethnic", re.IGNORECASE)
_LEAST_BELOW, _MOST_BELOW = 10, 4_000  # a kind with more is as good as everything


class WordNetError(OpenAFMError):
    """The folder is no WordNet database: a file is absent, or a line of it cannot be read."""


@dataclass(frozen=True)
class Meaning:
    """A synset: its words, its definition, sentences with one of the words, and the keys of the synsets above it."""

    key: str
    words: tuple[str, ...]
    definition: str
    sentences: tuple[str, ...]
    above: tuple[str, ...]


def wordnet_sets(folder: Path) -> list[ChoiceSet]:
    """Return two sets: each meaning with its definition and sentences, and each kind with the meanings below it.

    Raises:
        WordNetError: the folder has no WordNet database.
    """
    meanings = read_wordnet(folder)
    below: defaultdict[str, list[str]] = defaultdict(list)
    for meaning in meanings.values():
        for key in _all_above(meaning, meanings):
            below[key].append(f"{', '.join(meaning.words)}: {meaning.definition}")
    words = (
        RankedChoice(names=meaning.words, texts=(meaning.definition, *meaning.sentences)) for meaning in meanings.values()
    )
    kinds = (
        RankedChoice(names=meanings[key].words, texts=tuple(texts), description=meanings[key].definition)
        for key, texts in below.items()
        if _LEAST_BELOW <= len(texts) <= _MOST_BELOW
    )
    return [ChoiceSet(choices=tuple(choices), weight=1.0) for choices in (words, kinds)]


def read_wordnet(folder: Path) -> dict[str, Meaning]:
    """Read data.noun, data.verb, data.adj and data.adv of a folder, without meanings that the dictionary calls offensive.

    Raises:
        WordNetError: a file is absent, or a line of it cannot be read.
    """
    try:
        found = [meaning for part in _PARTS for meaning in _read_part(folder / f"data.{part}")]
    except (OSError, ValueError, IndexError) as error:
        raise WordNetError(
            f"{folder} cannot be read as WordNet 3.0: {error}. Expected data.noun and the files beside it."
        ) from error
    return {meaning.key: meaning for meaning in found if not _OFFENSIVE.search(meaning.definition)}


def _all_above(meaning: Meaning, meanings: Mapping[str, Meaning]) -> set[str]:
    found: set[str] = set()
    queue = list(meaning.above)
    while queue:
        key = queue.pop()
        if key in meanings and key not in found:
            found.add(key)
            queue += meanings[key].above
    return found - {meaning.key}


def _read_part(file: Path) -> Iterator[Meaning]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith(" "):  # the license
                yield _read_meaning(line)


def _read_meaning(line: str) -> Meaning:
    """Read a line of the format wndb(5): offset, file, type, words, pointers | gloss."""
    head, gloss = line.rstrip().split(" | ", 1)
    fields = head.split()
    num_words = int(fields[3], 16)
    words = (fields[4 + 2 * at] for at in range(num_words))
    pointers = fields[5 + 2 * num_words :]
    definition, _, rest = gloss.partition('; "')
    return Meaning(
        key={"s": "a"}.get(fields[2], fields[2]) + fields[0],
        words=tuple(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words),
        definition=definition.strip(),
        sentences=tuple(found for found in re.findall(r'"([^"]+)"', '"' + rest) if " " in found),
        above=tuple(
            pointers[4 * at + 2] + pointers[4 * at + 1]
            for at in range(int(fields[4 + 2 * num_words]))
            if pointers[4 * at] in _POINTERS_UP
        ),
    )
