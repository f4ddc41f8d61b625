"""Definitions and sentences of WordNet as texts with labels: what kind of thing a text is about, or which word it defines.

WordNet has 117,000 meanings, and the label sets of the corpus a few thousand labels: words that stand in no label set are
learned here. WordNet 3.0 is read from a folder that the project does not contain (package wordnet-base of Debian);
`ATTRIBUTION` goes into the card of a model trained on it.
"""

from __future__ import annotations

import functools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openafm.core.errors import OpenAFMError
from openafm.data.synthetic.tasks.labels import NamedLabel, choice_turns
from openafm.tokenizer.conversation import Turn

ATTRIBUTION = "WordNet 3.0, Princeton University, WordNet license"
_PARTS = ("noun", "verb", "adj", "adv")
_POINTERS_UP = ("@", "@i", "&")  # kinds of a noun or verb, and the adjective that a similar one belongs to
_OFFENSIVE = re.compile(r"slur|offensive|obscene|vulgar|disparag|derogat|taboo|sexual|racial|ethnic", re.IGNORECASE)
_PER_USE, _MOST_WEIGHT = 4, 24  # a meaning whose words were counted in texts is drawn more often
_LEAST_KINDS, _MOST_KIND_SHARE, _LONGEST_LABEL = 10, 0.04, 2
_KIND_SHARE, _NEAR_SHARE = 0.65, 0.4
_MOST_LABELS, _MOST_TEXTS, _MOST_LETTERS = 6, 14, 160
_SENTENCE_SHARE, _NAMED_SHARE, _CAPITAL_SHARE, _MOST_DRAWS = 0.5, 0.2, 0.3, 8
_QUESTIONS = ("What the text is about", "Which kind it is", "Which word fits the text", "")


class WordNetError(OpenAFMError):
    """The folder is no WordNet database: a file is absent, or a line of it cannot be read."""


@dataclass(frozen=True)
class Meaning:
    """A synset: its words, definition and sentences, the synsets above it, and how often its words were counted."""

    key: str
    words: tuple[str, ...]
    definition: str
    sentences: tuple[str, ...]
    above: tuple[str, ...]
    uses: int

    @property
    def weight(self) -> int:
        return 1 + min(_PER_USE * self.uses, _MOST_WEIGHT)


@dataclass(frozen=True)
class WordNet:
    """All meanings by key, those to draw from with cumulative weights, and the meanings below each kind."""

    meanings: Mapping[str, Meaning]
    below: Mapping[str, tuple[Meaning, ...]]
    kinds: tuple[Meaning, ...]
    siblings: Mapping[str, tuple[Meaning, ...]]
    drawn: tuple[Meaning, ...]
    weights: tuple[int, ...]


def wordnet_turns(rng: random.Random, folder: Path) -> tuple[Turn, ...]:
    """Return definitions and sentences, each with its label out of two to six.

    Raises:
        WordNetError: the folder has no WordNet database.
    """
    net = read_wordnet(folder)
    draw = _draw_kinds if rng.random() < _KIND_SHARE else _draw_words
    labels = draw(rng, net)
    style = str.capitalize if rng.random() < _CAPITAL_SHARE else str
    choices = [NamedLabel(style(name), definition) for name, definition, _ in labels]
    texts: dict[str, str] = {}
    for _ in range(rng.randint(2, _MOST_TEXTS)):
        name, _, meanings = rng.choice(labels)
        text = _write(rng, rng.choices(meanings, [meaning.weight for meaning in meanings])[0], name)
        if text:
            texts.setdefault(text, style(name))
    if not texts:
        return wordnet_turns(rng, folder)
    return choice_turns(rng, list(texts.items()), choices, "en", "train", rng.choice(_QUESTIONS))


_Labels = list[tuple[str, str, Sequence[Meaning]]]  # name, definition, meanings that have this label


def _draw_kinds(rng: random.Random, net: WordNet) -> _Labels:
    """Kinds of things of which none is below another: in some cases near ones."""
    first = rng.choices(net.kinds, [kind.weight for kind in net.kinds])[0]
    near = net.siblings.get(first.key, ()) if rng.random() < _NEAR_SHARE else ()
    found: dict[str, Meaning] = {first.words[0]: first}
    taken = {meaning.key for meaning in net.below[first.key]} | {first.key}
    wanted = rng.randint(2, _MOST_LABELS)
    for _ in range(_MOST_DRAWS * wanted):
        kind = (
            rng.choice(near)
            if near and rng.random() < 0.7
            else rng.choices(net.kinds, [each.weight for each in net.kinds])[0]
        )
        keys = {meaning.key for meaning in net.below[kind.key]} | {kind.key}
        if kind.words[0] not in found and not taken & keys:
            found[kind.words[0]] = kind
            taken |= keys
        if len(found) == wanted:
            break
    labels: _Labels = [(word, kind.definition, net.below[kind.key]) for word, kind in found.items()]
    rng.shuffle(labels)
    return labels


