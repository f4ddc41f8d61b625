"""The processes of a run: the device of each, collective decisions, and errors that end all of them.

A single process opens no process group; every method then works locally.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from importlib.metadata import version
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from openafm.core.errors import OpenAFMError
from openafm.core.processes import rank, world_size
from openafm.training.device import DeviceConfig, DeviceError, describe_device, device_memory
from openafm.training.distributed.rendezvous import fresh_store

T = TypeVar("T")
DEFAULT_DEVICE = DeviceConfig()


class RemoteRankError(OpenAFMError):
    """Another process of the run failed."""

    shared = True

    def __init__(self, failed_rank: int, message: str, exit_code: int) -> None:
        super().__init__(f"process {failed_rank}: {message}")
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process, rank `rank` of `world`, and its device.

    `control` is the group for Python objects; None for a single process.
    """

    rank: int = 0
    world: int = 1
    control: dist.ProcessGroup | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

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
def open_processes(opened: Processes | None = None, config: DeviceConfig = DEFAULT_DEVICE) -> Iterator[Processes]:
    """Join the processes that torchrun has started, unless the caller has `opened` them or there is only one.

    Raises:
        DeviceError: a device is absent, or the cards or versions of the processes differ; equal on all ranks.
    """
    if opened is not None:
        yield opened
        return
    if world_size() == 1:
        device = config.find()
        _select(device)
        yield Processes(device=device)
        return
    shared, number, world = next(rendezvous("env://"))
    store = fresh_store(shared, number, world)
    device = _agreed_device(config, store, number, world)
    _select(device)
    if device.type == "cuda":
        timeout = timedelta(seconds=config.collective_seconds)
        backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=number, world_size=world, timeout=timeout, device_id=device)
    else:
        dist.init_process_group("gloo", store=store, rank=number, world_size=world)
    try:
        yield Processes(rank=rank(), world=world_size(), control=_control_group(), device=device)
    finally:
        dist.destroy_process_group()


def _select(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)


@dataclass(frozen=True, kw_only=True)
class _Finding:
    """The device and the versions that one rank has found, or the error."""

    error: str | None = None
    card: str = ""
    memory: str = ""
    versions: str = ""


def _agreed_device(config: DeviceConfig, store: Store, number: int, world: int) -> torch.device:
    """Return the device of this rank if all ranks have found one, with equal cards and versions.

    Raises:
        DeviceError: the same on all ranks.
    """
    versions = f"openafm {version('openafm')}, torch {torch.__version__}"
    device = torch.device("cpu")
    try:
        device = config.find(*machine_share(), world=world)
        sizes = device_memory(device)
        memory = "" if sizes is None else f"{sizes[1] / (1 << 30):.0f} GiB of memory"
        finding = _Finding(card=describe_device(device), memory=memory, versions=versions)
    except DeviceError as error:
        finding = _Finding(error=str(error))
    store.set(f"device/{number}", json.dumps(asdict(finding)))
    if number == 0:
        store.set("devices", _disagreement([_Finding(**json.loads(store.get(f"device/{one}"))) for one in range(world)]))
    verdict = store.get("devices").decode()
    if verdict:
        raise DeviceError(verdict)
    return device


def _disagreement(findings: list[_Finding]) -> str:
    """Return why ranks with these findings cannot train together, or an empty text."""
    for number, finding in enumerate(findings):
        if finding.error is not None:
            return f"rank {number}: {finding.error}"
    cards = "use machines with equal cards"
    for what, remedy in (("versions", "install the same versions"), ("card", cards), ("memory", cards)):
        values = [getattr(finding, what) for finding in findings]
        other = next((number for number, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            return f"rank 0 has {values[0]}, rank {other} has {values[other]}; {remedy} on all of them"
    return ""


def _control_group() -> dist.ProcessGroup:
    """Return a group with a long timeout: ranks wait for hours while rank 0 packs data, and the watchdog detects hangs."""
    return dist.new_group(backend="gloo", timeout=timedelta(days=7))
