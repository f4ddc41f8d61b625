"""Filling the slots of a text: names and numbers drawn from a lexicon, capitals, optional groups, Korean particles."""

from __future__ import annotations

import functools
import random
import re
import string
import zlib
from dataclasses import dataclass

from openafm.data.synthetic.lexicons import Lexicon, lexicon

# Languages in whose messages a foreign first name looks at home.
_LATIN = ("en", "da", "nl", "fr", "de", "it", "nb", "pt", "es", "sv", "tr", "vi")
_FOREIGN_SHARE = 0.15
_INVENTED_SHARE = 0.5

_GROUP = re.compile(r"\[(.*?)\]", re.DOTALL)
_NAME = re.compile(r"<(.*)>")
_PARTICLE = re.compile(r"(.)([\0\1]?)\(([^()/]+)/([^()/]+)\)")


class Slots(dict[str, str]):
    """Values for `str.format_map`: what is not set is drawn from the lexicon on first use, then stays the same."""

    def __init__(self, rng: random.Random, words: Lexicon, **values: str) -> None:
        super().__init__(values)
        self.rng, self.words = rng, words

    def __missing__(self, name: str) -> str:
        if name[0].isupper():
            return capitalise(self[name.lower()], self.words.language)
        value = self[name] = self._draw(name)
        return value

    def fill(self, text: str) -> str:
        """`text` with its slots filled and, in Korean, its particles chosen."""
        filled = text.format_map(self)
        return with_particles(filled) if self.words.language == "ko" else filled

    def choose(self, texts: tuple[str, ...]) -> str:
        """One of `texts`, filled."""
        return self.fill(self.rng.choice(texts))

    def _draw(self, name: str) -> str:
        match name:
            case "person" | "hero":
                return draw_person(self.rng, self.words)
            case "other" | "friend":
                taken = self["person" if name == "other" else "hero"]
                while (person := draw_person(self.rng, self.words)) == taken:
                    pass
                return person
            case "n":
                return str(self.rng.randint(2, 60))
            case "proper":
                return draw_proper(self.rng, self.words)
            case "place":
                return plain(self.choose(self.words.places))
        raise KeyError(name)


def draw_person(rng: random.Random, words: Lexicon) -> str:
    """A first name of the language, now and then of another one in the same script."""
    if words.language in _LATIN and rng.random() < _FOREIGN_SHARE:
        words = lexicon(rng.choice(_LATIN), words.split)
    return rng.choice(words.people)


def draw_proper(rng: random.Random, words: Lexicon) -> str:
    """A name such as cafés and hotels have: a known one or an invented one. A checksum tells whose split it is."""
    if rng.random() >= _INVENTED_SHARE:
        return rng.choice(words.propers)
    while True:
        name = "".join(rng.choices(words.syllables, k=words.num_syllables)).strip().title()
        if (zlib.crc32(name.encode()) % 4 == 0) == (words.split == "held_out"):
            return name


def capitalise(text: str, language: str) -> str:
    """`text` with its first letter a capital, marks before it skipped."""
    start = 1 if text[0] < " " else 0
    first = "İ" if language == "tr" and text[start] == "i" else text[start].upper()
    return text[:start] + first + text[start + 1 :]


def plain(text: str) -> str:
    """`at <Café Luna>` as it stands in a sentence."""
    return text.replace("<", "").replace(">", "")


def bare(text: str) -> str:
    """The name alone in `at <Café Luna>`."""
    match = _NAME.search(text)
    return match[1] if match else text


def marked(text: str, mark: str) -> str:
    """`at <Café Luna>` with `mark` in the place of the angle brackets: where the name stands in the finished message."""
    return text.replace("<", mark).replace(">", mark)


@dataclass(frozen=True)
class Piece:
    """A stretch of a text with optional groups, and the slots it uses."""

    text: str
    slots: frozenset[str]
    optional: bool


@functools.cache
def pieces(text: str) -> tuple[Piece, ...]:
    """`text` cut at its optional groups."""
    return tuple(
        Piece(stretch, slots_of(stretch), optional=bool(position % 2)) for position, stretch in enumerate(_GROUP.split(text))
    )


@functools.cache
def slots_of(text: str) -> frozenset[str]:
    """Names of the slots in `text`, in lower case."""
    return frozenset(name.lower() for _, name, _, _ in string.Formatter().parse(text) if name)


def with_particles(text: str) -> str:
    """Choose each Korean particle written as `(은/는)`: the first after a consonant, the second after a vowel."""
    return _PARTICLE.sub(_particle, text)


def _particle(match: re.Match[str]) -> str:
    before, mark, after_consonant, after_vowel = match.groups()
    closed_syllable = "가" <= before <= "힣" and (ord(before) - ord("가")) % 28 != 0
    return before + mark + (after_consonant if closed_syllable else after_vowel)
