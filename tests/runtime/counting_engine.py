"""A fake engine with exact, cheap logits that records what it computes in each step."""

from __future__ import annotations

import threading
import zlib
from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.engines.base import Cache, Engine

VOCAB_SIZE, CONTEXT_LENGTH = 64, 4096
BAD_TOKEN = 63  # a step with it fails


def logits_after(tokens: List[int]) -> NDArray[np.float32]:
    """Return logits [V] that depend on all tokens and their order."""
    return np.random.default_rng(zlib.crc32(array("i", tokens).tobytes())).random(VOCAB_SIZE, np.float32)


class Tape(Cache):
    """Stores the tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def copy(self, length: int) -> Tape:
        copied = Tape()
        copied.tokens, copied.length = self.tokens[:length], length
        return copied

    def memory(self) -> dict[int, int]:
        return {id(self): len(self.tokens)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"tape": np.array(self.tokens[: self.length], np.int32)}

    def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
        self.tokens, self.length = arrays["tape"].tolist(), length


class CountingEngine(Engine):
    """Records each step in `steps`: the lengths of its chunks by the number of their sequence.

    `during` is called in the middle of every step with its number.
    """

    combines = True

    def __init__(self, during: Callable[[int], None] = lambda step: None) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH, signature="counting")
        self.during = during
        self.steps: list[dict[int, int]] = []
        self.threads: list[int] = []
        self._numbers: dict[int, int] = {}
        self._caches: list[Cache] = []  # references, so that ids are not reused
        self._busy = threading.Lock()

    def _new_cache(self) -> Cache:
        cache = Tape()
        self._numbers[id(cache)] = len(self._numbers)
        self._caches.append(cache)
        return cache

    def forward(self, chunks: List[TokenChunk]) -> list[NDArray[np.float32]]:
        assert self._busy.acquire(blocking=False), "two steps at a time"
        try:
            self.steps.append({self._numbers.get(id(chunk.cache), -1): len(chunk.tokens) for chunk in chunks})
            self.threads.append(threading.get_ident())
            outputs = []
            for chunk in chunks:
                tape = chunk.cache
                assert isinstance(tape, Tape)
                assert tape.length == chunk.start <= len(tape.tokens)
                tape.tokens[chunk.start :] = chunk.tokens
                stop = len(tape.tokens)
                rows = [logits_after(tape.tokens[: i + 1]) for i in range(stop - chunk.num_wanted, stop)]
                outputs.append(np.array(rows, np.float32).reshape(-1, VOCAB_SIZE))
            self.during(len(self.steps) - 1)
            if any(BAD_TOKEN in chunk.tokens for chunk in chunks):
                raise MemoryError("no memory for this one")
            return outputs
        finally:
            self._busy.release()


class OneByOneEngine(CountingEngine):
    """Computes each request separately, in the thread of its caller."""

    combines = False
