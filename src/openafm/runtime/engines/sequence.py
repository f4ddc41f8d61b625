"""Sequences of an engine: their tokens, the cache of their keys and values, and the errors of wrong use.

Imports no tensor library.

Shapes: L positions, D model dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import OpenAFMError, UsageError

if TYPE_CHECKING:
    from openafm.runtime.batching.pending import StepRequest
    from openafm.runtime.engines.base import Engine


class ContextWindowError(OpenAFMError):
    """Tokens do not fit the model's context window. Raised before anything is computed; the sequence is unchanged."""

    def __init__(self, token_count: int, context_length: int) -> None:
        super().__init__(
            f"{token_count} tokens do not fit the model's context window of {context_length};"
            " shorten the conversation or start a new one"
        )
        self.token_count, self.context_length = token_count, context_length


class SequenceError(UsageError):
    """The call cannot use this sequence: closed, of another engine or process, twice in a step, or in a pending step."""


class RollbackError(UsageError):
    """The length to roll back to or to fork at exceeds the sequence's."""


class TokenError(UsageError):
    """An entry of a step has no tokens, or a token id outside the vocabulary."""


class InsertedEmbeddingsError(UsageError):
    """The span of embeddings does not lie within the entry's tokens, or they are not those of this model or its weights."""


@dataclass(frozen=True, eq=False)
class InsertedEmbeddings:
    """Vectors [L, D] that replace the embeddings of L tokens from index `start` on.

    `digest` identifies the content they were computed from, such as an image in a resolution mode. `offset` is the index of
    the first vector among those of the content. `weights_version` is that of the encoder that computed them.
    """

    start: int
    vectors_LD: NDArray[np.float32]
    digest: str
    offset: int = 0
    weights_version: int = 0

    @property
    def stop(self) -> int:
        return self.start + len(self.vectors_LD)

    def moved(self, offset: int) -> InsertedEmbeddings:
        """Return the same vectors for tokens `offset` further."""
        return replace(self, start=self.start + offset)

    def cut(self, start: int, stop: int) -> InsertedEmbeddings | None:
        """Return the part for positions start..stop-1, relative to `start`; None if there is none."""
        first, last = max(self.start, start), min(self.stop, stop)
        if first >= last:
            return None
        vectors_LD = self.vectors_LD[first - self.start : last - self.start]
        return replace(self, start=first - start, vectors_LD=vectors_LD, offset=self.offset + first - self.start)


class Insertion(NamedTuple):
    """Positions start..stop-1 whose embeddings are computed from the content with this digest."""

    start: int
    stop: int
    digest: str


@dataclass(frozen=True)
class PromptTokens:
    """Tokens, and which of them stand for content whose embeddings are inserted."""

    tokens: list[int]
    insertions: tuple[Insertion, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> PromptTokens:
        """Return a part. It must not divide an insertion."""
        start, stop, _ = part.indices(len(self.tokens))
        inside = (each for each in self.insertions if start <= each.start and each.stop <= stop)
        moved = (Insertion(first - start, last - start, digest) for first, last, digest in inside)
        return PromptTokens(self.tokens[part], tuple(moved))

    def __add__(self, later: PromptTokens) -> PromptTokens:
        moved = (Insertion(start + len(self), stop + len(self), digest) for start, stop, digest in later.insertions)
        return PromptTokens([*self.tokens, *later.tokens], (*self.insertions, *moved))

    def num_common(self, other: PromptTokens) -> int:
        """Return the length of the common prefix: equal tokens and equal inserted content."""
        length = min(len(self), len(other))
        different = np.flatnonzero(np.asarray(self.tokens[:length]) != np.asarray(other.tokens[:length]))
        starts = [each.start for each in {*self.insertions} ^ {*other.insertions}]
        return min([length, *starts, *different[:1].tolist()])


class Cache(ABC):
    """Keys and values of one sequence, as an engine stores them. Positions beyond `length` are undefined."""

    length: int = 0

    def truncate(self, length: int) -> None:
        """Drop the positions after the first `length`.

        A cache with windows may lack positions that the next token sees. It then drops more, possibly all; the engine
        recomputes what is missing.
        """
        self.length = length

    @abstractmethod
    def copy(self, length: int) -> Cache:
        """Return an independent copy of the first `length` positions, or of fewer where `truncate` would drop more."""

    @abstractmethod
    def memory(self) -> dict[int, int]:
        """Return the bytes of each memory block by its address. Caches that share a block return the same address."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the first `length` positions as arrays by name."""

    @abstractmethod
    def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
        """Load the arrays that `arrays` of an equal engine returned.

        Raises:
            KeyError, ValueError: an array is missing or has another shape or dtype.
        """


class Sequence:
    """Handle of the tokens that an engine holds. Its memory is freed by `Engine.close` or with the last reference.

    Attributes:
        cache: keys and values; None once closed.
        tokens: the tokens as 32-bit integers, for reading; empty once closed.
        inserted: embeddings that replaced those of tokens, by position.
        holder: the request that uses the sequence; None if it is free.
    """

    def __init__(
        self, engine: Engine, cache: Cache, tokens: array[int], inserted: tuple[InsertedEmbeddings, ...] = ()
    ) -> None:
        self.engine = engine
        self.cache: Cache | None = cache
        self.tokens = tokens
        self.inserted = inserted
        self.holder: StepRequest | None = None

    @property
    def length(self) -> int:
        """Number of tokens; 0 once closed."""
        return len(self.tokens)

    @property
    def num_computed(self) -> int:
        """Number of tokens with stored keys and values. The next step recomputes those that a window has dropped."""
        return 0 if self.cache is None else self.cache.length

    @property
    def is_closed(self) -> bool:
        return self.cache is None

    @property
    def content(self) -> PromptTokens:
        """The tokens with the insertions; pieces of one are joined, those of a part that was rolled back end with it."""
        spans: dict[tuple[int, str], int] = {}
        for each in self.inserted:
            key = each.start - each.offset, each.digest
            spans[key] = max(each.stop, spans.get(key, 0))
        insertions = (Insertion(start, stop, digest) for (start, digest), stop in spans.items())
        return PromptTokens(list(self.tokens), tuple(insertions))

    def inserted_up_to(self, length: int) -> tuple[InsertedEmbeddings, ...]:
        """Return the inserted embeddings of the first `length` positions."""
        return tuple(part.moved(0) for each in self.inserted if (part := each.cut(0, length)) is not None)
