"""Search for the terms of override lists with an Aho-Corasick automaton, in every view of a text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openafm.core.errors import UsageError
from openafm.safety.overrides.folding import MASK, Folded, Separators, Signs, fold, is_unspaced, squeezed, views
from openafm.safety.overrides.lists import OverrideAction, OverrideList

_LEAST_MASKED = 4  # letters of a term that is searched with masked letters
_LEAST_JOINED = 6  # letters of a phrase that is also searched without its spaces
_MOST_SIGNS = 3  # digits and signs per letter of a hit
_BRACKETS = "(<"  # signs for the letter c
_LEAST_WITHOUT_MARKS = 5  # letters of a term that is also found without its diacritics; shorter ones are other words
_LEAST_EXCESS = 2  # additional equal letters that count as a disguise; one is another word ("bitte" and "bite")


class MissingPackageError(UsageError):
    """A package of an optional extra is not installed."""


@dataclass(frozen=True, kw_only=True)
class OverrideHit:
    """A term in a text: `text[start:end]` of the text in NFC."""

    term: str
    list_name: str
    subcategory: str
    action: OverrideAction
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    term: str
    list_index: int  # -1: an allowed phrase
    folded: str  # runs
    lengths: tuple[int, ...]
    is_stem: bool
    is_unspaced: bool
    needs_marks: bool  # a text needs diacritics too


class Overrides:
    """Find the terms of lists in texts. Threads may share it."""

    def __init__(self, lists: Iterable[OverrideList]) -> None:
        self.lists = tuple(lists)
        self._patterns = list(dict.fromkeys(self._all_patterns()))
        masked = [each for pattern in self._patterns for each in _masked(pattern)]
        self._plain = _automaton([pattern.folded for pattern in self._patterns])
        self._with_masks = masked
        self._masks = _automaton([pattern.folded for pattern in masked])

    def find(self, text: str, locale: str | None = None, feature: str | None = None) -> list[OverrideHit]:
        """Return the terms in a text by their place.

        Args:
            locale: the locale of the text, such as `de-AT`; None: search all lists.
            feature: the feature of the app, for lists with actions by feature.
        """
        text = unicodedata.normalize("NFC", text)
        if not self._patterns:
            return []
        hits: dict[tuple[int, int, int], OverrideHit] = {}
        allowed: list[tuple[int, int]] = []
        for separators, signs in views(text):
            if (separators, signs) == (Separators.SPACE, Signs.PLAIN) and not self._plain.find_matches_as_indexes(
                squeezed(text)
            ):
                continue
            for pattern, start, end in self._matches(text, separators, signs):
                if pattern.list_index < 0:
                    allowed.append((start, end))
                    continue
                found = self.lists[pattern.list_index]
                if found.is_for(locale):
                    hits[pattern.list_index, start, end] = OverrideHit(
                        term=pattern.term,
                        list_name=found.name,
                        subcategory=found.subcategory,
                        action=found.action_for(locale, feature),
                        start=start,
                        end=end,
                    )
        kept = [hit for hit in hits.values() if not any(start <= hit.start and hit.end <= end for start, end in allowed)]
        return sorted(kept, key=lambda hit: (hit.start, hit.end, hit.list_name))

    def _matches(self, text: str, separators: Separators, signs: Signs) -> Iterator[tuple[_Pattern, int, int]]:
        """Yield the patterns in a view of a text with their places."""
        is_masked = signs is Signs.MASKS
        automaton, patterns = (self._masks, self._with_masks) if is_masked else (self._plain, self._patterns)
        folded = fold(text, separators, signs)
        for index, first, last in automaton.find_matches_as_indexes(folded.text, overlapping=True):
            pattern: _Pattern = patterns[index]
            start, end = folded.starts[first], folded.ends[last - 1]
            if (
                _has_lengths(folded, first, pattern, is_masked)
                and _has_boundaries(text, start, end, pattern)
                and _has_letters(text[start:end], pattern, signs)
            ):
                yield pattern, start, end

    def _all_patterns(self) -> Iterator[_Pattern]:
        for index, each in enumerate(self.lists):
            for term in each.terms:
                yield from _patterns_of(term, index)
            for phrase in each.allow:
                yield from _patterns_of(phrase, -1)


def _patterns_of(term: str, list_index: int) -> Iterator[_Pattern]:
    spelling = unicodedata.normalize("NFC", term).casefold().strip()
    is_stem = spelling.endswith("*")
    spelling = spelling.removesuffix("*")
    has_marks = unicodedata.normalize("NFD", spelling) != spelling and not spelling[0] >= "\u3040"
    for is_joined in (False, True):
        joined = "".join(character for character in spelling if character.isalnum())
        if is_joined and (joined == spelling or len(joined) < _LEAST_JOINED):
            return
        runs = fold(joined if is_joined else spelling)
        if runs.text.strip():
            yield _Pattern(
                term=term,
                list_index=list_index,
                folded=runs.text,
                lengths=tuple(runs.lengths),
                is_stem=is_stem,
                is_unspaced=is_unspaced(spelling),
                needs_marks=has_marks and len(runs.text) < _LEAST_WITHOUT_MARKS,
            )


def _masked(pattern: _Pattern) -> Iterator[_Pattern]:
    """Yield a word with one to three of its inner letters masked."""
    letters = "".join(letter * length for letter, length in zip(pattern.folded, pattern.lengths, strict=True))
    if len(letters) < _LEAST_MASKED or pattern.list_index < 0 or pattern.is_unspaced:
        return
    for start in range(1, len(letters) - 1):
        for stop in range(start + 1, min(start + 4, len(letters))):
            if len(letters) - (stop - start) >= 2 and " " not in letters[start - 1 : stop + 1]:
                runs = fold(letters[:start] + MASK * (stop - start) + letters[stop:], signs=Signs.MASKS)
                yield replace(pattern, folded=runs.text, lengths=tuple(runs.lengths), needs_marks=False)


def _has_lengths(folded: Folded, first: int, pattern: _Pattern, is_masked: bool) -> bool:
    """Check that letters are repeated as in the term, or so often that it is a disguise."""
    excess = 0
    for offset, wanted in enumerate(pattern.lengths):
        found = folded.lengths[first + offset]
        if pattern.folded[offset] == " " or (pattern.is_unspaced and offset in (0, len(pattern.lengths) - 1)):
            continue
        if found < wanted or (is_masked and found != wanted):
            return False
        excess += found - wanted
    return excess == 0 or excess >= _LEAST_EXCESS


def _has_boundaries(text: str, start: int, end: int, pattern: _Pattern) -> bool:
    """Check that no other letters of a word surround a hit. Suffixes of Korean words and of stems are allowed.

    A bracket is a letter of whole words alone: more often it opens a remark whose first word is longer, as in "(until".
    """
    if pattern.is_unspaced:
        return True
    while start and not text[start - 1].isalnum() and fold(text[start - 1]).text == "":
        start -= 1
    if start and _is_letter(text[start - 1]):
        return False
    if (pattern.is_stem and text[start] not in _BRACKETS) or "\uac00" <= pattern.folded[-1] <= "\ud7af":
        return True
    while end < len(text) and not text[end].isalnum() and fold(text[end]).text == "":
        end += 1
    return end == len(text) or not _is_letter(text[end])


def _is_letter(character: str) -> bool:
    return fold(character).text not in ("", " ")


def _has_letters(found: str, pattern: _Pattern, signs: Signs) -> bool:
    """Check that a hit is more than digits, and has the diacritics that its term needs."""
    num_letters = sum(character.isalpha() for character in found)
    if signs in (Signs.AS_I, Signs.AS_L) and pattern.folded.isascii():
        num_signs = sum(each.isdigit() or each in "@$€£!|+(<¢¡" for each in found)
        if num_signs > _MOST_SIGNS * num_letters or (num_signs > 1 and len(pattern.folded) < _LEAST_MASKED):
            return False
    if pattern.needs_marks and num_letters == len(found):
        return unicodedata.normalize("NFD", found) != found
    return True


def _automaton(patterns: Sequence[str]) -> Any:
    try:
        import ahocorasick_rs
    except ImportError as error:
        raise MissingPackageError(
            "override lists need the package 'ahocorasick_rs'; install openafm with the extra, openafm[safety]"
        ) from error
    return ahocorasick_rs.AhoCorasick(list(patterns), store_patterns=False)
