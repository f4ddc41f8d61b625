"""Prior probabilities of choices in an answer: of the values of an enum, of the tools to call, of a call at all.

The model's probability of a choice is multiplied by its prior. Where other values are allowed, the prior is a mixture: of
the others nothing is known. A choice is several tokens, so each token gets the share of the prior that continues with it:
log P(values that begin with text and token) - log P(values that begin with text). Over all tokens of a choice the shares are
the prior, however it is tokenized. Drafts do not know it, so fewer of them are accepted.

Shapes: V vocabulary.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.decoding.logits import LogitsProcessor
from openafm.tokenizer.bpe import Tokenizer


@dataclass(frozen=True, kw_only=True)
class PriorChoice:
    """A choice of an answer: one of the values after the first `opening`.

    The answer begins with `prefix`; the opening follows anywhere after it, or with `is_next` directly. `values` are log
    weights by text, up to and with the byte that ends the value; no text begins another one. `others` is the log weight of
    all other values, of which nothing is known; without it there are none.
    """

    opening: bytes
    values: Mapping[bytes, float]
    prefix: bytes = b""
    is_next: bool = False
    others: float = -math.inf

    def begun(self, answer: bytes) -> bytes | None:
        """Return the part of the value that the answer has; None if it is not where two or more values are possible."""
        if not answer.startswith(self.prefix):
            return None
        start = answer.find(self.opening, len(self.prefix))
        if start < 0 or (self.is_next and start > len(self.prefix)):
            return None
        part = answer[start + len(self.opening) :]
        count = sum(value.startswith(part) and value != part for value in self.values)
        return part if count > 1 or (count and self.others > -math.inf) else None

    def shares(self, begun: bytes, tokens: TokensByByte) -> tuple[float, dict[int, float]]:
        """Return log shares of the weights after `begun`: of tokens that leave all values, and of each that does not."""
        following: defaultdict[int, list[tuple[bytes, float]]] = defaultdict(list)
        for value, weight in self.values.items():
            if value.startswith(begun) and value != begun:
                following[value[len(begun)]].append((value[len(begun) :], weight))
        whole = _log_sum([self.others, *(weight for rests in following.values() for _, weight in rests)])
        found: dict[int, float] = {}
        for byte, rests in following.items():
            rests.sort()
            texts, by_text = [text for text, _ in rests], dict(rests)
            for token in tokens.beginning(byte):
                text = tokens.texts[token]
                first = last = bisect.bisect_left(texts, text)
                while last < len(texts) and texts[last].startswith(text):
                    last += 1
                ended = (by_text[text[:size]] for size in range(1, len(text)) if text[:size] in by_text)
                if weights := [*(weight for _, weight in rests[first:last]), *ended]:
                    found[token] = _log_sum([self.others, *weights]) - whole
        return self.others - whole, found


class TokensByByte:
    """The texts of all tokens, and the tokens by the first byte of their texts. Special tokens have no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.texts = tokenizer.vocabulary()
        self._tokens: defaultdict[int, list[int]] = defaultdict(list)
        for token, text in enumerate(self.texts):
            if text:
                self._tokens[text[0]].append(token)

    def beginning(self, byte: int) -> Sequence[int]:
        """Return the tokens that begin with this byte."""
        return self._tokens.get(byte, ())


class ChoicePrior(LogitsProcessor):
    """Multiply the probabilities of the values of choices with their priors."""

    def __init__(self, choices: Sequence[PriorChoice], tokens: TokensByByte) -> None:
        self._choices, self._tokens = choices, tokens
        self._text, self._num_read = b"", 0

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        if len(answer) < self._num_read:
            self._text, self._num_read = b"", 0
        self._text += b"".join(self._tokens.texts[token] for token in answer[self._num_read :])
        self._num_read = len(answer)
        for choice in self._choices:
            if (begun := choice.begun(self._text)) is not None:
                elsewhere, shares = choice.shares(begun, self._tokens)
                if elsewhere == -math.inf:
                    elsewhere = 0.0  # the grammar forbids these tokens
                logits_V += np.float32(elsewhere)
                for token, share in shares.items():
                    logits_V[token] += share - elsewhere


class CallPrior(LogitsProcessor):
    """Add the log odds of a tool call against text to the first token of calls, where the answer begins."""

    def __init__(self, calls_token: int, log_odds: float) -> None:
        self._calls_token, self._log_odds = calls_token, np.float32(log_odds)

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        if not answer:
            logits_V[self._calls_token] += self._log_odds


def _log_sum(weights: Sequence[float]) -> float:
    highest = max(weights)
    return highest + math.log(sum(math.exp(weight - highest) for weight in weights))
