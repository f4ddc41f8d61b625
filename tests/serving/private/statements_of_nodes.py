"""Releases, statements and proofs that the tests of private compute share."""

from __future__ import annotations

import time

from openafm.adapters.delivery.keys import public_key
from openafm.serving.private.log.releases import Release
from openafm.serving.private.node.statements import Statement
from openafm.serving.private.oblivious_http.key_configs import NodeKey

OPERATOR = "11" * 32
PUBLIC_OPERATOR = public_key(OPERATOR)


def release(number: int, minimum: int = 0) -> Release:
    """Return a release of the operator of the tests."""
    return Release(
        number=number,
        minimum=minimum,
        operator=PUBLIC_OPERATOR,
        code="aa" * 32,
        weights={"nano": "bb" * 32},
        config="cc" * 32,
        environment={"python": "3.11"},
    )


def statement(node: NodeKey, of: Release, *, start: float | None = None, seconds: int = 3600) -> Statement:
    """Return a statement that is valid from now on."""
    begins = int(time.time() if start is None else start)
    return Statement(release=of, key_config=node.config.encode().hex(), not_before=begins, not_after=begins + seconds)
