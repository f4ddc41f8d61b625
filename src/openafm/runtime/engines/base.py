"""The engine interface: feed tokens to sequences, get logits back.

Prefill, decoding and the verification of drafts are the same call, `Engine.step`. An implementation provides a `Cache` and
`forward`; this class checks inputs, restores sequences on failure and combines the requests of threads (scheduler.py).
Imports no tensor library.

Shapes: N tokens of one sequence in a step, V vocabulary.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import UsageError
from openafm.core.files import atomic_file
from openafm.core.processes import finalize
from openafm.core.regular_files import read_document
from openafm.runtime.batching.admission import PREFILL_CHUNK
from openafm.runtime.batching.pending import Pending, StepEntry, StepRequest, TokenChunk
from openafm.runtime.batching.scheduler import Scheduler
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.engines.sequence import (
    Cache,
    ContextWindowError,
    InsertedEmbeddings,
    InsertedEmbeddingsError,
    RollbackError,
    Sequence,
    SequenceError,
    TokenError,
)
from openafm.runtime.engines.snapshot import (
    SequenceSnapshot,
    SnapshotMismatchError,
    inserted_arrays,
    read_inserted,
    read_snapshot,
    snapshot_parts,
    write_snapshot,
)
from openafm.runtime.engines.step_checks import check_encoder, check_tokens, placed_embeddings

__all__ = [
    "Cache",
    "ContextWindowError",
    "Engine",
    "InsertedEmbeddings",
    "InsertedEmbeddingsError",
    "LogitsOf",
    "OtherBundleError",
    "RollbackError",
    "Sequence",
    "SequenceError",
    "StepInput",
    "TokenError",
    "WeightUpdateError",
]

LogitsOf: TypeAlias = Literal["last", "all"]
# A sequence, the tokens to append, and optionally embeddings that replace those of some of these tokens.
StepInput: TypeAlias = (
    tuple[Sequence, List[int]] | tuple[Sequence, List[int], List[InsertedEmbeddings]]
)  # fmt: skip
_TOKEN = "i"  # array type of token ids: 4 bytes


class OtherBundleError(UsageError):
    """Engines of different bundles, numerics or weights cannot share their steps."""

    def __init__(self) -> None:
        super().__init__("the engine beside which this one opens has other weights; pass one of the same bundle, or none")


class WeightUpdateError(UsageError):
    """The engine cannot take these weights."""


class StatesError(UsageError):
    """The engine does not return states."""


class Engine(ABC):
    """A model that holds sequences of tokens. Safe to share between threads; unusable in a forked process.

    Args:
        vocab_size: token ids run from 0 to `vocab_size - 1`; may exceed the tokenizer's vocabulary.
        context_length: the most tokens of a sequence.
        signature: identifies model, adapter, numerics and cache format; snapshots are bound to it.
        beside: an engine of the same bundle. Both have one scheduler, and a step may have sequences of both.

    Attributes:
        costs: measured times of steps.
        weights_version: 0, or the version of the latest `update_weights`.
        encoder_version: 0, or the version of the latest `update_weights` of the vision encoder.
    """

    combines: ClassVar[bool] = False
    """Requests of several threads are computed in one step; a row's logits then do not depend on the others in it."""

    forks_share_memory: ClassVar[bool] = False
    """A fork shares memory with its origin until one of them writes."""

    def __init__(self, *, vocab_size: int, context_length: int, signature: str, beside: Engine | None = None) -> None:
        self.vocab_size, self.context_length, self.signature = vocab_size, context_length, signature
        self.costs: StepCosts = StepCosts() if beside is None else beside.costs
        self.weights_version = self.encoder_version = 0
        self.scheduler: Scheduler = Scheduler(combines=self.combines) if beside is None else beside.scheduler
        self.scheduler.join()
        self._process = os.getpid()
        self._sequences: weakref.WeakSet[Sequence] = weakref.WeakSet()
        finalize(self, self.scheduler.leave, at_exit=True)

    @abstractmethod
    def _new_cache(self) -> Cache:
        """Return an empty cache."""

    @property
    def runner(self) -> object:
        """What computes the steps. Engines with the same one, whatever their adapters, are computed by one `forward`."""
        return self

    @abstractmethod
    def forward(self, chunks: List[TokenChunk]) -> list[NDArray[np.float32]]:
        """Compute chunks of different sequences, at least one. Called by the scheduler, one call at a time.

        The sequences are of this engine or of others with its runner, those of one engine beside each other.

        Return the logits [num_wanted, V] of each. Keys and values are written after `cache.length`, which stays unchanged.
        """

    def _states(self, chunk: TokenChunk) -> NDArray[np.float32]:
        """Return the normalized states [N, D] of the last layer. Called while no step is computed."""
        raise StatesError(f"{type(self).__name__} does not return states; use another engine for embeddings")

    def mean_state(self, tokens: List[int]) -> NDArray[np.float32]:
        """Return the mean [D] over tokens of the last layer's normalized states, the input of the head.

        Raises:
            StatesError: this engine does not return states.
            ContextWindowError, SequenceError, TokenError: as `step`.
        """
        sequence = self.new_sequence()
        try:
            check_tokens(sequence, tokens, self.vocab_size, self.context_length)
            cache = self._cache_of(sequence)
            entry = StepEntry(sequence, cache, array(_TOKEN, tokens), wants_all=True)
            request = StepRequest(self, is_awaited=True, entries=[entry])
            total_D: NDArray[np.float32] | None = None
            while entry.num_left:
                chunk = entry.chunk(request, PREFILL_CHUNK)
                with self.scheduler.computing:
                    sum_D = self._states(chunk).sum(0)
                cache.length = chunk.start + len(chunk.tokens)
                total_D = sum_D if total_D is None else total_D + sum_D
            assert total_D is not None
            return total_D / np.float32(len(tokens))
        finally:
            self.close(sequence)

    def update_weights(self, tensors: Mapping[str, Any], version: int) -> None:
        """Replace weights in place, such as by those of a training step; set `weights_version` to `version`.

        Sequences stay valid: the next step of a sequence recomputes its keys and values with the new weights. If weights of
        the vision encoder change, sequences with images do not: a step raises InsertedEmbeddingsError.

        Args:
            tensors: new values by parameter name; parameters that are not named keep theirs.

        Raises:
            WeightUpdateError: the engine cannot change its weights, or a name, shape or version does not fit.
        """
        raise WeightUpdateError(
            f"{type(self).__name__} cannot change its weights in place; write a bundle and open an engine of it,"
            " or set OPENAFM_ENGINE=torch"
        )

    def encode_views(self, views_VYXC: NDArray[np.uint8], num_tokens: int) -> NDArray[np.float32]:
        """Return the embeddings of an image's views, `num_tokens` of each, [V * num_tokens, D].

        Raises:
            InsertedEmbeddingsError: the model has no vision encoder.
        """
        raise InsertedEmbeddingsError("this model has no vision encoder; use a multimodal model for images")

    def release_vision(self) -> None:  # noqa: B027 most engines have nothing to free
        """Free the memory of a vision encoder that is loaded for images only. The next image loads it again."""

    def new_sequence(self) -> Sequence:
        """Return an empty sequence."""
        self._check_process()
        return self._add(Sequence(self, self._new_cache(), array(_TOKEN)))

    def step(self, batch: List[StepInput], logits: LogitsOf = "last") -> list[NDArray[np.float32]]:
        """Append tokens to sequences, one or more to each, and compute the logits of the next token.

        Return fp32 logits for every entry: [V] after its last token, or [N, V] after each; the caller may modify them. If
        the step raises, no sequence is changed. Sequences of engines beside this one keep their adapters.

        Raises:
            ContextWindowError: a sequence would exceed the context window.
            SequenceError: a sequence is closed, of another process or of an engine that is not beside this one, twice in the
                batch, or in a pending step.
            TokenError: an entry has no tokens, or one outside the vocabulary.
            InsertedEmbeddingsError: a span does not lie within its entry, or its vectors have another dim than the model.
        """
        request = StepRequest(self, is_awaited=True)
        try:
            self._enqueue(request, batch, logits)
            return self.scheduler.finish(request)
        except BaseException:
            self.scheduler.abandon(request)
            raise

    def begin(self, batch: List[StepInput], logits: LogitsOf = "last") -> Pending:
        """Start a step, so that the caller can do other work meanwhile. `Pending.result` returns what `step` returns.

        Until then its sequences are unchanged and no other call can use them.

        Raises:
            ContextWindowError, SequenceError, TokenError, InsertedEmbeddingsError: as `step`, immediately.
        """
        request = StepRequest(self, is_awaited=False)
        try:
            self._enqueue(request, batch, logits)
        except BaseException:
            self.scheduler.abandon(request)
            raise
        return Pending(request)

    def rollback(self, sequence: Sequence, num_tokens: int) -> None:
        """Remove the last `num_tokens` tokens.

        This is free unless a layer with a window has dropped positions that are now visible again: beyond a quarter of the
        window, at least 64 tokens, the next step recomputes the whole sequence.

        Raises:
            RollbackError: the sequence has fewer tokens.
            SequenceError: the sequence is closed, of another engine or process, or in a pending step.
        """
        with self._free(sequence) as (cache,):
            length = sequence.length - num_tokens
            if not 0 <= length <= sequence.length:
                raise RollbackError(f"cannot roll back {num_tokens} tokens of a sequence of {sequence.length}")
            if length < cache.length:
                cache.truncate(length)
            del sequence.tokens[length:]
            sequence.inserted = sequence.inserted_up_to(length)

    def fork(self, sequence: Sequence, length: int | None = None) -> Sequence:
        """Return an independent sequence with the same tokens, or with the first `length` of them.

        Copies keys and values unless `forks_share_memory`.

        Raises:
            RollbackError: the sequence has fewer tokens.
            SequenceError: the sequence is closed, of another engine or process, or in a pending step.
        """
        with self._held(sequence) as cache:
            length = sequence.length if length is None else length
            if not 0 <= length <= sequence.length:
                raise RollbackError(f"cannot fork {length} tokens of a sequence of {sequence.length}")
            copied = cache.copy(min(length, cache.length))
            return self._add(Sequence(self, copied, sequence.tokens[:length], sequence.inserted_up_to(length)))

    def memory(self, sequence: Sequence) -> dict[int, int]:
        """Return the bytes of each memory block of the sequence by address. Forks that share a block return the same.

        Raises:
            SequenceError: the sequence is closed, of another engine or process, or in a pending step.
        """
        with self._free(sequence) as (cache,):
            vectors = {each.vectors_LD.ctypes.data: each.vectors_LD.nbytes for each in sequence.inserted}
            return cache.memory() | vectors

    def snapshot(self, sequence: Sequence) -> bytes:
        """Return the sequence as bytes for `restore`, in this process or a later one of this user.

        Raises:
            SequenceError: the sequence is closed, of another engine or process, or in a pending step.
        """
        return write_snapshot(self._snapshot(sequence))

    def save(self, sequence: Sequence, path: Path | str) -> None:
        """Write `snapshot` to a file that only this user can read, atomically.

        Raises:
            SequenceError: the sequence is closed, of another engine or process, or in a pending step.
            OutOfSpaceError: the disk is full.
            OSError: the file cannot be written.
        """
        snapshot = self._snapshot(sequence)
        with atomic_file(Path(path), permissions=0o600) as file:
            file.writelines(snapshot_parts(snapshot))

    def load(self, path: Path | str) -> Sequence:
        """Return the sequence that `save` wrote, without computing anything.

        Raises:
            SnapshotCorruptedError, SnapshotMismatchError: as `restore`.
            OSError: the file cannot be read.
        """
        return self.restore(read_document(Path(path), max_bytes=None))

    def restore(self, data: bytes | memoryview) -> Sequence:
        """Return the sequence that `snapshot` wrote, without computing anything.

        Raises:
            SnapshotCorruptedError: the bytes are damaged, truncated, of another user, or not a snapshot.
            SnapshotMismatchError: another model, kind of engine or version of openafm wrote it.
        """
        self._check_process()
        snapshot = read_snapshot(data)
        snapshot.check(self.signature, self.context_length)
        cache = self._new_cache()
        try:
            inserted = read_inserted(snapshot, self.weights_version)
            cache.load(snapshot.arrays, snapshot.length)
            tokens = array(_TOKEN, snapshot.tokens(self.vocab_size))
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotMismatchError(
                f"the snapshot does not fit this engine ({error}); prefill the tokens again"
            ) from error
        return self._add(Sequence(self, cache, tokens, inserted))

    def close(self, sequence: Sequence) -> None:
        """Free the sequence's memory. Idempotent.

        Raises:
            SequenceError: the sequence is of another engine or process, or in a pending step.
        """
        if sequence.is_closed and sequence.engine is self:
            return
        with self._free(sequence):
            self.scheduler.forget(sequence)
            sequence.cache, sequence.tokens, sequence.inserted = None, array(_TOKEN), ()

    def _snapshot(self, sequence: Sequence) -> SequenceSnapshot:
        with self._free(sequence) as (cache,):
            is_behind = cache.length < sequence.length
        if is_behind:
            self._catch_up(sequence)
        with self._held(sequence) as cache:
            arrays = cache.arrays() | {"tokens": np.array(sequence.tokens, np.int32)} | inserted_arrays(sequence.inserted)
            return SequenceSnapshot(signature=self.signature, length=cache.length, arrays=arrays)

    def _add(self, sequence: Sequence) -> Sequence:
        self._sequences.add(sequence)
        return sequence

    def _drop_caches(self) -> None:
        """Make all sequences recompute their keys and values. Called while no step is computed."""
        for sequence in list(self._sequences):
            if sequence.cache is not None:
                sequence.cache.truncate(0)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise SequenceError(
                f"this engine was opened in process {self._process} and cannot be used in its fork {os.getpid()};"
                " open the model in the new process, or start it with spawn"
            )

    def _cache_of(self, sequence: Sequence) -> Cache:
        if sequence.engine.scheduler is not self.scheduler:
            raise SequenceError("this sequence belongs to another engine; use the engine that made it")
        if sequence.cache is None:
            raise SequenceError("this sequence is closed; make another with new_sequence()")
        return sequence.cache

    @contextlib.contextmanager
    def _free(self, sequence: Sequence) -> Iterator[list[Cache]]:
        """As `_all_free`, for a sequence of this engine only: others have another adapter."""
        if sequence.engine is not self:
            raise SequenceError("this sequence belongs to another engine; use the engine that made it")
        with self._all_free(sequence) as caches:
            yield caches

    @contextlib.contextmanager
    def _all_free(self, *sequences: Sequence) -> Iterator[list[Cache]]:
        """Hold the lock, once no other thread uses the sequences, and yield their caches.

        Raises:
            SequenceError: a sequence is closed, of another engine or process, or in a pending step.
        """
        self._check_process()  # before the lock, which another thread may have held at the fork
        while True:
            with self.scheduler.lock:
                holder = next((sequence.holder for sequence in sequences if sequence.holder is not None), None)
                if holder is None or holder.engine.scheduler is not self.scheduler:
                    yield [self._cache_of(sequence) for sequence in sequences]
                    return
                if not holder.is_awaited and not holder.is_abandoned:
                    raise SequenceError("a step of this sequence is pending; take its result or abandon it first")
            self.scheduler.wait_for_release(holder)

    @contextlib.contextmanager
    def _held(self, sequence: Sequence) -> Iterator[Cache]:
        """Reserve a sequence without holding the lock and yield its cache.

        Raises:
            SequenceError: the sequence is closed, of another engine or process, or in a pending step.
        """
        holder = StepRequest(self, is_awaited=True)
        try:
            with self._free(sequence) as (cache,):
                holder.entries = [StepEntry(sequence, cache, array(_TOKEN), wants_all=False)]
                holder.hold()
            yield cache
        finally:
            self.scheduler.abandon(holder)

    def _enqueue(self, request: StepRequest, batch: List[StepInput], logits: LogitsOf) -> None:
        with self._all_free(*[entry[0] for entry in batch]) as caches:
            if len(set(map(id, caches))) < len(caches):
                raise SequenceError("a sequence occurs twice in one step; put all its tokens in one entry")
            for cache, (sequence, tokens, *inserted) in zip(caches, batch, strict=True):
                check_tokens(sequence, tokens, self.vocab_size, self.context_length)
                spans = placed_embeddings(sequence, tokens, inserted[0]) if inserted and inserted[0] else ()
                check_encoder((*sequence.inserted, *spans), sequence.engine.encoder_version)
                request.entries.append(StepEntry(sequence, cache, array(_TOKEN, tokens), logits == "all", spans))
            self.scheduler.add(request)

    def _catch_up(self, sequence: Sequence) -> None:
        """Recompute the tokens of a sequence that its cache has dropped."""
        request = StepRequest(self, is_awaited=True)
        try:
            with self._free(sequence) as (cache,):
                check_encoder(sequence.inserted, self.encoder_version)
                request.entries = [StepEntry(sequence, cache, array(_TOKEN), wants_all=True)]
                self.scheduler.add(request)
            self.scheduler.finish(request)
        finally:
            self.scheduler.abandon(request)
