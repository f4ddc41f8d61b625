"""Comparison of two engines of one bundle: the same texts, teacher-forced, and the greedy choice at every position.

Imports no tensor library.

Shapes: N tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from openafm.runtime.batching.step_costs import MAX_DECODE_TOKENS
from openafm.runtime.engines.base import Engine


@dataclass(frozen=True, kw_only=True)
class ChoiceDifference:
    """A position after which two engines choose different tokens.

    Attributes:
        sequence: index of the text.
        position: index of the token after which they choose.
        margin: the first engine's logit of its own choice minus its logit of the other's.
    """

    sequence: int
    position: int
    margin: float


@dataclass(frozen=True, kw_only=True)
class ChoiceAgreement:
    """The choices of two engines on the same texts.

    Attributes:
        lengths: number of tokens of every text; there is one choice after each token.
        differences: choices that are not equal.
    """

    lengths: tuple[int, ...]
    differences: tuple[ChoiceDifference, ...]

    @property
    def num_positions(self) -> int:
        """Number of choices compared."""
        return sum(self.lengths)

    @property
    def num_identical(self) -> int:
        """Number of texts in which all choices are equal."""
        return len(self.lengths) - len({difference.sequence for difference in self.differences})

    @property
    def share(self) -> float:
        """Share of equal choices; 1 if there are no positions."""
        return 1 - len(self.differences) / self.num_positions if self.num_positions else 1.0

    @property
    def largest_margin(self) -> float:
        """Largest margin of a choice that differs; 0 if none does."""
        return max((difference.margin for difference in self.differences), default=0.0)


def compare_choices(
    one: Engine, other: Engine, sequences: Iterable[Sequence[int]], *, chunk: int = MAX_DECODE_TOKENS
) -> ChoiceAgreement:
    """Compare the choices of two engines after every token of some texts, fed `chunk` tokens at a time.

    Raises:
        ContextWindowError, TokenError: a text does not fit these engines.
    """
    lengths: list[int] = []
    differences: list[ChoiceDifference] = []
    for tokens in sequences:
        sequence_one, sequence_other = one.new_sequence(), other.new_sequence()
        for start in range(0, len(tokens), chunk):
            fed = tokens[start : start + chunk]
            (one_NV,), (other_NV,) = one.step([(sequence_one, fed)], "all"), other.step([(sequence_other, fed)], "all")
            one_N, other_N = one_NV.argmax(1), other_NV.argmax(1)
            differences += [
                ChoiceDifference(
                    sequence=len(lengths),
                    position=start + row,
                    margin=float(logits_V[one_N[row]] - logits_V[other_N[row]]),
                )
                for row, logits_V in enumerate(one_NV)
                if one_N[row] != other_N[row]
            ]
        one.close(sequence_one)
        other.close(sequence_other)
        lengths.append(len(tokens))
    return ChoiceAgreement(lengths=tuple(lengths), differences=tuple(differences))
