"""Processes of one attempt find each other in a store with keys of earlier attempts."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

from openafm.training.distributed.rendezvous import fresh_store

WORLD = 4


def test_each_attempt_gets_an_unused_part_of_the_store() -> None:
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    clients = [dist.TCPStore("localhost", server.port, is_master=False) for _ in range(WORLD)]
    chance = random.Random(0)

    def join(rank: int, delay_s: float) -> dist.Store:
        time.sleep(delay_s)
        found = fresh_store(clients[rank], rank, WORLD)
        found.add("arrived", 1)
        return found

    with ThreadPoolExecutor(WORLD) as executor:
        for _ in range(8):
            for rank in range(1, WORLD):  # requests of processes that were killed before the answer
                if chance.random() < 0.5:
                    server.set(f"request/{rank}", "a killed process")
            stores = list(executor.map(join, range(WORLD), [0.05 * chance.random() for _ in range(WORLD)]))
            assert [store.add("arrived", 0) for store in stores] == [WORLD] * WORLD
