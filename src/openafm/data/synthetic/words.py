"""Names and words of a language: from its words.txt, from the library faker, and composed at random from syllables."""

from __future__ import annotations

import functools
import importlib
import random
import re
import string
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from openafm.core.libraries import needed
from openafm.data.synthetic.languages import Split, locale_of, source_file
from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of
from openafm.data.synthetic.text_files.source_text import Frame, Slot, parse_frame, read_sections

LineT = TypeVar("LineT")

_FAKER_LOCALES = {
    "en": ("en_US", "en_GB"),
    "da": ("da_DK",),
    "nl": ("nl_NL",),
    "fr": ("fr_FR",),
    "de": ("de_DE",),
    "it": ("it_IT",),
    "nb": ("no_NO",),
    "pt": ("pt_PT", "pt_BR"),
    "es": ("es_ES",),
    "sv": ("sv_SE",),
    "tr": ("tr_TR",),
    "zh-Hans": ("zh_CN",),
    "zh-Hant": ("zh_TW",),
    "ja": ("ja_JP",),
    "ko": ("ko_KR",),
    "vi": ("vi_VN",),
}
# Kinds of words, with the lists of faker that hold them: provider and attributes.
_FAKER_LISTS = {
    "person": ("person", ("first_names", "first_names_female", "first_names_male")),
    "surname": ("person", ("last_names", "last_names_female", "last_names_male")),
    "city": ("address", ("cities", "towns", "city_names")),
    "job": ("job", ("jobs",)),
}
CURRENCIES = {
    "en": ("USD", "GBP"),
    "da": ("DKK",),
    "nb": ("NOK",),
    "sv": ("SEK",),
    "tr": ("TRY",),
    "zh-Hans": ("CNY",),
    "zh-Hant": ("TWD",),
    "ja": ("JPY",),
    "ko": ("KRW",),
    "vi": ("VND",),
    "pt": ("EUR", "BRL"),
}
_LARGE_UNITS = {"JPY": 100, "KRW": 1000, "VND": 10000, "TWD": 10}
_LATIN = ("en", "da", "nl", "fr", "de", "it", "nb", "pt", "es", "sv", "tr", "vi")
_FOREIGN_SHARE = 0.12
_INVENTED_SHARE = 0.35
_MOST_WORDS = 3000  # of a faker list
_HELD_OUT_PART = 5  # one word in this many is held out, by its checksum
FRAME_SECTIONS = ("street", "company", "phone")
REQUIRED_SECTIONS = ("name", "syllable", "street", "company", "phone", "food", "animal", "product", "hobby", "city")
OTHER_SECTIONS = ("person", "surname", "job")
COMPUTED = frozenset({"word", "n", "price", "code", "email", "url", "room"})


def is_held_out(text: str, part: int = _HELD_OUT_PART) -> bool:
    """True for one text in `part`: the split of a word, a frame, a domain or a tool depends on."""
    return zlib.crc32(text.encode()) % part == 0


def split_of(texts: Iterable[str], split: Split) -> tuple[str, ...]:
    """The texts of a split; all of them if one side would be empty."""
    everything = tuple(texts)
    part = tuple(text for text in everything if is_held_out(text) == (split == "held_out"))
    return part or everything


def questions_of(lines: Sequence[LineT], split: Split) -> Sequence[LineT]:
    """Return the questions of a split: of several with one meaning the last is held out."""
    if len(lines) < 2:
        return lines
    return lines[-1:] if split == "held_out" else lines[:-1]


