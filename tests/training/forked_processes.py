"""Processes of a run, forked from the test; they communicate through gloo and rendezvous by a file."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_runs import exit_code

from openafm.training.distributed.processes import Processes


def fork_together(num_processes: int, work: Callable[[Processes], object]) -> list[int]:
    """Start `work` in `num_processes` processes and return their ids; they exit with 0 if it returns, else with 1."""
    meeting = Path(tempfile.mkdtemp()) / "meeting"
    return [_fork(rank, num_processes, meeting, work) for rank in range(num_processes)]


def together(num_processes: int, work: Callable[[Processes], object]) -> None:
    """Run `work` in `num_processes` processes, all of which must succeed."""
    codes = [exit_code(process) for process in fork_together(num_processes, work)]
    assert codes == [0] * num_processes


def _fork(rank: int, world: int, meeting: Path, work: Callable[[Processes], object]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        work(Processes(rank=rank, world=world, control=dist.new_group(backend="gloo")))
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
