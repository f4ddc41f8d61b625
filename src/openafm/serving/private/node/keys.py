"""Keys of a running node: created in memory, stated for a short time, replaced, and never written to a file."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from openafm.serving.private.errors import MessageError
from openafm.serving.private.log.releases import Release
from openafm.serving.private.node.statements import CLOCK_SKEW_SECONDS, Statement, sign_statement
from openafm.serving.private.oblivious_http.encapsulation import Exchange, Framing, open_request
from openafm.serving.private.oblivious_http.key_configs import NodeKey

VALID_SECONDS = 3600
_MAX_REQUESTS = 1 << 18  # of one key, so that the digests of its requests need a few megabytes
_ENCAPSULATED = slice(7, 39)  # of a request: the client's ephemeral public key


@dataclass(eq=False)
class _StatedKey:
    key: NodeKey
    signed: bytes
    renewed_after: float
    expires: float
    seen: set[bytes] = field(default_factory=set)


class NodeKeys:
    """Hold the current key with its statement, and the former one until its statement expires.

    A key is replaced after half of its validity. Requests are accepted once: a copy of a request is refused.

    Args:
        valid_seconds: validity of a statement.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        release: Release,
        operator_key: str,
        valid_seconds: int = VALID_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._release, self._operator_key = release, operator_key
        self._valid_seconds, self._clock = valid_seconds, clock
        self._stated: list[_StatedKey] = []
        self._next_id = 0

    def statement(self) -> bytes:
        """Return the signed statement of the current key."""
        return self._current().signed

    def current(self) -> NodeKey:
        return self._current().key

    def open(self, data: bytes, framing: Framing) -> tuple[bytes, Exchange]:
        """Return a decrypted request and the exchange that encrypts its response.

        Raises:
            UnknownKeyError: the request is encrypted to a key that has expired or is not of this node.
            MessageError: the request is damaged, or was received before.
        """
        self._current()
        opened, exchange = open_request([each.key for each in self._stated], data, framing)
        stated = next(each for each in self._stated if each.key.config.key_id == data[0])
        digest = hashlib.sha256(data[_ENCAPSULATED]).digest()[:16]
        if digest in stated.seen:
            raise MessageError("the request was received before; encrypt it again")
        stated.seen.add(digest)
        return opened, exchange

    def _current(self) -> _StatedKey:
        now = self._clock()
        self._stated = [each for each in self._stated if now <= each.expires]
        newest = self._stated[-1] if self._stated else None
        if newest is None or now >= newest.renewed_after or len(newest.seen) >= _MAX_REQUESTS:
            newest = self._new(now)
            self._stated.append(newest)
        return newest

    def _new(self, now: float) -> _StatedKey:
        key = NodeKey(self._next_id)
        self._next_id = (self._next_id + 1) % 256
        begins = int(now)
        statement = Statement(
            release=self._release,
            key_config=key.config.encode().hex(),
            not_before=begins,
            not_after=begins + self._valid_seconds,
        )
        return _StatedKey(
            key=key,
            signed=sign_statement(statement, self._operator_key),
            renewed_after=now + self._valid_seconds / 2,
            expires=begins + self._valid_seconds + CLOCK_SKEW_SECONDS,
        )
