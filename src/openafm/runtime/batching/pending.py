"""A step that has begun: what each of its sequences has still to be fed, and what came of it.

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
    from openafm.runtime.engines.base import Cache, Engine, Sequence


class PendingError(UsageError):
    """The result of a step that was taken or abandoned before."""


@dataclass(slots=True)
class TokenChunk:
    """Tokens that one computation appends to a cache, behind `cache.length`; of the last `num_wanted` logits are wanted."""

    request: Request
    job: Job
    start: int
    tokens: array[int]
    num_wanted: int

    @property
    def cache(self) -> Cache:
        return self.job.cache


class Job:
    """Tokens for one sequence, which may be computed in chunks: the cache grows with each, the sequence at the end."""

    __slots__ = ("_outputs", "cache", "sequence", "tokens", "wants_all")

    def __init__(self, sequence: Sequence, cache: Cache, tokens: array[int], wants_all: bool) -> None:
        self.sequence, self.cache, self.tokens, self.wants_all = sequence, cache, tokens, wants_all
        self._outputs: dict[int, NDArray[np.float32]] = {}  # by where a chunk began, so that nothing is kept twice

    @property
    def num_left(self) -> int:
        """Tokens to compute, those included that a cache which forgets had to drop."""
        return len(self.sequence._tokens) + len(self.tokens) - self.cache.length

    @property
    def is_behind(self) -> bool:
        """Whether tokens of the sequence itself have to be computed again first."""
        return self.cache.length < self.sequence.length

    def chunk(self, request: Request, most: int) -> TokenChunk:
        """What to compute next for the request that it is part of, at most so many tokens."""
        start = self.cache.length
        if self.is_behind:
            return TokenChunk(request, self, start, self.sequence.tokens[start : start + most], 0)
        done = start - self.sequence.length
        tokens = self.tokens[done : done + most]
        is_last = done + len(tokens) == len(self.tokens)
        return TokenChunk(request, self, start, tokens, len(tokens) if self.wants_all else int(is_last))

    def keep(self, chunk: TokenChunk, logits_NV: NDArray[np.float32]) -> None:
        """A chunk has been computed. Keeping it twice is no error."""
        if chunk.num_wanted:
            self._outputs[chunk.start] = logits_NV
        self.cache.length = chunk.start + len(chunk.tokens)

    def take_back(self) -> None:
        """Nothing of it has been computed."""
        if self.cache.length > self.sequence.length:
            self.cache.truncate(self.sequence.length)

    def logits(self) -> NDArray[np.float32]:
        """What its caller asked for: [V] after the last token, or [N, V]."""
        outputs = list(self._outputs.values())
        if not self.wants_all:
            last_V: NDArray[np.float32] = outputs[0][0]
            return last_V
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


_turns = itertools.count()


@dataclass(slots=True, eq=False)
class Request:
    """What one caller asked for at once: all of its jobs, or none when anything fails; or whoever else uses sequences."""

    engine: Engine
    is_awaited: bool  # somebody waits for its end
    jobs: list[Job] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)
    turn: int = field(default_factory=lambda: next(_turns))  # who has the lower one comes first
    is_over: bool = False  # it has been computed, or has failed
    is_dropped: bool = False  # nobody wants it any more
    is_taken: bool = False  # its result was asked for
    is_holding: bool = False  # its sequences can take part in nothing else
    runs_alone: bool = False  # it failed beside others
    error: Exception | None = None

    @property
    def is_computed(self) -> bool:
        return all(not job.num_left for job in self.jobs)

    def let_others_go_first(self) -> None:
        self.turn = next(_turns)


class Pending:
    """A step that `Engine.begin` began. Its sequences can take part in nothing else until its end.

    That is `result`, or `abandon`; leaving it as a context without the result, or losing the last reference, abandons it.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    def result(self) -> list[NDArray[np.float32]]:
        """The logits that `Engine.step` returns, once; with them the sequences take their tokens.

        Raises:
            PendingError: it was taken or abandoned before.
            OpenAFMError: what the engine raises; the sequences are as they were.
        """
        self._request.engine._scheduler.finish(self._request)
        return [job.logits() for job in self._request.jobs]

    def abandon(self) -> None:
        """Its sequences go back to what they were. Once the result is taken, this does nothing."""
        self._request.engine._scheduler.drop(self._request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abandon()

    def __del__(self) -> None:
        self._request.is_dropped = True  # whoever holds the lock next sees to it: this may run anywhere
