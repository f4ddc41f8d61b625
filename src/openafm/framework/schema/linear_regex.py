"""Regular expressions with bounded work, for text from outside: a lazily built automaton instead of backtracking.

Python's `re` needs exponential time for patterns such as `(\\w+\\s?)+` and holds the interpreter lock meanwhile. Here a
pattern becomes a nondeterministic automaton; sets of its states are cached as states of a deterministic one. `WorkBudget`
limits the steps of a validation, whatever the pattern and the text.
"""

from __future__ import annotations

import bisect
import functools
import re
from dataclasses import dataclass, field
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

from openafm.framework.errors import DecodingFailureError, UnsupportedGuideError

MAX_CHARACTER = 0x10FFFF
CATEGORIES: dict[Any, list[tuple[int, int]]] = {
    op.CATEGORY_DIGIT: [(0x30, 0x39)],
    op.CATEGORY_WORD: [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    op.CATEGORY_SPACE: [(0x09, 0x0D), (0x20, 0x20)],
}
COMPLEMENTS = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
}
_MAX_INSTRUCTIONS = 30_000
_MAX_CACHED = 5_000
_WORD = CATEGORIES[op.CATEGORY_WORD]
_START, _NOT_WORD, _IN_WORD, _END = range(4)  # the characters beside a position
_State: TypeAlias = tuple[frozenset[int], int]  # instructions before the next character, and what precedes it


class WorkBudget:
    """Count the steps of one validation.

    Args:
        steps: the limit; 3 million take a few seconds at most.
    """

    def __init__(self, steps: int = 3_000_000) -> None:
        self._steps = self._left = steps

    def spend(self, steps: int) -> None:
        """Count steps.

        Raises:
            DecodingFailureError: the limit is exceeded.
        """
        self._left -= steps
        if self._left < 0:
            raise DecodingFailureError(f"validating the text takes more than {self._steps:,} steps; simplify the schema")


@dataclass
class _Instruction:
    """Consume a character in `ranges`, check `assertion`, or continue at each of `targets`."""

    targets: list[int]
    ranges: tuple[tuple[int, int], ...] | None = None
    assertion: Any = None


@dataclass
class _Program:
    """An automaton under construction. Instruction 0 accepts."""

    pattern: str
    instructions: list[_Instruction] = field(default_factory=lambda: [_Instruction([])])

    def add(self, *targets: int, ranges: Any = None, assertion: Any = None) -> int:
        if len(self.instructions) >= _MAX_INSTRUCTIONS:
            raise UnsupportedGuideError(f"regex={self.pattern!r:.200} is too large; use smaller repetition counts")
        self.instructions.append(_Instruction(list(targets), ranges, assertion))
        return len(self.instructions) - 1

    def sequence(self, nodes: Any, target: int) -> int:
        """Add instructions that match `nodes` and continue at `target`; return the first."""
        for code, value in reversed(list(nodes)):
            target = self._node(code, value, target)
        return target

    def _node(self, code: Any, value: Any, target: int) -> int:
        match code:
            case op.LITERAL | op.NOT_LITERAL | op.ANY | op.IN:
                return self.add(target, ranges=tuple(_character_ranges(code, value)))
            case op.BRANCH:
                return self.add(*(self.sequence(branch, target) for branch in value[1]))
            case op.SUBPATTERN if not value[1] and not value[2]:
                return self.sequence(value[3], target)
            case op.MAX_REPEAT | op.MIN_REPEAT:
                least, most, body = value
                return self._repeat(least, most, body, target)
            case op.AT:
                return self.add(target, assertion=value)
        raise unsupported_regex(self.pattern, str(code).lower())

    def _repeat(self, least: int, most: int, body: Any, target: int) -> int:
        if most == _parser.MAXREPEAT:
            loop = self.add()
            self.instructions[loop].targets = [self.sequence(body, loop), target]
            start = loop
        else:
            start = target
            for _ in range(most - least):
                inner = self.sequence(body, start)
                if inner == start:  # an empty body
                    break
                start = self.add(inner, target)
        for _ in range(least):
            before, start = start, self.sequence(body, start)
            if start == before:  # an empty body
                break
        return start


