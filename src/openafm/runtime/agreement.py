"""Whether two engines of one bundle choose the same tokens: each is given the same text, and its choice at every position
is compared with the other's. Imports no tensor library.

Shapes: N tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from openafm.runtime.engines.base import Engine

_CHUNK = 32  # engines compute so few tokens as exactly as one


@dataclass(frozen=True, kw_only=True)
class ChoiceDifference:
    """A position behind which two engines chose differently.

    Attributes:
        sequence: number of the text, from 0.
        position: of the token behind which they chose.
        margin: by how much the first engine's logit of its own choice exceeds that of the other's.
    """

    sequence: int
    position: int
    margin: float


@dataclass(frozen=True, kw_only=True)
class ChoiceAgreement:
    """How often two engines chose alike.

    Attributes:
        lengths: tokens of every text that was given to both, each with a choice behind it.
        differences: unequal choices.
    """

    lengths: tuple[int, ...]
    differences: tuple[ChoiceDifference, ...]

    @property
    def num_positions(self) -> int:
        """Choices of each engine."""
        return sum(self.lengths)

    @property
    def num_identical(self) -> int:
        """Texts in which all choices were the same."""
        return len(self.lengths) - len({difference.sequence for difference in self.differences})

    @property
    def share(self) -> float:
        """Equal choices among all; 1 where there are none."""
        return 1 - len(self.differences) / self.num_positions if self.num_positions else 1.0

    @property
    def largest_margin(self) -> float:
        """The clearest choice that differs; 0 if none does."""
        return max((difference.margin for difference in self.differences), default=0.0)


def compare_choices(
    one: Engine, other: Engine, sequences: Iterable[Sequence[int]], *, chunk: int = _CHUNK
) -> ChoiceAgreement:
    """Compare the choices of two engines behind every token of some texts, which are given `chunk` tokens at a time.

    Raises:
        ContextWindowError, TokenError: a text is none for these engines.
    """
    lengths: list[int] = []
    differences: list[ChoiceDifference] = []
    for tokens in sequences:
        held_one, held_other = one.new_sequence(), other.new_sequence()
        for start in range(0, len(tokens), chunk):
            given = tokens[start : start + chunk]
            (one_NV,), (other_NV,) = one.step([(held_one, given)], "all"), other.step([(held_other, given)], "all")
            mine_N, theirs_N = one_NV.argmax(1), other_NV.argmax(1)
            differences += [
                ChoiceDifference(
                    sequence=len(lengths),
                    position=start + row,
                    margin=float(logits_V[mine_N[row]] - logits_V[theirs_N[row]]),
                )
                for row, logits_V in enumerate(one_NV)
                if mine_N[row] != theirs_N[row]
            ]
        one.close(held_one)
        other.close(held_other)
        lengths.append(len(tokens))
    return ChoiceAgreement(lengths=tuple(lengths), differences=tuple(differences))
