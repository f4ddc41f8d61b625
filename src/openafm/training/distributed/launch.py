"""Start the processes of a run on this machine, and start them again when one of them dies or hangs.

This is torchrun's own agent. What torchrun cannot do is to keep the libraries that every process needs, seconds to import,
ready in a process that outlives the trainers: a restart then takes about as long as reading the checkpoint.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from openafm.core.errors import OpenAFMError

LIBRARIES = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.utils.tensorboard")
"""What torch and the trainer import when they first need it."""


class RestartsExhaustedError(OpenAFMError):
    """Processes of the run died more often than they were to be started again."""


def is_launched() -> bool:
    """Whether an agent has started this process: ours, torchrun's or a cluster's."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(
    work: Callable[[Sequence[str]], int], arguments: Sequence[str], *, processes: int, restarts: int, modules: Sequence[str]
) -> int:
    """Run `work(arguments)` in so many processes until all have returned an exit code; return the worst.

    A process that dies without one takes the others with it, and all begin again, at most `restarts` times. `modules`,
    those that exist, are in memory before a process begins. SIGTERM is passed on; Ctrl-C reaches all by itself.

    Raises:
        RestartsExhaustedError: it happened once more.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    multiprocessing.set_forkserver_preload(["openafm.training.distributed.fork_server", *LIBRARIES, *modules])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="static",  # the other one waits a second in each restart
        rdzv_endpoint=f"localhost:{get_free_port()}",
        rdzv_configs={"rank": 0},
        max_restarts=restarts,
        monitor_interval=0.05,
        start_method="forkserver",
        local_addr="localhost",
        signals_to_handle="SIGHUP,SIGQUIT",
    )
    # The agent itself needs the compiler, of all things, when it looks for what failed; not then, when everything waits.
    threading.Thread(target=importlib.import_module, args=("torch._dynamo",), daemon=True).start()
    try:
        with _passing_on_signals():
            codes: dict[int, int] = elastic_launch(config, _work)(work, arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise RestartsExhaustedError(
            f"process {rank} of the run ended with exit code {failure.exitcode} after {restarts} restarts; what it had saved"
            " stands, the same command goes on"
        ) from error
    return max(codes.values())


def _work(work: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """In a process of the run, which SIGTERM reaches again: it was forked from one that ignores it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return work(arguments)


@contextmanager
def _passing_on_signals() -> Iterator[None]:
    """Leave it to the processes to save and end, instead of ending them: the agent waits until they have."""

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in multiprocessing.active_children():
            process.terminate()

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on), signal.SIGINT: signal.signal(signal.SIGINT, _nothing)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(number: int, _: FrameType | None) -> None:
    """The processes share our terminal, and got the signal too."""
