"""Steps that change or record the logits of each choice, before the grammar's mask and the sampler.

Shapes: V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class LogitsProcessor(ABC):
    """Base of processors. One instance serves one answer."""

    @abstractmethod
    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        """Change `logits_V` in place. `answer` holds the tokens of the answer so far."""


class LogitBias(LogitsProcessor):
    """Add a number to the logits of chosen tokens. Ids outside the vocabulary are an `IndexError` of `process`."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens = np.fromiter(bias.keys(), np.intp, len(bias))
        self._values = np.fromiter(bias.values(), np.float32, len(bias))

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        logits_V[self._tokens] += self._values


class OccurrencePenalty(LogitsProcessor):
    """Lower the logits of tokens that the answer already has: `frequency` for each occurrence, `presence` once."""

    def __init__(self, *, frequency: float, presence: float) -> None:
        self._frequency, self._presence = frequency, presence

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        if answer:
            tokens, counts = np.unique(np.asarray(answer), return_counts=True)
            logits_V[tokens] -= (self._frequency * counts + self._presence).astype(np.float32)


class RepetitionPenalty(LogitsProcessor):
    """Divide positive logits of tokens that prompt or answer already have by `penalty`, multiply negative ones
    (arXiv 1909.05858).

    Unlike `OccurrencePenalty` it depends on the scale of the logits, and counts neither occurrences nor distance.
    """

    def __init__(self, penalty: float, prompt: Sequence[int] = ()) -> None:
        self._penalty, self._prompt = np.float32(penalty), np.unique(np.asarray(prompt, np.intp))

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        tokens = np.union1d(self._prompt, np.asarray(answer, np.intp)).astype(np.intp)
        seen = logits_V[tokens]
        logits_V[tokens] = np.where(seen > 0, seen / self._penalty, seen * self._penalty)


class LikelyCalls(LogitsProcessor):
    """Let an answer begin with tool calls only if these have at least half of the probability.

    Without it, greedy decoding calls a tool at 0.2 if 0.8 is spread over many first words of texts.
    """

    def __init__(self, calls_token: int, vocab_size: int) -> None:
        self._calls_token, self._vocab_size = calls_token, vocab_size  # of the tokenizer; the model may have more rows

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        used_V = logits_V[: self._vocab_size]
        highest = used_V.max()
        if answer or not np.isfinite(highest):
            return
        weights_V = np.exp(used_V - highest)
        if 2 * weights_V[self._calls_token] < weights_V.sum():
            used_V[self._calls_token] = -np.inf


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its natural log probability."""

    token: int
    log_probability: float


class ScoreRecorder(LogitsProcessor):
    """Record the model's distribution of the latest choice. Put it first, before processors that change the logits.

    The distribution is that of the model: without temperature, top-k, top-p, penalties and the grammar's mask.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size  # of the tokenizer; the model may have more rows
        self._position = -1
        self._logits_V = np.zeros(0, np.float32)

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        self._position, self._logits_V = len(answer), logits_V[: self._vocab_size].copy()

    def scores(self, position: int, token: int, num_top: int) -> tuple[TokenScore, list[TokenScore]]:
        """Return the score of the token at `position` of the answer, and those of the `num_top` likeliest tokens.

        A token that was forced by the grammar has no distribution: its log probability is 0 and it is the only alternative.
        """
        if position != self._position:
            return TokenScore(token, 0.0), [TokenScore(token, 0.0)][:num_top]
        logits_V = self._logits_V.astype(np.float64)
        highest = logits_V.max()
        logits_V -= highest + np.log(np.exp(logits_V - highest).sum())
        num_top = min(num_top, len(logits_V))
        top = np.argpartition(-logits_V, num_top - 1)[:num_top] if num_top else np.zeros(0, np.intp)
        top = top[np.argsort(-logits_V[top], kind="stable")]
        return TokenScore(token, float(logits_V[token])), [TokenScore(int(each), float(logits_V[each])) for each in top]
