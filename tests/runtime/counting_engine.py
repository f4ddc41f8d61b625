"""An engine that computes next to nothing, exactly, and writes down what it was asked to compute at once."""

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
from openafm.runtime.batching.scheduler import Computed
from openafm.runtime.engines.base import Cache, Engine

VOCAB_SIZE, CONTEXT_LENGTH = 64, 4096
BAD_TOKEN = 63  # computing it fails


def logits_after(tokens: List[int]) -> NDArray[np.float32]:
    """[V], of all tokens and their order."""
    return np.random.default_rng(zlib.crc32(array("i", tokens).tobytes())).random(VOCAB_SIZE, np.float32)


class Tape(Cache):
    """The tokens themselves."""

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
    """Keeps what came together in `runs`: the lengths of chunks by the place of their sequence in the order of making.

    `beside` is called in the middle of every computation, with its number.
    """

    combines = True

    def __init__(self, beside: Callable[[int], None] = lambda run: None) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH, signature="counting")
        self.beside = beside
        self.runs: list[dict[int, int]] = []
        self.threads: list[int] = []
        self._places: dict[int, int] = {}
        self._caches: list[Cache] = []  # kept, so that no other gets their ids
        self._busy = threading.Lock()

    def _new_cache(self) -> Cache:
        cache = Tape()
        self._places[id(cache)] = len(self._places)
        self._caches.append(cache)
        return cache

    def _forward(self, chunks: List[TokenChunk]) -> list[NDArray[np.float32]]:
        assert self._busy.acquire(blocking=False), "two steps at a time"
        try:
            self.runs.append({self._places.get(id(chunk.cache), -1): len(chunk.tokens) for chunk in chunks})
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
            self.beside(len(self.runs) - 1)
            if any(BAD_TOKEN in chunk.tokens for chunk in chunks):
                raise MemoryError("no memory for this one")
            return outputs
        finally:
            self._busy.release()


class OneByOneEngine(CountingEngine):
    """Its logits might depend on what is computed beside them."""

    combines = False


class BesideEngine(CountingEngine):
    """Has a thread for steps that take long, as all of its do by their costs; a step is over when `finishes` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.costs.record(1, 1.0)
        self.num_started = 0
        self.finishes = threading.Event()
        self.finishes.set()

    def _start(self, chunks: List[TokenChunk]) -> Callable[[], Computed] | None:
        self.num_started += 1
        outputs: list[list[NDArray[np.float32]]] = []
        errors: list[Exception] = []

        def run() -> None:
            self.finishes.wait()
            try:
                outputs.append(self._forward(chunks))
            except MemoryError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def wait() -> Computed:
            thread.join()
            if errors:
                raise errors[0]
            return outputs[0], 1.0

        return wait
