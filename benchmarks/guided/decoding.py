"""Decode random logits under a grammar and measure the cost of masks."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.decoding.matcher import Matcher
from openafm.tokenizer.bpe import Tokenizer

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass
class Tally:
    """Counts over all cases."""

    num_invalid: int = 0
    num_cut_off: int = 0
    num_tokens: int = 0
    num_forced: int = 0
    num_masks: int = 0
    mask_s: float = 0.0
    compile_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


class RandomLogits:
    """Rows of noise [V], and bonuses [V] for tokens that lead to the end: outside of strings, in strings, in names."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows_RV = rng.normal(size=(16, tokenizer.vocab_size)).astype(np.float32)
        self._rows_R2V = np.concatenate([rows_RV, rows_RV], axis=1)  # any V consecutive values form a row
        texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        outside = {b"}": 1.0, b"]": 1.0, b'"': 0.5, b"n": 0.5, b",": 0.4}
        self._outside_V = np.array([outside.get(text[:1], 0.0) - _opens(text[1:]) for text in texts], np.float32)
        self._outside_V[tokenizer.special.turn_end] = 1.0
        inside = {bytes([byte]): 0.5 for byte in (*range(128), *"é".encode())}  # bytes that patterns need
        self._inside_V = np.array(
            [1 - _opens(text) if text[:1] == b'"' else inside.get(text, 0.0) for text in texts], np.float32
        )
        later = {str(digit).encode(): 0.1 * digit for digit in range(10)}  # skips optional properties
        self._name_V = np.array([later.get(text, 0.0) for text in texts], np.float32)

    def row(self, chooser: random.Random, text: bytes, length: int, patience: int) -> NDArray[np.float32]:
        """Logits [V] after `text` of `length` tokens; the end becomes likelier from token number `patience` on."""
        num_rows, vocab_size = len(self._rows_R2V), len(self._outside_V)
        start = chooser.randrange(vocab_size)
        noise_V = self._rows_R2V[chooser.randrange(num_rows), start : start + vocab_size]
        urgency = 0.3 * max(0, length - patience) / chooser.choice((0.5, 1.0, 4.0))
        return noise_V + self._bonus(text) * np.float32(urgency) if urgency else noise_V

    def _bonus(self, text: bytes) -> NDArray[np.float32]:
        _, quote, string = STRING.sub(b"", text).partition(b'"')
        if not quote:
            return self._outside_V
        return self._name_V if string in (b"field_", b"Class") else self._inside_V


def _opens(text: bytes) -> float:
    """Return a penalty for tokens that start something new near the end."""
    return 0.3 * sum(text.count(sign) for sign in (b",", b"{", b"["))


def write_answer(
    tokenizer: Tokenizer, matcher: Matcher, logits: RandomLogits, chooser: random.Random, limit: int, tally: Tally
) -> list[int]:
    """Return the tokens of an answer; the stop token is included unless `limit` is reached first."""
    tokens: list[int] = []
    text = b""
    patience = chooser.randrange(60)
    while len(tokens) < limit and (not tokens or tokens[-1] != tokenizer.special.turn_end):
        new = list(matcher.forced())
        tally.num_forced += len(new)
        if not new:
            row_V = logits.row(chooser, text, len(tokens), patience)
            start_s = time.process_time()
            mask_V = matcher.mask()
            tally.mask_s += time.process_time() - start_s
            tally.num_masks += 1
            if not mask_V.any():
                raise AssertionError("the grammar allows no token")
            new = [int(np.where(mask_V, row_V, -np.inf).argmax())]
        matcher.accept(new)
        tokens += new
        text += tokenizer.decode_bytes(new)
    tally.num_tokens += len(tokens)
    return tokens
