"""Requests for steps: the tokens of each sequence, the chunk that one computation takes, and the handle of the caller.

Shapes: N tokens of one sequence in a step, V vocabulary.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.runtime.engines.base import Cache, Engine, InsertedEmbeddings, Sequence


class PendingError(UsageError):
    """The result of a step was requested after it had been taken or abandoned."""


@dataclass(slots=True)
class TokenChunk:
    """Tokens that one computation appends to a cache, after `cache.length`.

    Attributes:
        start: position of the first token.
        num_wanted: logits are returned for the last `num_wanted` tokens.
    """

    request: StepRequest
    entry: StepEntry
    start: int
    tokens: array[int]
    num_wanted: int

    @property
    def cache(self) -> Cache:
        return self.entry.cache

    @property
    def engine(self) -> Engine:
        """The engine of the sequence, which may differ from that of the request in its adapter."""
        return self.entry.sequence.engine

    @property
    def inserted(self) -> list[InsertedEmbeddings]:
        """Embeddings that replace those of tokens in this chunk, with positions relative to its first token."""
        stop = self.start + len(self.tokens)
        cuts = (each.cut(self.start, stop) for each in (*self.entry.sequence.inserted, *self.entry.inserted))
        return [cut for cut in cuts if cut is not None]


class StepEntry:
    """Tokens for one sequence. They may be computed in chunks: the cache grows with each, the sequence at the end.

    `inserted` holds embeddings that replace those of tokens, by position in the sequence.
    """

    __slots__ = ("_outputs", "cache", "inserted", "sequence", "tokens", "wants_all")

    def __init__(
        self,
        sequence: Sequence,
        cache: Cache,
        tokens: array[int],
        wants_all: bool,
        inserted: tuple[InsertedEmbeddings, ...] = (),
    ) -> None:
        self.sequence, self.cache, self.tokens = sequence, cache, tokens
        self.wants_all, self.inserted = wants_all, inserted
        self._outputs: list[NDArray[np.float32]] = []

    @property
    def num_left(self) -> int:
        """Tokens to compute, including earlier ones that a cache with windows has dropped."""
        return self.sequence.length + len(self.tokens) - self.cache.length

    @property
    def is_behind(self) -> bool:
        """True if tokens of the sequence itself must be recomputed first."""
        return self.cache.length < self.sequence.length

    def chunk(self, request: StepRequest, most: int) -> TokenChunk:
        """Return the next tokens to compute for `request`, at most `most`."""
        start = self.cache.length
        if self.is_behind:
            return TokenChunk(request, self, start, self.sequence.tokens[start : start + most], 0)
        done = start - self.sequence.length
        tokens = self.tokens[done : done + most]
        is_last = done + len(tokens) == len(self.tokens)
        return TokenChunk(request, self, start, tokens, len(tokens) if self.wants_all else int(is_last))

    def store(self, chunk: TokenChunk, logits_NV: NDArray[np.float32]) -> None:
        """Store the result of a chunk and extend the cache."""
        if chunk.num_wanted:
            self._outputs.append(logits_NV)
        self.cache.length = chunk.start + len(chunk.tokens)

    def commit(self) -> None:
        """Append the tokens to the sequence."""
        self.sequence.tokens.extend(self.tokens)
        self.sequence.inserted += self.inserted

    def release(self) -> None:
        """Free the sequence for other requests; drop computed tokens that were not committed."""
        if self.cache.length > self.sequence.length:
            self.cache.truncate(self.sequence.length)
        self.sequence.holder = None

    def logits(self) -> NDArray[np.float32]:
        """Return the logits that the caller asked for: [V] after the last token, or [N, V]."""
        if not self.wants_all:
            last_V: NDArray[np.float32] = self._outputs[0][0]
            return last_V
        return self._outputs[0] if len(self._outputs) == 1 else np.concatenate(self._outputs)


_turns = itertools.count()


@dataclass(slots=True, eq=False)
class StepRequest:
    """One call of `Engine.step` or `Engine.begin`, or another exclusive use of sequences. All its entries succeed or none.

    Attributes:
        is_awaited: a thread waits for the end, or will soon.
        thread: the thread that made the request.
        turn: requests with lower numbers are computed first.
        is_inline: computed in the thread of the caller that waits for it.
        is_abandoned: the caller no longer waits for the result.
        is_taken: the result was requested.
        is_holding: no other request can use the sequences.
        runs_alone: a computation together with other requests failed.
    """

    engine: Engine
    is_awaited: bool
    entries: list[StepEntry] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)
    turn: int = field(default_factory=lambda: next(_turns))
    is_inline: bool = False
    is_abandoned: bool = False
    is_taken: bool = False
    is_holding: bool = False
    runs_alone: bool = False
    error: BaseException | None = None
    _latch: threading.Lock = field(default_factory=threading.Lock)  # held until the end; an Event takes ten times as long

    def __post_init__(self) -> None:
        self._latch.acquire()

    def end(self) -> None:
        """Wake the caller that waits for the end. Idempotent; called with the scheduler's lock."""
        if self._latch.locked():  # a later call may find the caller holding it
            self._latch.release()

    def wait(self) -> None:
        """Wait for the end. Called once."""
        self._latch.acquire()

    @property
    def is_computed(self) -> bool:
        return all(not entry.num_left for entry in self.entries)

    def go_last(self) -> None:
        """Let the other requests in the queue go first."""
        self.turn = next(_turns)

    def hold(self) -> None:
        """Reserve the sequences for this request."""
        self.is_holding = True
        for entry in self.entries:
            entry.sequence.holder = self

    def release(self) -> None:
        """Free the sequences. Idempotent."""
        if self.is_holding:
            for entry in self.entries:
                entry.release()
            self.is_holding = False


class Pending:
    """A step that `Engine.begin` started. Its sequences cannot be used otherwise until `result` or `abandon`.

    Leaving it as a context manager without the result, or dropping the last reference, abandons the step.
    """

    def __init__(self, request: StepRequest) -> None:
        self._request = request

    def result(self) -> list[NDArray[np.float32]]:
        """Return what `Engine.step` returns, once, and append the tokens to the sequences.

        Raises:
            PendingError: the result was taken or abandoned before.
            OpenAFMError: an error of the engine; the sequences are unchanged.
        """
        return self._request.engine.scheduler.finish(self._request)

    def abandon(self) -> None:
        """Restore the sequences. Does nothing once the result has been taken."""
        self._request.engine.scheduler.abandon(self._request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abandon()

    def __del__(self) -> None:
        # May run in any thread at any place, so it takes no lock. The next call that needs the sequences releases them.
        self._request.is_abandoned = True