class LanguageWords:
    """The words of one language and split."""

    def __init__(self, language: str, split: Split) -> None:
        self.language, self.split = language, split
        sections = {section.name: section for section in read_sections(source_file("en", "words.txt"))}
        if language != "en":
            del sections["city"]  # faker has those of most languages
            sections |= {section.name: section for section in read_sections(source_file(language, "words.txt"))}
        known = {*REQUIRED_SECTIONS, *OTHER_SECTIONS}
        for name, section in sections.items():
            if name not in known:
                raise section.header.error(f"unknown section '{name}'; known: {', '.join(sorted(known))}")
        self._lists = {
            name: split_of((line.text for line in section.lines), split)
            for name, section in sections.items()
            if name not in FRAME_SECTIONS
        }
        for kind, (provider, attributes) in _FAKER_LISTS.items():
            own = [line.text for line in sections[kind].lines] if kind in sections else []
            texts = dict.fromkeys([*own, *_faker_texts(language, provider, attributes)])
            if texts:
                self._lists[kind] = split_of(texts, split)
        self._lists.setdefault("job", self._lists["hobby"])
        self._lists.setdefault("city", self._lists["surname"])
        self._frames: dict[str, tuple[Frame, ...]] = {
            name: tuple(parse_frame(line) for line in sections[name].lines) for name in ("street", "company")
        }
        self._phones = tuple(line.text for line in sections["phone"].lines)
        self.kinds = frozenset(self._lists) - {"syllable"} | {"street", "company", "phone"} | COMPUTED

    @property
    def list_kinds(self) -> tuple[str, ...]:
        """The kinds that are lists of words."""
        return tuple(self._lists)

    def list_of(self, kind: str) -> tuple[str, ...]:
        return self._lists[kind]

    def draw(self, rng: random.Random, kind: str) -> str:
        """A word of a kind.

        Raises:
            KeyError: no such kind.
        """
        match kind:
            case "person":
                return self._draw_person(rng)
            case "name" if rng.random() < _INVENTED_SHARE:
                return self.invent(rng)
            case "word":
                return self.invent(rng)
            case "street" | "company":
                return self._compose(rng, rng.choice(self._frames[kind]))
            case "phone":
                return re.sub("%", lambda _: str(rng.randrange(10)), rng.choice(self._phones))
            case "n":
                return str(rng.choice((rng.randint(2, 12), rng.randint(2, 60), rng.randint(2, 99))))
            case "price":
                return self.draw_price(rng)
            case "code":
                return draw_code(rng)
            case "room":
                return rng.choice((str(rng.randint(1, 450)), rng.choice("ABCDEFG") + str(rng.randint(1, 30))))
            case "email":
                return f"{self._ascii(rng, 'person')}{rng.choice('.-_')}{self._ascii(rng, 'surname')}@{self._domain(rng)}"
            case "url":
                return rng.choice(("www.{}", "https://{}", "{}", "https://{}/" + draw_code(rng))).format(self._domain(rng))
        return rng.choice(self._lists[kind])

    def invent(self, rng: random.Random) -> str:
        """A meaningless word. Its checksum determines its split."""
        syllables = self._lists["syllable"]
        is_short = len(syllables[0]) == 1 and not syllables[0].isascii()
        while True:
            word = "".join(rng.choices(syllables, k=rng.randint(2, 3 if is_short else 4)))
            word = word.capitalize() if rng.random() < 0.85 else word
            if is_held_out(word.casefold()) == (self.split == "held_out"):
                return word

    def draw_price(self, rng: random.Random) -> str:
        """An amount with its currency, as CLDR writes it."""
        amount, currency = self.draw_amount(rng)
        return self.write_price(amount, currency)

    def draw_amount(self, rng: random.Random) -> tuple[float, str]:
        """An amount and the code of a currency of the language."""
        currency = rng.choice(CURRENCIES.get(self.language, ("EUR",)))
        unit = _LARGE_UNITS.get(currency, 1)
        if unit > 1:
            return float(rng.randint(1, 400) * unit), currency
        return float(rng.choice((rng.randint(1, 200), rng.randint(100, 30000) / 100, rng.randint(1, 40) * 5))), currency

    def write_price(self, amount: float, currency: str) -> str:
        """An amount as CLDR writes it, without the decimals if it has none."""
        from babel.numbers import format_currency

        text: str = format_currency(amount, currency, locale=locale_of(self.language))
        if amount == int(amount):
            text = re.sub(r"[.,]00\b", "", text)
        return text.replace("\xa0", " ").replace("\u202f", " ")

    def _draw_person(self, rng: random.Random) -> str:
        if self.language in _LATIN and rng.random() < _FOREIGN_SHARE:
            return rng.choice(_first_names(rng.choice(_LATIN), self.split))
        return rng.choice(self._lists["person"])

    def _compose(self, rng: random.Random, frame: Frame) -> str:
        values: dict[str, str] = {}

        def resolve(slot: Slot) -> Pieces:
            if slot.name not in values:
                values[slot.name] = self.draw(rng, slot.name.rstrip(string.digits))
            return (Piece(values[slot.name]),)

        return text_of(render(frame, rng, resolve, language=self.language))

    def _ascii(self, rng: random.Random, kind: str) -> str:
        text = unicodedata.normalize("NFD", self.draw(rng, kind)).casefold()
        letters = "".join(char for char in text if char in string.ascii_lowercase)
        return letters or words_of("en", self.split).draw(rng, kind).lower().replace(" ", "")

    def _domain(self, rng: random.Random) -> str:
        word = words_of("en", self.split).invent(rng).lower()
        return f"{word}.{rng.choice(('com', 'net', 'org', 'example', 'io', 'eu'))}"


@functools.cache
def words_of(language: str, split: Split) -> LanguageWords:
    """The words of a language and split, read once."""
    return LanguageWords(language, split)


@functools.cache
def _first_names(language: str, split: Split) -> tuple[str, ...]:
    """The first names that faker has for a language."""
    return split_of(_faker_texts(language, *_FAKER_LISTS["person"]), split)


def draw_code(rng: random.Random) -> str:
    """Letters and digits, as orders, flights and tickets have them."""
    letters = "".join(rng.choices(string.ascii_uppercase, k=rng.randint(1, 3)))
    digits = "".join(rng.choices(string.digits, k=rng.randint(2, 6)))
    return rng.choice(("{}-{}", "{}{}", "{} {}", "#{1}", "{1}-{0}", "{}{}")).format(letters, digits)


def _faker_texts(language: str, provider: str, attributes: tuple[str, ...]) -> list[str]:
    """The entries of faker's lists, sorted, at most `_MOST_WORDS`."""
    texts: set[str] = set()
    for locale in _FAKER_LOCALES[language]:
        with needed("the built-in corpus", "babel and faker", "corpus"):
            importlib.import_module("faker")
        try:
            module = importlib.import_module(f"faker.providers.{provider}.{locale}")
        except ModuleNotFoundError:
            continue  # faker lacks this provider in this locale
        for attribute in attributes:
            for entry in getattr(module.Provider, attribute, ()):
                text = entry if isinstance(entry, str) else entry[0]
                if (1 < len(text) < 32 and "{" not in text) or (len(text) == 1 and not text.isascii()):
                    texts.add(text)
    ordered = sorted(texts)
    return ordered[:: max(1, len(ordered) // _MOST_WORDS)]
