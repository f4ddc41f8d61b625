"""Whether two engines of one bundle choose the same tokens: each is given the same text, and its choice at every position
is compared with the other's. Imports no tensor library.

Shapes: N tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from openafm.runtime.engine import Engine

_CHUNK = 32  # engines compute so few tokens as exactly as one


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often two engines chose alike.

    Attributes:
        num_sequences: texts that were given to both.
        num_identical: those in which all choices were the same.
        num_positions: tokens of all, each with a choice behind it.
        num_equal: equal choices.
        margins: for every unequal one, by how much the first engine's logit of its own choice exceeds that of the other's.
    """

    num_sequences: int
    num_identical: int
    num_positions: int
    num_equal: int
    margins: tuple[float, ...]

    @property
    def share(self) -> float:
        """Equal choices among all; 1 where there are none."""
        return self.num_equal / self.num_positions if self.num_positions else 1.0

    @property
    def largest_margin(self) -> float:
        """The clearest choice that differs; 0 if none does."""
        return max(self.margins, default=0.0)


def agreement(one: Engine, other: Engine, sequences: Iterable[Sequence[int]]) -> Agreement:
    """Compare the choices of two engines behind every token of some texts.

    Raises:
        ContextWindowError, TokenError: a text is none for these engines.
    """
    num_sequences = num_identical = num_positions = 0
    margins: list[float] = []
    for tokens in sequences:
        num_unequal = len(margins)
        held_one, held_other = one.new_sequence(), other.new_sequence()
        for start in range(0, len(tokens), _CHUNK):
            piece = tokens[start : start + _CHUNK]
            (one_NV,), (other_NV,) = one.step([(held_one, piece)], "all"), other.step([(held_other, piece)], "all")
            mine_N, theirs_N = one_NV.argmax(1), other_NV.argmax(1)
            rows = np.flatnonzero(mine_N != theirs_N)
            margins += (one_NV[rows, mine_N[rows]] - one_NV[rows, theirs_N[rows]]).tolist()
        one.close(held_one)
        other.close(held_other)
        num_sequences += 1
        num_identical += num_unequal == len(margins)
        num_positions += len(tokens)
    return Agreement(
        num_sequences=num_sequences,
        num_identical=num_identical,
        num_positions=num_positions,
        num_equal=num_positions - len(margins),
        margins=tuple(margins),
    )
