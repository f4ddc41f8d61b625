"""Rendezvous: a part of the key-value store that only the processes of one attempt at a run use.

torchrun keeps one store over all restarts. The address of a killed process stays in it, and restarted processes wait for
that address until they time out (pytorch issue 135712). So rank 0 names each attempt, sends the name to every rank that
requests it in this attempt, and all use keys below it.
"""

from __future__ import annotations

import time
import uuid

from torch.distributed.distributed_c10d import PrefixStore, Store

POLL_SECONDS = 0.005


def fresh_store(store: Store, rank: int, world: int) -> Store:
    """Return an unused part of `store`, the same for all ranks that call this now; wait for all of them."""
    mine = uuid.uuid4().hex
    if rank == 0:
        waiting = set(range(1, world))
        while waiting:
            waiting -= {other for other in waiting if _read(store, f"confirmed/{other}") == mine}
            for other in waiting:
                # The request may be that of a killed process: answer again until the live one has confirmed.
                request = _read(store, f"request/{other}")
                store.set(f"answer/{other}", f"{request} {mine}")
            time.sleep(POLL_SECONDS)
        return PrefixStore(mine, store)
    store.set(f"request/{rank}", mine)
    while True:
        request, _, attempt = _read(store, f"answer/{rank}").partition(" ")
        if request == mine:
            store.set(f"confirmed/{rank}", attempt)
            return PrefixStore(attempt, store)
        time.sleep(POLL_SECONDS)


def _read(store: Store, key: str) -> str:
    """Return the value of a key, or an empty string."""
    return store.get(key).decode() if store.check([key]) else ""