def _draw_words(rng: random.Random, net: WordNet) -> _Labels:
    """Words, each with the meaning whose definition or sentence is the text."""
    drawn = rng.choices(net.drawn, cum_weights=net.weights, k=rng.randint(2, _MOST_LABELS) + 2)
    found = {rng.choice(_short(meaning.words)): meaning for meaning in drawn}
    return [(word, "", (meaning,)) for word, meaning in list(found.items())[:_MOST_LABELS]]


def _write(rng: random.Random, meaning: Meaning, label: str) -> str | None:
    """A sentence or definition that lacks the label, in some cases with a word of this meaning before it."""
    texts = meaning.sentences if meaning.sentences and rng.random() < _SENTENCE_SHARE else (meaning.definition,)
    text = rng.choice(texts)
    others = [word for word in meaning.words if word.lower() != label.lower()]
    if others and text == meaning.definition and rng.random() < _NAMED_SHARE:
        text = f"{rng.choice(others)}: {text}"
    if label.lower() in text.lower() or len(text) > _MOST_LETTERS:
        return None
    return text


def _short(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.count(" ") < _LONGEST_LABEL]


@functools.cache
def read_wordnet(folder: Path) -> WordNet:
    """Read the database of a folder: data.noun, data.verb, data.adj, data.adv and cntlist.rev.

    Raises:
        WordNetError: a file is absent, or a line of it cannot be read.
    """
    try:
        uses = _read_uses(folder / "cntlist.rev")
        found = [meaning for part in _PARTS for meaning in _read_part(folder / f"data.{part}", uses)]
    except (OSError, ValueError, IndexError) as error:
        raise WordNetError(
            f"{folder} cannot be read as WordNet 3.0: {error}. Expected data.noun and the files beside it."
        ) from error
    meanings = {meaning.key: meaning for meaning in found}
    below: dict[str, dict[str, Meaning]] = defaultdict(dict)
    children: dict[str, list[Meaning]] = defaultdict(list)
    for meaning in found:
        if _OFFENSIVE.search(meaning.definition):
            continue
        for above in meaning.above:
            children[above].append(meaning)
        for key in _all_above(meaning, meanings):
            below[key][meaning.key] = meaning
    most = _MOST_KIND_SHARE * len(found)
    enough = {key: tuple(each.values()) for key, each in below.items() if _LEAST_KINDS <= len(each) <= most}
    kinds = tuple(meanings[key] for key in enough if _short(meanings[key].words[:1]) and meanings[key].uses)
    named = {kind.key for kind in kinds}
    drawn = tuple(each for each in found if _short(each.words) and not _OFFENSIVE.search(each.definition))
    weights, total = [], 0
    for meaning in drawn:
        total += meaning.weight
        weights.append(total)
    return WordNet(
        meanings=meanings,
        below=enough,
        kinds=kinds,
        siblings={
            child.key: tuple(each for each in group if each.key in named and each.key != child.key)
            for group in children.values()
            for child in group
            if child.key in named
        },
        drawn=drawn,
        weights=tuple(weights),
    )


def _all_above(meaning: Meaning, meanings: Mapping[str, Meaning]) -> set[str]:
    found: set[str] = set()
    queue = list(meaning.above)
    while queue:
        key = queue.pop()
        if key not in found:
            found.add(key)
            queue += meanings[key].above
    return found - {meaning.key}


def _read_uses(file: Path) -> dict[str, int]:
    """How often each sense was counted in texts, by "lemma%type:file:id::"."""
    with file.open(encoding="utf-8") as lines:
        return {fields[0]: int(fields[2]) for fields in (line.split() for line in lines)}


def _read_part(file: Path, uses: Mapping[str, int]) -> Iterator[Meaning]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith(" "):  # the license
                yield _read_meaning(line, uses)


def _read_meaning(line: str, uses: Mapping[str, int]) -> Meaning:
    """Read a line of the format wndb(5): offset, file, type, words, pointers | gloss."""
    head, gloss = line.rstrip().split(" | ", 1)
    fields = head.split()
    offset, lexical_file, kind = fields[:3]
    num_words = int(fields[3], 16)
    pairs = [(fields[4 + 2 * at], int(fields[5 + 2 * at], 16)) for at in range(num_words)]
    pointers = fields[5 + 2 * num_words :]
    num_pointers = int(fields[4 + 2 * num_words])
    part = {"s": "a"}.get(kind, kind)
    number = {"n": 1, "v": 2, "a": 3, "r": 4, "s": 5}[kind]
    counted = (uses.get(f"{word.lower()}%{number}:{lexical_file}:{identifier:02d}::", 0) for word, identifier in pairs)
    definition, _, rest = gloss.partition('; "')
    return Meaning(
        key=part + offset,
        words=tuple(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word, _ in pairs),
        definition=definition.strip(),
        sentences=tuple(found for found in re.findall(r'"([^"]+)"', '"' + rest) if " " in found),
        above=tuple(
            pointers[4 * at + 2] + pointers[4 * at + 1] for at in range(num_pointers) if pointers[4 * at] in _POINTERS_UP
        ),
        uses=sum(counted),
    )
