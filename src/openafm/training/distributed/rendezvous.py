"""Where the processes of one attempt at a run find each other, and none of an attempt before.

torchrun keeps one key-value store over all restarts of its processes. What a killed process wrote there still stands when
the next ones look for its address, and they wait for it until they give up (pytorch issue 135712). So rank 0 names each
attempt, tells the name to those that have asked in this one, and all go on below it.
"""

from __future__ import annotations

import time
import uuid

from torch.distributed.distributed_c10d import PrefixStore, Store

POLL_SECONDS = 0.005


def fresh_store(store: Store, rank: int, world: int) -> Store:
    """A part of `store` that nobody has used before, the same for all ranks that call this now; waits for all of them."""
    mine = uuid.uuid4().hex
    if rank == 0:
        waiting = set(range(1, world))
        while waiting:
            waiting -= {other for other in waiting if _read(store, f"heard/{other}") == mine}
            for other in waiting:
                # Perhaps by a process long gone: asked again until the live one has heard.
                asked = _read(store, f"asked/{other}")
                store.set(f"told/{other}", f"{asked} {mine}")
            time.sleep(POLL_SECONDS)
        return PrefixStore(mine, store)
    store.set(f"asked/{rank}", mine)
    while True:
        asked, _, attempt = _read(store, f"told/{rank}").partition(" ")
        if asked == mine:
            store.set(f"heard/{rank}", attempt)
            return PrefixStore(attempt, store)
        time.sleep(POLL_SECONDS)


def _read(store: Store, key: str) -> str:
    """What stands there, or nothing."""
    return store.get(key).decode() if store.check([key]) else ""
