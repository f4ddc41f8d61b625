"""What generation asks of an engine, whatever computes it: feed tokens to sequences, get logits back.

Prefill, decoding and the verification of drafts are the same call, `Engine.step`. Sampling, grammars and stopping live
outside. An implementation gives a `Cache` and `_forward`; checks and the all-or-nothing rule are here, once, and what many
threads ask for comes together in scheduler.py.
Imports no tensor library.

Shapes: N tokens of one sequence in a step, V vocabulary.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_file
from openafm.runtime.batching.pending import Job, Pending, Request, TokenChunk
from openafm.runtime.batching.scheduler import Computed, Scheduler
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.engines.snapshot import (
    SequenceSnapshot,
    SnapshotMismatchError,
    read_snapshot,
    snapshot_parts,
    write_snapshot,
)

LogitsOf: TypeAlias = Literal["last", "all"]
_TOKEN = "i"  # the array type of token ids: 4 bytes each


class ContextWindowError(OpenAFMError):
    """Tokens do not fit the model's context window. Raised before anything is computed; the sequence is as it was."""

    def __init__(self, token_count: int, context_length: int) -> None:
        super().__init__(
            f"{token_count} tokens do not fit the model's context window of {context_length};"
            " shorten the conversation or start a new one"
        )
        self.token_count, self.context_length = token_count, context_length


class SequenceError(UsageError):
    """A sequence that this call cannot take: closed, of another engine, or named twice in one step."""


class RollbackError(UsageError):
    """A length beyond what the sequence holds, to go back to or to fork at."""


class TokenError(UsageError):
    """No tokens at all, or an id outside the model's vocabulary."""


class Cache(ABC):
    """Keys and values of one sequence, as an engine keeps them. Tokens beyond `length` do not count."""

    length: int = 0

    def truncate(self, length: int) -> None:
        """Drop what comes after the first `length` tokens.

        A cache that forgets may be unable to go on from there. Then it drops more, down to nothing: the engine computes what
        is missing again.
        """
        self.length = length

    @abstractmethod
    def copy(self, length: int) -> Cache:
        """An independent copy of the first `length` tokens; of fewer where `truncate` would drop more."""

    @abstractmethod
    def memory(self) -> dict[int, int]:
        """Bytes of the memory it stands on, by address; caches that share some name the same addresses."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The first `length` tokens as plain arrays by name."""

    @abstractmethod
    def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
        """Take over what `arrays` of an equal engine gave.

        Raises:
            KeyError, ValueError: an array is missing or has another shape or dtype.
        """