class LinearRegex:
    """Match a Python regular expression (`re.ASCII`) without backtracking.

    Raises:
        UnsupportedGuideError: the pattern is invalid or too large, or uses look-around, back-references or flags.
    """

    def __init__(self, pattern: str) -> None:
        program = _Program(pattern)
        self._start = program.sequence(parse_regex(pattern), 0)
        self._instructions = program.instructions
        edges = {0, *(edge for low, high in _WORD for edge in (low, high + 1))}
        for instruction in self._instructions:
            edges.update(edge for low, high in instruction.ranges or () for edge in (low, high + 1))
        self._edges = sorted(edges)  # characters between two edges are equivalent
        self._next: dict[tuple[_State, int, bool], _State | None] = {}

    def fullmatch(self, text: str, budget: WorkBudget | None = None) -> bool:
        """Check whether the whole text matches."""
        return self._match(text, budget or WorkBudget(), is_search=False)

    def search(self, text: str, budget: WorkBudget | None = None) -> bool:
        """Check whether part of the text matches."""
        return self._match(text, budget or WorkBudget(), is_search=True)

    def _match(self, text: str, budget: WorkBudget, is_search: bool) -> bool:
        state: _State = (frozenset((self._start,)), _START)
        budget.spend(len(text) + 1)
        for character in text:
            if not state[0]:
                return False
            key = (state, bisect.bisect_right(self._edges, ord(character)) - 1, is_search)
            if key not in self._next:
                if len(self._next) >= _MAX_CACHED:
                    self._next.clear()
                self._next[key] = self._step(state, key[1], budget, is_search)
            following = self._next[key]
            if following is None:
                return True
            state = following
        return 0 in self._closure(state, _END, budget)

    def _step(self, state: _State, interval: int, budget: WorkBudget, is_search: bool) -> _State | None:
        """Return the state after a character; None if a search has succeeded before it."""
        character = self._edges[interval]
        kind = _IN_WORD if _is_in(character, _WORD) else _NOT_WORD
        reached = self._closure(state, kind, budget)
        if is_search and 0 in reached:
            return None
        following = {self._start} if is_search else set()
        for number in reached:
            instruction = self._instructions[number]
            if instruction.ranges is not None and _is_in(character, instruction.ranges):
                following.update(instruction.targets)
        return frozenset(following), kind

    def _closure(self, state: _State, kind: int, budget: WorkBudget) -> set[int]:
        """Return the instructions reachable without consuming a character."""
        pending, before = list(state[0]), state[1]
        reached: set[int] = set()
        while pending:
            number = pending.pop()
            if number in reached:
                continue
            reached.add(number)
            instruction = self._instructions[number]
            budget.spend(1 + len(instruction.targets))
            if instruction.ranges is None and _holds(instruction.assertion, before, kind):
                pending += instruction.targets
        return reached


@functools.lru_cache(maxsize=256)
def linear_regex(pattern: str) -> LinearRegex:
    """Return the compiled pattern; the same object for equal patterns.

    Raises:
        UnsupportedGuideError: as `LinearRegex`.
    """
    return LinearRegex(pattern)


def parse_regex(pattern: str) -> Any:
    """Return the syntax tree of a Python regular expression under `re.ASCII`.

    Raises:
        UnsupportedGuideError: the pattern is invalid, or sets flags.
    """
    try:
        tree = _parser.parse(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedGuideError(f"regex={pattern!r:.200} is not a regular expression: {error}") from error
    if tree.state.flags != re.ASCII:
        raise UnsupportedGuideError(f"regex={pattern!r:.200} sets flags; write them out, for example [Aa]")
    return tree


def unsupported_regex(pattern: str, feature: str) -> UnsupportedGuideError:
    """Return the error for an unsupported feature."""
    return UnsupportedGuideError(
        f"regex={pattern!r:.200} uses {feature}, which cannot be enforced while decoding;"
        " use characters, classes, groups, alternatives and repetition"
    )


def class_ranges(code: Any, value: Any) -> list[tuple[int, int]]:
    """Return the code points of one item of a character class."""
    if code is op.LITERAL:
        return [(value, value)]
    if code is op.RANGE:
        return [value]
    return CATEGORIES[value] if value in CATEGORIES else _complement(CATEGORIES[COMPLEMENTS[value]])


def _character_ranges(code: Any, value: Any) -> list[tuple[int, int]]:
    match code:
        case op.LITERAL:
            return [(value, value)]
        case op.NOT_LITERAL:
            return _complement([(value, value)])
        case op.ANY:
            return _complement([(0x0A, 0x0A)])
    is_negated = value[0][0] is op.NEGATE
    ranges = [bounds for item in value[is_negated:] for bounds in class_ranges(*item)]
    return _complement(ranges) if is_negated else ranges


def _complement(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return gaps if start > MAX_CHARACTER else [*gaps, (start, MAX_CHARACTER)]


def _is_in(character: int, ranges: Any) -> bool:
    return any(low <= character <= high for low, high in ranges)


def _holds(assertion: Any, before: int, after: int) -> bool:
    match assertion:
        case None:
            return True
        case op.AT_BEGINNING | op.AT_BEGINNING_STRING:
            return before == _START
        case op.AT_END | op.AT_END_STRING:
            return after == _END
    is_boundary = (before == _IN_WORD) != (after == _IN_WORD)
    return is_boundary == (assertion is op.AT_BOUNDARY)
