"""A guardrail of keyword rules in sixteen languages.

`blocklist.json` lists terms by language and role: requests ("how to"), actions ("build"), objects ("a bomb"). A rule matches
where terms of all its roles occur within `span` words, in order if it is `ordered`, and, if it has `asked`, near a term of
one of those roles in the same sentence. Exemptions remove terms near harmless context, such as "kill" before "process".
Roles of different languages never combine.

Rules match words, not meanings. tests/safety measures recall and false positives (test_blocklist_rates.py,
test_blocklist_xstest.py).
"""

from __future__ import annotations

import bisect
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from openafm.core.config import Config
from openafm.safety.guardrail import Allowed, Verdict, Violation
from openafm.safety.words import SENTENCE_GAP, UNDER_18, Words, is_unspaced, normalize, sentence_ends, words

_ASK_DISTANCE = 24  # words; in scripts without spaces, characters
_UNSPACED_LANGUAGES = ("ja", "ko", "zh")
_VERB_LAST = ("de", "nl", "tr", "ja", "ko")  # languages where the action often follows its object
_STEM_KEY = 3  # letters that index stems; no stem is shorter


@dataclass(frozen=True, kw_only=True)
class BlocklistConfig(Config):
    """Select the rules of a blocklist. An app's own words and phrases are override lists (`overrides/lists.py`).

    Attributes:
        categories: categories of built-in rules, the keys of `categories` in blocklist.json; None: all.
    """

    categories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        known = _data()["categories"]
        unknown = [name for name in self.categories or () if name not in known]
        self.require(not unknown, f"unknown categories {unknown}; known: {', '.join(known)}")

    def build(self) -> Blocklist:
        """Return the blocklist; the same object for equal configs."""
        return _built(self)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    category: str
    roles: tuple[str, ...]
    span: int = 0
    ordered: bool = False
    asked: tuple[str, ...] = ()

    @cached_property
    def needed(self) -> frozenset[str]:
        return frozenset(self.roles)


@dataclass(frozen=True, kw_only=True)
class _Exemption:
    drop: tuple[str, ...]
    near: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class _Term:
    words: tuple[str, ...]
    language: str
    role: str


class _Hits:
    """Hold the occurrences of terms of one language: sorted first and last positions by role."""

    def __init__(self) -> None:
        self.by_role: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def near(self, role: str, first: int, last: int) -> bool:
        """Check whether a term of `role` starts between two positions."""
        places = self.by_role.get(role, ())
        index = bisect.bisect_left(places, (first, 0))
        return index < len(places) and places[index][0] <= last

    def drop(self, exemption: _Exemption) -> None:
        """Remove occurrences near the context of an exemption."""
        if exemption.near not in self.by_role:
            return
        for role in exemption.drop:
            if places := self.by_role.get(role):
                self.by_role[role] = [
                    (start, end)
                    for start, end in places
                    if not self.near(exemption.near, start - exemption.before, end + exemption.after)
                ]

    def match(self, rule: _Rule, is_ordered: bool, asking: Iterable[str]) -> bool:
        return any(
            all(self.near(role, start if is_ordered else start - rule.span, end + rule.span) for role in rule.roles[1:])
            and (not rule.asked or any(self.near(role, start - _ASK_DISTANCE, end + _ASK_DISTANCE) for role in asking))
            for start, end in self.by_role.get(rule.roles[0], ())
        )


