"""Keys and values of what prompts begin with, shared by all sequences of an engine: what many begin with is computed once.

An entry is a fork that never steps, found by its tokens. A new sequence begins as a fork of as much of an entry as the two
have in common. Openings, which many sessions share, and conversations, which grow long and are gone on with now and then,
have half of the memory each: so no conversation drives out an opening.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from openafm.core.errors import UsageError
from openafm.runtime.engines.base import Engine, Sequence

Kind: TypeAlias = Literal["opening", "conversation"]

LIMIT = "OPENAFM_PREFIX_CACHE_MB"
DEFAULT_MB = 512  # at the size of on_device.base, openings of 14,000 tokens and as many of conversations
LEAST_TOKENS = 16  # all prompts begin with some tokens of the template: no reason to keep or share memory
_TOKEN_BYTES = 4
_POLL_S = 0.05  # in which somebody who waits notices that he need not


class PrefixCacheLimitError(UsageError):
    """OPENAFM_PREFIX_CACHE_MB is no number of megabytes."""


class PrefixCache:
    """Beginnings that an engine has computed, least recently used ones dropped first. Safe to share between threads.

    Args:
        engine: whose sequences it takes and gives.
        most_bytes: of all entries together; 0 keeps none. Memory that entries of one kind share counts once; what an opening
            shares with a conversation counts for both, and what an entry shares with a running sequence counts as its own.
    """

    def __init__(self, engine: Engine, most_bytes: int) -> None:
        self._engine, self._most_bytes = engine, most_bytes
        self._stores: dict[Kind, _PrefixStore] = {
            kind: _PrefixStore(most_bytes // 2) for kind in ("opening", "conversation")
        }
        self._weights_version = engine.weights_version
        self._lock = threading.Lock()  # never held during a call of the engine
        self._computing: set[bytes] = set()
        self._computed = threading.Condition(self._lock)

    @property
    def num_bytes(self) -> int:
        """Memory of all entries, counted as the limit counts it."""
        with self._lock:
            return sum(store.num_bytes for store in self._stores.values())

    def may_keep(self, num_tokens: int) -> bool:
        """Whether so many tokens are worth an entry."""
        return self._most_bytes > 0 and num_tokens >= LEAST_TOKENS

    @contextlib.contextmanager
    def alone(self, tokens: List[int], cancelled: Callable[[], bool]) -> Iterator[None]:
        """For a block that computes these tokens and keeps them: who comes with the same meanwhile waits, then finds them.

        Waiting ends, and the block runs, when `cancelled` says so.
        """
        key, is_first = _key(tokens), False
        try:
            with self._computed:
                while key in self._computing and not cancelled():
                    self._computed.wait(_POLL_S)
                if key not in self._computing:
                    is_first = True
                    self._computing.add(key)
            yield
        finally:
            if is_first:
                with self._computed:
                    self._computing.discard(key)
                    self._computed.notify_all()

    def begin(self, tokens: List[int]) -> Sequence:
        """A new sequence that holds as many of the first of `tokens` as are known here, down to none."""
        key = _key(tokens)
        with self._lock:
            self._drop_old_weights()
            matches = [match for store in self._stores.values() for match in store.nearest(key)]
        for match in sorted(matches, key=lambda match: (-match.num_common, match.entry.num_tokens)):
            if match.num_common < LEAST_TOKENS:
                break
            forked = self._engine.fork(match.entry.sequence, match.num_common)
            if forked.num_computed == match.num_common:  # a cache that forgets may not go on from the middle of an entry
                with self._lock:
                    match.store.touch(match.entry)
                return forked
        return self._engine.new_sequence()

    def keep(self, sequence: Sequence, length: int, kind: Kind) -> None:
        """Remember the first `length` tokens of a sequence, as a fork of its own.

        Not kept: what is known, in part or whole, as the beginning of another entry; few tokens; what does not fit.
        """
        # A copy just to find that it does not fit could take the last memory of a device.
        if not self.may_keep(length) or sum(self._engine.memory(sequence).values()) > self._most_bytes:
            return
        if sequence.inserted:  # found by its tokens alone, another image would be taken for this one
            return
        key = _key(sequence.tokens[:length])
        with self._lock:
            self._drop_old_weights()
            store = self._stores[kind]
            if store.knows(key):
                return
        forked = self._engine.fork(sequence, length)
        if forked.num_computed == length:
            entry = _Prefix(key=key, sequence=forked, memory=self._engine.memory(forked))
            with self._lock:
                store.put(entry)

    def _drop_old_weights(self) -> None:
        if self._weights_version != self._engine.weights_version:
            self._weights_version = self._engine.weights_version
            for kind in self._stores:
                self._stores[kind] = _PrefixStore(self._most_bytes // 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Prefix:
    """A sequence that never steps, its tokens as a key, and its memory: bytes by address."""

    key: bytes
    sequence: Sequence
    memory: dict[int, int]

    @property
    def num_tokens(self) -> int:
        return len(self.key) // _TOKEN_BYTES


@dataclass(frozen=True, kw_only=True)
class _PrefixMatch:
    """An entry that has its first tokens in common with what was looked for."""

    store: _PrefixStore
    entry: _Prefix
    num_common: int


class _PrefixStore:
    """The entries of one kind. None begins with all of another: the longer one serves for both."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: dict[bytes, _Prefix] = {}  # the least recently used first
        self._keys: list[bytes] = []  # sorted, so that those with most in common are neighbors
        self._num_owners: Counter[int] = Counter()  # of every chunk of memory, by its address
        self.num_bytes = 0

    def nearest(self, key: bytes) -> list[_PrefixMatch]:
        """The entries between which `key` would stand; none has more in common with it than one of them."""
        place = bisect_right(self._keys, key)
        return [
            _PrefixMatch(store=self, entry=self._entries[other], num_common=_num_common(key, other))
            for other in self._keys[max(place - 1, 0) : place + 1]
        ]

    def touch(self, entry: _Prefix) -> None:
        """It was used just now."""
        if self._entries.pop(entry.key, None) is not None:
            self._entries[entry.key] = entry

    def knows(self, key: bytes) -> bool:
        """Whether an entry begins with all of `key`; it is then used once more."""
        place = bisect_left(self._keys, key)
        if place == len(self._keys) or not self._keys[place].startswith(key):
            return False
        self.touch(self._entries[self._keys[place]])
        return True

    def put(self, entry: _Prefix) -> None:
        """Take an entry in, unless it is known meanwhile or takes more memory than there is; others make room for it."""
        if sum(entry.memory.values()) > self._most_bytes or self.knows(entry.key):
            return
        place = bisect_left(self._keys, entry.key)
        if place > 0 and entry.key.startswith(self._keys[place - 1]):
            place -= 1
            self._drop(self._entries[self._keys[place]])
        self._entries[entry.key] = entry
        self._keys.insert(place, entry.key)
        self.num_bytes += sum(size for address, size in entry.memory.items() if not self._num_owners[address])
        self._num_owners.update(entry.memory.keys())
        while self.num_bytes > self._most_bytes:
            self._drop(next(iter(self._entries.values())))

    def _drop(self, entry: _Prefix) -> None:
        del self._entries[entry.key]
        del self._keys[bisect_left(self._keys, entry.key)]
        self._num_owners.subtract(entry.memory.keys())
        for address, size in entry.memory.items():
            if not self._num_owners[address]:
                del self._num_owners[address]
                self.num_bytes -= size


def prefix_cache_bytes() -> int:
    """OPENAFM_PREFIX_CACHE_MB in bytes, else the default.

    Raises:
        PrefixCacheLimitError: it is no number of megabytes.
    """
    chosen = os.environ.get(LIMIT, "")
    if chosen and not (chosen.isdecimal() and chosen.isascii()):
        raise PrefixCacheLimitError(f"{LIMIT} is '{chosen}'; give a number of megabytes, 0 for none, or leave it out")
    return int(chosen or DEFAULT_MB) * 2**20


def _key(tokens: List[int]) -> bytes:
    """Tokens so that bytes compare as they do."""
    return np.asarray(tokens, ">u4").tobytes()


def _num_common(some: bytes, others: bytes) -> int:
    """How many tokens both begin with."""
    length = min(len(some), len(others)) // _TOKEN_BYTES
    different = np.flatnonzero(np.frombuffer(some, np.uint32)[:length] != np.frombuffer(others, np.uint32)[:length])
    return int(different[0]) if len(different) else length
