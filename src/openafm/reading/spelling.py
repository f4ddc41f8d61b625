"""Spelling: which of the characters that look alike make words.

Every letter of a line has probabilities of characters, and so does the gap between two words. A beam search finds the
characters with the highest product of these probabilities, a small power of those of n-grams, and a factor for letters
whose case differs from that of the letters before. N-grams have letters without case, and one character for all digits.

Shapes: N n-grams.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from openafm.models.vision.letters import CHARACTERS, NO_LETTER, SPACE, class_of
from openafm.reading.letters import Letter

ORDER = 5
"""Characters of the longest n-grams."""
MOST_GRAMS = 1_000_000
"""Most n-grams of a file: a damaged or hostile one must not fill the memory."""
_BITS = 6  # of a character in the number of an n-gram
_HISTORY = (1 << _BITS * (ORDER - 1)) - 1
_POWER = 0.2  # of the probabilities of n-grams
_OMITTED = -2.25  # penalty of leaving a letter out, a logarithm, beside the probability that there is none
_CAPITAL_INSIDE, _SMALL_AFTER_CAPITALS = -1.5, -1.0  # of a word
_BEAM, _MOST_CLASSES, _LEAST_CLASS = 8, 6, 0.003
_RAREST = 4  # longer n-grams that are less frequent do not count
_ALWAYS_KEPT = 3
_MOST_KEPT = 100_000  # logarithms: 8 MB
_FOLDED = tuple("0" if character.isdigit() else character.lower() for character in CHARACTERS)
_CODES = {folded: code for code, folded in enumerate(dict.fromkeys(_FOLDED), start=2)}
_BORDER = 1
"""Code of the border of a line. Zero is no character, so that n-grams of all orders have different numbers."""
_CODE_OF_CLASS = tuple(_CODES[folded] for folded in _FOLDED)


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """N-grams by their numbers, which have six bits a character, and how often each occurs, at most 65,535 times.

    Without any, all characters are equally probable.

    Raises:
        ValueError: the arrays do not fit each other, have other types, or more than `MOST_GRAMS` numbers.
    """

    grams_N: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    counts_N: NDArray[np.uint16] = field(default_factory=lambda: np.empty(0, np.uint16))

    def __post_init__(self) -> None:
        found = [f"{array.dtype} {array.shape}" for array in (self.grams_N, self.counts_N)]
        if found != [f"uint32 ({len(self.grams_N)},)", f"uint16 ({len(self.grams_N)},)"]:
            raise ValueError(f"n-grams and counts must be uint32 and uint16 of one length, got {' and '.join(found)}")
        if len(self.grams_N) > MOST_GRAMS:
            raise ValueError(f"there are {len(self.grams_N):,} n-grams, at most {MOST_GRAMS:,} are read")

    @classmethod
    def of(cls, lines: Iterable[str]) -> Spelling:
        """Return the n-grams of lines of text."""
        found = Counter[int]()
        for line in lines:
            history = _BORDER
            for code in (*map(_code, line), _BORDER):
                history = history << _BITS | code
                found.update(
                    history & (1 << _BITS * order) - 1 for order in range(1, ORDER + 1) if history >> _BITS * (order - 1)
                )
                history &= _HISTORY
        kept = sorted(gram for gram, count in found.items() if count >= _RAREST or gram >> _BITS * _ALWAYS_KEPT == 0)
        counts = [min(found[gram], np.iinfo(np.uint16).max) for gram in kept]
        return cls(grams_N=np.array(kept, np.uint32), counts_N=np.array(counts, np.uint16))

    def text(self, letters: Sequence[Letter]) -> str:
        """Return the likeliest text of the letters of a line."""
        beam = [(0.0, _BORDER, "")]
        for letter in letters:
            best: dict[tuple[int, str], tuple[float, int, str]] = {}
            candidates = _candidates(letter)
            for score, history, text in beam:
                for number, evidence in candidates:
                    if number is None or (number == SPACE and text[-1:] in ("", " ")):
                        longer = score + evidence, history, text
                    else:
                        code = _CODE_OF_CLASS[number]
                        gain = evidence + _POWER * self.log_probability(history, code) + _case(text, CHARACTERS[number])
                        longer = score + gain, (history << _BITS | code) & _HISTORY, text + CHARACTERS[number]
                    state = longer[1], longer[2][-2:]  # of what comes next, n-grams and case depend on no more
                    if longer > best.get(state, (-math.inf, 0, "")):
                        best[state] = longer
            beam = sorted(best.values(), reverse=True)[:_BEAM]
        last = [(score + _POWER * self.log_probability(history, _BORDER), text) for score, history, text in beam]
        return max(last)[1].strip()

    def log_probability(self, history: int, code: int) -> float:
        """Return the logarithm of the probability of a character after up to four others (Witten-Bell smoothing)."""
        key = history << _BITS | code
        found = self._logs.get(key)
        if found is None:
            if len(self._logs) >= _MOST_KEPT:
                self._logs.clear()
            found = self._logs[key] = math.log(self._probability(history, code))
        return found

    @functools.cached_property
    def _logs(self) -> dict[int, float]:
        return {}

    def _probability(self, history: int, code: int) -> float:
        probability = 1 / (len(_CODES) + 1)
        for order in range(ORDER):
            known = history & (1 << _BITS * order) - 1
            if order and not history >> _BITS * (order - 1):
                break
            total, kinds = self._contexts.get(known, (0, 0))
            if not total:
                break
            probability = (self._counts.get(known << _BITS | code, 0) + kinds * probability) / (total + kinds)
        return probability

    @functools.cached_property
    def _counts(self) -> dict[int, int]:
        return dict(zip(self.grams_N.tolist(), self.counts_N.tolist(), strict=True))

    @functools.cached_property
    def _contexts(self) -> dict[int, tuple[int, int]]:
        """How often each context occurs, and how many characters follow it."""
        contexts_N, places_N, kinds_N = np.unique(self.grams_N >> _BITS, return_inverse=True, return_counts=True)
        totals_N = np.bincount(places_N, self.counts_N).astype(int)
        return dict(zip(contexts_N.tolist(), zip(totals_N.tolist(), kinds_N.tolist(), strict=True), strict=True))


def _case(text: str, character: str) -> float:
    """Return the penalty, a logarithm, of a character in another case than the letters before: `cOnsists`, `FAMiLY`."""
    if character.isupper() and text[-1:].islower():
        return _CAPITAL_INSIDE
    return _SMALL_AFTER_CAPITALS if character.islower() and text[-1:].isupper() and text[-2:-1].isupper() else 0.0


def _code(character: str) -> int:
    return _CODE_OF_CLASS[SPACE if character.isspace() else class_of(character)]


def _candidates(letter: Letter) -> list[tuple[int | None, float]]:
    """Return the likeliest classes of a letter with their evidence, and None for leaving it out."""
    probability = min(max(letter.probability, 1e-3), 1 - 1e-3)
    found: list[tuple[int | None, float]] = [(None, math.log(1 - probability) + _OMITTED)]
    for number in np.argsort(-letter.classes_K)[:_MOST_CLASSES].tolist():
        if letter.classes_K[number] > _LEAST_CLASS and number != NO_LETTER:
            found.append((number, math.log(letter.classes_K[number] * probability)))
    return found
