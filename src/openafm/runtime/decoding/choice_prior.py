"""Prior probabilities of choices in an answer: of the values of an enum, of the tools to call, of a call at all.

The model's probability of a choice is multiplied by its prior. A choice is several tokens, so each token gets the share of
the prior that goes on with it: log P(values that begin with text and token) - log P(values that begin with text). Over all
tokens of a choice the shares are the prior, however it is tokenized.

Shapes: V vocabulary.
"""

from __future__ import annotations

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
    """A choice that an answer makes once: one of the values after `opening`.

    `values` are log weights by text, up to and with the byte that ends the value; no text begins another one. `is_first`:
    the answer begins with the opening; otherwise it is anywhere.
    """

    opening: bytes
    values: Mapping[bytes, float]
    is_first: bool = False

    def begun(self, answer: bytes) -> bytes | None:
        """Return the part of the value that the answer has; None if it is not where two or more values are possible."""
        start = answer.find(self.opening)
        if start < 0 or (start and self.is_first):
            return None
        part = answer[start + len(self.opening) :]
        return part if sum(value.startswith(part) and value != part for value in self.values) > 1 else None

    def log_weight(self, text: bytes) -> float:
        """Return the log of the summed weights of the values that begin with `text`, or that it begins with."""
        found = [weight for value, weight in self.values.items() if value.startswith(text) or text.startswith(value)]
        highest = max(found, default=-math.inf)
        return highest if highest == -math.inf else highest + math.log(sum(math.exp(weight - highest) for weight in found))


class TokensByByte:
    """The texts of all tokens, and the tokens by the first byte of their texts. Special tokens have no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.texts = tokenizer.vocabulary()
        self._tokens: defaultdict[int, list[int]] = defaultdict(list)
        for token, text in enumerate(self.texts):
            if text:
                self._tokens[text[0]].append(token)

    def beginning(self, first_bytes: set[int]) -> list[int]:
        """Return the tokens that begin with one of these bytes."""
        return [token for byte in sorted(first_bytes) for token in self._tokens.get(byte, ())]


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
                self._add(logits_V, choice, begun)

    def _add(self, logits_V: NDArray[np.float32], choice: PriorChoice, begun: bytes) -> None:
        """Add its share of the prior to each token that goes on with a value; the grammar forbids the others."""
        whole = choice.log_weight(begun)
        following = {value[len(begun)] for value in choice.values if value.startswith(begun) and value != begun}
        for token in self._tokens.beginning(following):
            weight = choice.log_weight(begun + self._tokens.texts[token])
            if weight > -math.inf:
                logits_V[token] += weight - whole


class CallPrior(LogitsProcessor):
    """Add the log odds of a tool call against text to the first token of calls, where the answer begins."""

    def __init__(self, calls_token: int, log_odds: float) -> None:
        self._calls_token, self._log_odds = calls_token, np.float32(log_odds)

    def process(self, logits_V: NDArray[np.float32], answer: Sequence[int]) -> None:
        if not answer:
            logits_V[self._calls_token] += self._log_odds