class Sequence:
    """A handle on tokens that an engine holds. Its memory goes with `Engine.close`, or with the handle."""

    def __init__(self, engine: Engine, cache: Cache, tokens: array[int]) -> None:
        self._engine = engine
        self._cache: Cache | None = cache
        self._tokens = tokens
        self._holder: Request | None = None  # whose own it is until that is over

    @property
    def length(self) -> int:
        """Tokens it holds; 0 once closed."""
        return len(self._tokens)

    @property
    def tokens(self) -> array[int]:
        """The tokens it holds, as 32-bit integers, for reading; none once closed."""
        return self._tokens

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values it has. A cache that forgets may lack some, which the next step computes again."""
        return 0 if self._cache is None else self._cache.length

    @property
    def is_closed(self) -> bool:
        return self._cache is None


class Engine(ABC):
    """A model that holds sequences of tokens. Calls from several threads are safe: one step runs at a time (scheduler.py).

    Args:
        vocab_size: ids run from 0 to `vocab_size - 1`; may exceed the tokenizer's.
        context_length: the most tokens a sequence can hold.
        signature: what snapshots are bound to: equal only for engines that compute the same and keep it alike.

    Attributes:
        costs: what its steps have taken.
    """

    combines: ClassVar[bool] = False
    """Whether what several threads ask for is computed at once: where a row's bits do not depend on those beside it."""

    forks_share_memory: ClassVar[bool] = False
    """Whether a fork costs next to nothing: it stands on the same memory until one of the two writes to it."""

    def __init__(self, *, vocab_size: int, context_length: int, signature: str) -> None:
        self.vocab_size, self.context_length, self.signature = vocab_size, context_length, signature
        self.costs = StepCosts()
        self._scheduler = Scheduler(combines=self.combines)

    @abstractmethod
    def _new_cache(self) -> Cache:
        """An empty cache."""

    @abstractmethod
    def _forward(self, chunks: List[TokenChunk]) -> list[NDArray[np.float32]]:
        """Compute chunks of different sequences, checked, one at least; one call at a time.

        Returns the logits [num_wanted, V] of each. Writes keys and values behind `cache.length`, which stays as it is.
        """

    def _start(self, chunks: List[TokenChunk]) -> Callable[[], Computed] | None:
        """Begin `_forward` in another thread and return what waits for it; None where there is no such thread.

        What is returned may be called again when it was interrupted.
        """
        return None

    def new_sequence(self) -> Sequence:
        """An empty sequence."""
        return Sequence(self, self._new_cache(), array(_TOKEN))

    def step(self, batch: List[tuple[Sequence, List[int]]], logits: LogitsOf = "last") -> list[NDArray[np.float32]]:
        """Append tokens to sequences, one or many to each, and compute what may follow them.

        Returns fp32 logits for every entry: [V] after its last token, or [N, V] after each of its tokens; the caller may
        change them. All sequences take their tokens, or none does when anything is raised.

        Raises:
            ContextWindowError: a sequence would outgrow the context window.
            SequenceError: a sequence is closed, of another engine, twice in the batch, or in a step that has begun.
            TokenError: an entry without tokens, or a token outside the vocabulary.
        """
        request = Request(self, is_awaited=True)
        try:
            self._enqueue(request, batch, logits, may_start=False)
            self._scheduler.finish(request)
            return [job.logits() for job in request.jobs]
        except BaseException:
            self._scheduler.drop(request)
            raise

    def begin(self, batch: List[tuple[Sequence, List[int]]], logits: LogitsOf = "last") -> Pending:
        """Begin a step, whose `Pending.result` is what `step` returns: there may be something to do meanwhile.

        Until then its sequences are as they were, and no other call takes them.

        Raises:
            ContextWindowError, SequenceError, TokenError: as `step`, at once.
        """
        request = Request(self, is_awaited=False)
        try:
            self._enqueue(request, batch, logits, may_start=True)
        except BaseException:
            self._scheduler.drop(request)
            raise
        return Pending(request)

    def rollback(self, sequence: Sequence, num_tokens: int) -> None:
        """Take back the last `num_tokens`.

        At no cost, unless layers with windows have forgotten what the tokens before them saw: further back than some tens of
        tokens and a quarter of the window, the next step computes the whole sequence again.

        Raises:
            RollbackError: the sequence holds fewer.
            SequenceError: the sequence is closed, of another engine, or in a step that has begun.
        """
        with self._free(sequence) as (cache,):
            length = sequence.length - num_tokens
            if not 0 <= length <= sequence.length:
                raise RollbackError(f"cannot take {num_tokens} tokens back from a sequence of {sequence.length}")
            if length < cache.length:
                cache.truncate(length)
            del sequence._tokens[length:]

    def fork(self, sequence: Sequence, length: int | None = None) -> Sequence:
        """A second sequence with the same tokens, the first `length` of them if that is given; each goes its own way.

        Copies the keys and values, unless `forks_share_memory`.

        Raises:
            RollbackError: the sequence holds fewer.
            SequenceError: the sequence is closed, of another engine, or in a step that has begun.
        """
        with self._held(sequence) as cache:
            length = sequence.length if length is None else length
            if not 0 <= length <= sequence.length:
                raise RollbackError(f"cannot fork {length} tokens of a sequence of {sequence.length}")
            return Sequence(self, cache.copy(min(length, cache.length)), sequence._tokens[:length])

    def memory(self, sequence: Sequence) -> dict[int, int]:
        """Bytes of the memory that the sequence stands on, by address; forks that share some name the same addresses.

        Raises:
            SequenceError: the sequence is closed, of another engine, or in a step that has begun.
        """
        with self._free(sequence) as (cache,):
            return cache.memory()

    def snapshot(self, sequence: Sequence) -> bytes:
        """The sequence as bytes, for `restore` of an engine of the same model, in this process or a later one.

        Raises:
            SequenceError: the sequence is closed, of another engine, or in a step that has begun.
        """
        return write_snapshot(self._taken(sequence))

    def save(self, sequence: Sequence, path: Path | str) -> None:
        """Write `snapshot` to a file, atomically: a process killed meanwhile leaves what stood there before.

        Raises:
            SequenceError: the sequence is closed, of another engine, or in a step that has begun.
            OutOfSpaceError: the disk is full.
            OSError: the file cannot be written.
        """
        taken = self._taken(sequence)
        with atomic_file(Path(path)) as file:
            file.writelines(snapshot_parts(taken))

    def load(self, path: Path | str) -> Sequence:
        """The sequence that `save` wrote, without computing anything.

        Raises:
            SnapshotCorruptedError, SnapshotMismatchError: as `restore`.
            OSError: the file cannot be read.
        """
        return self.restore(Path(path).read_bytes())

    def restore(self, data: bytes | memoryview) -> Sequence:
        """The sequence that `snapshot` wrote, without computing anything.

        Raises:
            SnapshotCorruptedError: the bytes are damaged, cut short or no snapshot.
            SnapshotMismatchError: another model, kind of engine or version of openafm wrote it.
        """
        snapshot = read_snapshot(data)
        if snapshot.signature != self.signature:
            raise SnapshotMismatchError(
                f"the snapshot was made by '{snapshot.signature}', this is '{self.signature}'; prefill the tokens again"
            )
        if snapshot.length > self.context_length:
            raise SnapshotMismatchError(
                f"the snapshot holds {snapshot.length} tokens, this model {self.context_length}; prefill fewer tokens"
            )
        cache = self._new_cache()
        try:
            cache.load(snapshot.arrays, snapshot.length)
            tokens = array(_TOKEN, snapshot.arrays["tokens"].tolist())
            if len(tokens) != snapshot.length:
                raise ValueError(f"{len(tokens)} tokens where there are keys and values of {snapshot.length}")
            if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
                raise ValueError(f"tokens outside the vocabulary of {self.vocab_size}")
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotMismatchError(
                f"the snapshot does not fit this engine ({error}); prefill the tokens again"
            ) from error
        return Sequence(self, cache, tokens)

    def close(self, sequence: Sequence) -> None:
        """Free the sequence's memory. Closing twice is no error.

        Raises:
            SequenceError: the sequence is of another engine, or in a step that has begun.
        """
        if sequence.is_closed and sequence._engine is self:
            return
        with self._free(sequence):
            self._scheduler.forget(sequence)
            sequence._cache, sequence._tokens = None, array(_TOKEN)

    def _taken(self, sequence: Sequence) -> SequenceSnapshot:
        if sequence.num_computed < sequence.length:
            self._catch_up(sequence)
        with self._held(sequence) as cache:
            arrays = cache.arrays() | {"tokens": np.array(sequence._tokens, np.int32)}
            return SequenceSnapshot(signature=self.signature, length=cache.length, arrays=arrays)

    def _cache_of(self, sequence: Sequence) -> Cache:
        if sequence._engine is not self:
            raise SequenceError("this sequence belongs to another engine")
        if sequence._cache is None:
            raise SequenceError("this sequence is closed; make another with new_sequence")
        return sequence._cache

    @contextlib.contextmanager
    def _free(self, *sequences: Sequence) -> Iterator[list[Cache]]:
        """With the lock, once no other thread uses the sequences: their caches.

        Raises:
            SequenceError: one is closed, of another engine, or in a step that has begun.
        """
        while True:
            with self._scheduler.lock:
                caches = [self._cache_of(sequence) for sequence in sequences]
                for sequence in sequences:
                    holder = sequence._holder
                    if holder is not None:
                        break
                else:
                    yield caches
                    return
                if not holder.is_awaited and not holder.is_dropped:
                    raise SequenceError("a step of this sequence has begun; take its result first, or abandon it")
            self._scheduler.wait_for_release(holder)

    @contextlib.contextmanager
    def _held(self, sequence: Sequence) -> Iterator[Cache]:
        """The cache of a sequence that nobody else may use meanwhile; others go on with theirs.

        Raises:
            SequenceError: it is closed, of another engine, or in a step that has begun.
        """
        holder = Request(self, is_awaited=True)
        try:
            with self._free(sequence) as (cache,):
                holder.jobs = [Job(sequence, cache, array(_TOKEN), wants_all=False)]
                self._scheduler.hold(holder)
            yield cache
        finally:
            self._scheduler.drop(holder)

    def _enqueue(
        self, request: Request, batch: List[tuple[Sequence, List[int]]], logits: LogitsOf, *, may_start: bool
    ) -> None:
        with self._free(*[sequence for sequence, _ in batch]) as caches:
            if len(set(map(id, caches))) < len(caches):
                raise SequenceError("a sequence stands twice in one step; give all its tokens in one entry")
            for sequence, tokens in batch:
                self._check_tokens(sequence, tokens)
            request.jobs = [
                Job(sequence, cache, array(_TOKEN, tokens), logits == "all")
                for cache, (sequence, tokens) in zip(caches, batch, strict=True)
            ]
            self._scheduler.add(request, may_start=may_start)

    def _catch_up(self, sequence: Sequence) -> None:
        """Compute those of a sequence's tokens again that its cache had to drop."""
        request = Request(self, is_awaited=True)
        try:
            with self._free(sequence) as (cache,):
                request.jobs = [Job(sequence, cache, array(_TOKEN), wants_all=True)]
                self._scheduler.add(request, may_start=False)
            self._scheduler.finish(request)
        finally:
            self._scheduler.drop(request)

    def _check_tokens(self, sequence: Sequence, tokens: List[int]) -> None:
        if not tokens:
            raise TokenError("an entry of a step has no tokens; leave the sequence out of it")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            unknown = next(token for token in tokens if not 0 <= token < self.vocab_size)
            raise TokenError(f"token {unknown} is outside the model's vocabulary of {self.vocab_size}")
        if sequence.length + len(tokens) > self.context_length:
            raise ContextWindowError(sequence.length + len(tokens), self.context_length)
