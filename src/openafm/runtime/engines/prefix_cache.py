"""Prefix cache: keys and values of prompt beginnings, shared by all sequences of an engine and computed once.

An entry is a fork that is never stepped, found by its tokens and the digests of its images. A new sequence starts as a fork
of the longest common prefix.
Openings (instructions and tools, shared by many sessions) and conversations have half of the memory each, so that long
conversations do not evict openings.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from openafm.runtime.engines.base import Engine, Sequence
from openafm.runtime.engines.cache_limits import cache_limit
from openafm.runtime.engines.sequence import PromptTokens

Kind: TypeAlias = Literal["opening", "conversation"]

LIMIT = "OPENAFM_PREFIX_CACHE_MB"
DEFAULT_MB = 512  # at the size of on_device.base, openings of 14,000 tokens and as many of conversations
LEAST_TOKENS = 16  # shorter prefixes are mostly template tokens
_TOKEN_BYTES = 4
_INSERTED = np.uint32(1 << 31)  # above all token ids
_POLL_S = 0.05  # interval in which a waiter checks for cancellation


class PrefixCache:
    """Computed prompt prefixes of an engine, evicted in least-recently-used order. Safe to share between threads.

    Args:
        engine: the engine of the sequences.
        most_bytes: limit for all entries; 0 disables the cache. Memory shared by entries of one kind counts once, by an
            opening and a conversation twice; memory shared with a running sequence counts fully.
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
        """Bytes of all entries, counted as for the limit."""
        with self._lock:
            return sum(store.num_bytes for store in self._stores.values())

    def free(self, num_bytes: int) -> int:
        """Evict conversations, then openings, until `num_bytes` are free or no entry is left. Return the bytes freed."""
        with self._lock:
            freed = 0
            for kind in ("conversation", "opening"):
                freed += self._stores[kind].free(num_bytes - freed)
            return freed

    def may_keep(self, num_tokens: int) -> bool:
        """Return True if a prefix of this length may be stored."""
        return self._most_bytes > 0 and num_tokens >= LEAST_TOKENS

    @contextlib.contextmanager
    def alone(self, prompt: List[int] | PromptTokens, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Run a block that computes and stores these tokens, after any other thread that does so for the same tokens.

        The wait ends early, and the block runs, when `cancelled` returns True.
        """
        key, is_first = _key(_content(prompt)), False
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

    def begin(self, prompt: List[int] | PromptTokens) -> Sequence:
        """Return a new sequence with the longest stored prefix of `prompt`, possibly empty."""
        content = _content(prompt)
        key = _key(content)
        with self._lock:
            self._drop_old_weights()
            matches = [match for store in self._stores.values() for match in store.nearest(key, content)]
        for match in sorted(matches, key=lambda match: (-match.num_common, match.entry.num_tokens)):
            if match.num_common < LEAST_TOKENS:
                break
            forked = self._engine.fork(match.entry.sequence, match.num_common)
            if forked.num_computed == match.num_common:  # with windows, a cache may be unable to continue from there
                with self._lock:
                    match.store.touch(match.entry)
                return forked
        return self._engine.new_sequence()

    def keep(self, sequence: Sequence, length: int, kind: Kind) -> None:
        """Store a fork of the first `length` tokens of a sequence.

        Skipped: a prefix of another entry, few tokens, and what exceeds the limit.
        """
        # Checked before the copy, which could exhaust the device's memory.
        if not self.may_keep(length) or sum(self._engine.memory(sequence).values()) > self._most_bytes:
            return
        key = _key(sequence.content[:length])
        with self._lock:
            self._drop_old_weights()
            store = self._stores[kind]
            if store.has(key):
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
    """A sequence that is never stepped, its tokens as key, and its memory in bytes by address."""

    key: bytes
    sequence: Sequence
    memory: dict[int, int]

    @property
    def num_tokens(self) -> int:
        return len(self.key) // _TOKEN_BYTES


@dataclass(frozen=True, kw_only=True)
class _PrefixMatch:
    """An entry with a common prefix."""

    store: _PrefixStore
    entry: _Prefix
    num_common: int


class _PrefixStore:
    """The entries of one kind. No entry is a prefix of another."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: dict[bytes, _Prefix] = {}  # least recently used first
        self._keys: list[bytes] = []  # sorted: keys with long common prefixes are neighbors
        self._num_owners: Counter[int] = Counter()  # of every chunk of memory, by its address
        self.num_bytes = 0

    def nearest(self, key: bytes, content: PromptTokens) -> list[_PrefixMatch]:
        """Return the sorted neighbors of `key`, one of which has the longest common prefix with `content`."""
        place = bisect_right(self._keys, key)
        entries = [self._entries[other] for other in self._keys[max(place - 1, 0) : place + 1]]
        return [
            _PrefixMatch(store=self, entry=entry, num_common=content.num_common(entry.sequence.content)) for entry in entries
        ]

    def touch(self, entry: _Prefix) -> None:
        """Mark an entry as most recently used."""
        if self._entries.pop(entry.key, None) is not None:
            self._entries[entry.key] = entry

    def has(self, key: bytes) -> bool:
        """Return True if `key` is a prefix of an entry, and mark that as most recently used."""
        place = bisect_left(self._keys, key)
        if place == len(self._keys) or not self._keys[place].startswith(key):
            return False
        self.touch(self._entries[self._keys[place]])
        return True

    def put(self, entry: _Prefix) -> None:
        """Add an entry and evict others, unless it is known by now or exceeds the limit."""
        if sum(entry.memory.values()) > self._most_bytes or self.has(entry.key):
            return
        place = bisect_left(self._keys, entry.key)
        if place > 0 and entry.key.startswith(self._keys[place - 1]):
            place -= 1
            self._drop(self._entries[self._keys[place]])
        self._entries[entry.key] = entry
        self._keys.insert(place, entry.key)
        self.num_bytes += sum(size for address, size in entry.memory.items() if not self._num_owners[address])
        self._num_owners.update(entry.memory.keys())
        self.free(self.num_bytes - self._most_bytes)

    def free(self, num_bytes: int) -> int:
        """Evict the least recently used entries until `num_bytes` are free or none is left. Return the bytes freed."""
        before = self.num_bytes
        while self._entries and before - self.num_bytes < num_bytes:
            self._drop(next(iter(self._entries.values())))
        return before - self.num_bytes

    def _drop(self, entry: _Prefix) -> None:
        del self._entries[entry.key]
        del self._keys[bisect_left(self._keys, entry.key)]
        self._num_owners.subtract(entry.memory.keys())
        for address, size in entry.memory.items():
            if not self._num_owners[address]:
                del self._num_owners[address]
                self.num_bytes -= size


def prefix_cache_bytes() -> int:
    """Return OPENAFM_PREFIX_CACHE_MB in bytes, or the default.

    Raises:
        CacheLimitError: the variable is not a number of megabytes.
    """
    return cache_limit(LIMIT, DEFAULT_MB)


def _content(prompt: List[int] | PromptTokens) -> PromptTokens:
    return prompt if isinstance(prompt, PromptTokens) else PromptTokens(list(prompt))


def _key(content: PromptTokens) -> bytes:
    """Return the tokens as bytes with the same order; those of inserted content are hashes of its digest."""
    tokens = np.asarray(content.tokens, ">u4")
    for start, stop, digest in content.insertions:
        hashes = hashlib.shake_256(digest.encode()).digest((stop - start) * _TOKEN_BYTES)
        tokens[start:stop] = np.frombuffer(hashes, ">u4") | _INSERTED
    return tokens.tobytes()