class Blocklist:
    """Check texts against keyword rules. 1,000 characters take about a millisecond."""

    def __init__(self, config: BlocklistConfig) -> None:
        data = _data()
        chosen = data["categories"] if config.categories is None else config.categories
        rules = [_Rule(**{key: _frozen(value) for key, value in rule.items()}) for rule in data["rules"]]
        self._meanings: Mapping[str, str] = data["categories"]
        self._rules = [rule for rule in rules if rule.category in chosen]
        self._exemptions = [
            _Exemption(**{key: _frozen(value) for key, value in each.items()}) for each in data["exemptions"]
        ]
        self._whole: dict[str, list[_Term]] = defaultdict(list)  # single-word terms
        self._pairs: dict[tuple[str, str], list[_Term]] = defaultdict(list)  # longer terms, by their first two words
        self._stems: dict[str, list[_Term]] = defaultdict(list)  # terms with a stem, by first letters
        self._unspaced: dict[str, list[_Term]] = defaultdict(list)  # by first character
        for language, roles in data["languages"].items():
            for role, terms in roles.items():
                for term in terms:
                    self._add(term, language, role)

    def check_input(self, text: str) -> Verdict:
        return self._check(text, is_input=True)

    def check_output(self, window: str) -> Verdict:
        return self._check(window, is_input=False)

    def _check(self, text: str, is_input: bool) -> Verdict:
        text = normalize(text)
        by_language: dict[str, _Hits] = defaultdict(_Hits)
        self._find_words(words(text), by_language)
        if is_unspaced(text):
            self._find_unspaced(text, by_language)
        for language, hits in by_language.items():
            rules = [rule for rule in self._rules if hits.by_role.keys() >= rule.needed]
            if not rules:
                continue
            for exemption in self._exemptions:
                hits.drop(exemption)
            for rule in rules:
                # A response offers instead of asking.
                asking = rule.asked if is_input else ("ask", "offer")
                if hits.match(rule, rule.ordered and language not in _VERB_LAST, asking):
                    return Violation(category=rule.category, reason=f"the text is about {self._meanings[rule.category]}")
        return Allowed()

    def _add(self, term: str, language: str, role: str) -> None:
        if language in _UNSPACED_LANGUAGES:
            text = normalize(term)
            self._unspaced[text[0]].append(_Term((text,), language, role))
            return
        parts = [UNDER_18 if part == UNDER_18 else normalize(part) for part in re.split(r"[\s\-]+", term)]
        compiled = _Term(tuple(parts), language, role)
        if any(part.endswith("*") for part in parts[:2]):
            self._stems[parts[0][:_STEM_KEY]].append(compiled)
        elif len(parts) > 1:
            self._pairs[parts[0], parts[1]].append(compiled)
        else:
            self._whole[parts[0]].append(compiled)

    def _find_words(self, found: Words, by_language: dict[str, _Hits]) -> None:
        openings: dict[str, int] = {}  # by language: position of the first word after courtesy phrases
        sentence = 0
        for index, position in enumerate(found.positions):
            if position in found.starts:
                sentence, openings = position, {}
            for term in self._terms_at(found, index):
                is_opening = position == openings.get(term.language, sentence)
                last = position + len(term.words) - 1
                if term.role == "polite":
                    if is_opening:
                        openings[term.language] = last + 1
                elif term.role != "command" or is_opening:
                    by_language[term.language].by_role[term.role].append((position, last))

    def _terms_at(self, found: Words, index: int) -> Iterator[_Term]:
        for word in found.spellings(index):
            yield from self._whole.get(word, ())
            for term in self._stems.get(word[:_STEM_KEY], ()):
                if _matches(word, term.words[0]) and self._continues(found, index, term, 1):
                    yield term
            for second in found.following(index):
                for term in self._pairs.get((word, second), ()):
                    if self._continues(found, index, term, 2):
                        yield term

    def _continues(self, found: Words, index: int, term: _Term, num_matched: int) -> bool:
        return all(
            any(_matches(word, part) for word in found.following(index + place - 1))
            for place, part in enumerate(term.words[num_matched:], num_matched)
        )

    def _find_unspaced(self, text: str, by_language: dict[str, _Hits]) -> None:
        ends = sentence_ends(text)
        for index, character in enumerate(text):
            for term in self._unspaced.get(character, ()):
                if text.startswith(term.words[0], index):
                    start = index + SENTENCE_GAP * bisect.bisect_right(ends, index)
                    by_language[term.language].by_role[term.role].append((start, start + len(term.words[0]) - 1))


def _matches(word: str, part: str) -> bool:
    return word.startswith(part[:-1]) if part.endswith("*") else word == part


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files("openafm.safety").joinpath("blocklist.json").read_text(encoding="utf-8"))
    return data


@lru_cache(maxsize=16)
def _built(config: BlocklistConfig) -> Blocklist:
    return Blocklist(config)
