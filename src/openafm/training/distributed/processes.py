"""The processes of a run: collective decisions, and errors that end all of them.

A single process opens no process group; every method then works locally.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from openafm.core.errors import OpenAFMError
from openafm.core.processes import backend, rank, world_size
from openafm.training.distributed.rendezvous import fresh_store

T = TypeVar("T")


class RemoteRankError(OpenAFMError):
    """Another process of the run failed."""

    shared = True

    def __init__(self, failed_rank: int, message: str, exit_code: int) -> None:
        super().__init__(f"process {failed_rank}: {message}")
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process, rank `rank` of `world`. `control` is the group for Python objects; None for a single process."""

    rank: int = 0
    world: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Return True for rank 0, which writes files and messages."""
        return self.rank == 0

    def with_new_group(self) -> Processes:
        """Return the same processes with a group of their own, for collectives in another thread."""
        return self if self.control is None else replace(self, control=_control_group())

    def any_rank(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set on any rank."""
        if self.control is None:
            return flags
        agreed = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self.control)
        return tuple(bool(flag) for flag in agreed)

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.control is None:
            return [value]
        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank. If it fails on one, that rank raises its error and the others `RemoteRankError`."""
        if self.control is None:
            return work()
        try:
            result, failure, raised = work(), None, None
        except Exception as error:
            exit_code = error.exit_code if isinstance(error, OpenAFMError) else 1
            raised, failure = error, (self.rank, " ".join(str(error).split()), exit_code)
        failures = [found for found in self.all_gather(failure) if found is not None]
        if raised is not None:
            if isinstance(raised, OpenAFMError):
                raised.shared = True
            raise raised
        if failures:
            raise RemoteRankError(*failures[0])
        return result

    def run_main_first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0, then on the others."""
        if self.is_main:
            result = self.run_on_all(work)
            self.run_on_all(lambda: None)
            return result
        self.run_on_all(lambda: None)
        return self.run_on_all(work)

    def run_on_main(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0; all ranks return its result, which must be picklable."""
        result = self.run_on_all(lambda: work() if self.is_main else None)
        return self.all_gather(result)[0]  # type: ignore[return-value]


def machine_share() -> tuple[int, int]:
    """Return the number of this process among those of its machine, and their number, as torchrun sets them."""
    world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return int(os.environ.get("LOCAL_RANK", "0")) % world, world


@contextmanager
def open_processes(opened: Processes | None = None) -> Iterator[Processes]:
    """Join the processes that torchrun has started, unless the caller has `opened` them or there is only one."""
    if opened is not None or world_size() == 1:
        yield opened or Processes()
        return
    store, number, world = next(rendezvous("env://"))
    dist.init_process_group(backend(), store=fresh_store(store, number, world), rank=number, world_size=world)
    try:
        yield Processes(rank=rank(), world=world_size(), control=_control_group())
    finally:
        dist.destroy_process_group()


def _control_group() -> dist.ProcessGroup:
    """Return a group with a long timeout: ranks wait for hours while rank 0 packs data, and the watchdog detects hangs."""
    return dist.new_group(backend="gloo", timeout=timedelta(days=7))
