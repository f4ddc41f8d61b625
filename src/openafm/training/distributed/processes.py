"""The processes of a run: who speaks, what all agree on, and how an error of one ends them all.

One process alone opens no process group: every method then does the obvious.
"""

from __future__ import annotations

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
    """This process among `world`, number `rank`. `control` is the group for what is no tensor; None when alone."""

    rank: int = 0
    world: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def with_new_group(self) -> Processes:
        """The same with a group of their own, for a thread that agrees on something else meanwhile."""
        return self if self.control is None else replace(self, control=_control_group())

    def any_rank(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set in any process."""
        if self.control is None:
            return flags
        agreed = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self.control)
        return tuple(bool(flag) for flag in agreed)

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.control is None:
            return [value]
        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Do something in every process; when one fails, all raise: it its own error, the others `RemoteRankError`."""
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
        """Do something in the main process, then, once it stands, in the others too."""
        if self.is_main:
            result = self.run_on_all(work)
            self.run_on_all(lambda: None)
            return result
        self.run_on_all(lambda: None)
        return self.run_on_all(work)

    def run_on_main(self, work: Callable[[], T]) -> T:
        """Do something in the main process alone; all get its result, which must be picklable."""
        result = self.run_on_all(lambda: work() if self.is_main else None)
        return self.all_gather(result)[0]  # type: ignore[return-value]


@contextmanager
def open_processes(opened: Processes | None = None) -> Iterator[Processes]:
    """Join the other processes that torchrun has started, if there are any and `opened` does not stand for them already."""
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
    """The main process packs data while the others wait, which may take hours: a hang is the watchdog's to tell."""
    return dist.new_group(backend="gloo", timeout=timedelta(days=7))
