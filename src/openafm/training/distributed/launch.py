"""Start the workers of a run on this machine, alone or with other machines, and restart them when one dies or hangs.

It uses torchrun's agent with a fork server that keeps the workers' libraries in memory: a restart takes about as long as
reading the checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from openafm.core.errors import OpenAFMError
from openafm.training.distributed.launcher_watch import LauncherWatch
from openafm.training.distributed.nodes import NodeLostError, NodesConfig, meet
from openafm.training.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

ALONE = NodesConfig()

LIBRARIES = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.utils.tensorboard")
"""Modules that torch and the trainer import on first use."""


class RestartsExhaustedError(OpenAFMError):
    """Workers of the run died more often than `restarts` allows."""


def is_launched() -> bool:
    """Return True if an agent has started this process: openafm's, torchrun's or a cluster's."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(
    work: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    *,
    processes: int,
    restarts: int,
    modules: Sequence[str],
    nodes: NodesConfig = ALONE,
) -> int:
    """Run `work(arguments)` in `processes` workers until all have returned an exit code; return the highest.

    If a worker dies, the others are ended and all are restarted, at most `restarts` times, also those on other nodes. If the
    launcher dies, the workers save and end. The fork server preloads `modules`. SIGTERM and SIGUSR1 are forwarded to the
    workers; Ctrl-C reaches them directly.

    Raises:
        RestartsExhaustedError: a worker died after the last restart.
        NodeLostError: another node did not join, or not again after a restart.
        NodesDifferError: the nodes have different versions or numbers of processes.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = _launch_config(processes, restarts, nodes)
    multiprocessing.set_forkserver_preload(["openafm.training.distributed.fork_server", *LIBRARIES, *modules])
    # The agent imports torch._dynamo when it handles a failure; importing it now does not delay the restart.
    threading.Thread(target=importlib.import_module, args=("torch._dynamo",), daemon=True).start()
    try:
        with _forwarded_signals():
            codes: dict[int, int] = elastic_launch(config, _work)(os.getpid(), work, arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise RestartsExhaustedError(
            f"worker {rank} of the run ended with exit code {failure.exitcode} after {restarts} restarts; its checkpoints "
            "are kept, and the same command resumes"
        ) from error
    except RendezvousError as error:
        raise NodeLostError(
            f"a node was lost and did not join again within {nodes.join_seconds:.0f} s; the checkpoints are kept, and the "
            "same command on all nodes resumes"
        ) from error
    return max(codes.values())


def _launch_config(processes: int, restarts: int, nodes: NodesConfig) -> LaunchConfig:
    """Return the agent's config; with several nodes, after all have joined."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.distributed.launcher.api import LaunchConfig

    alone = LaunchConfig(
        min_nodes=nodes.nodes,
        max_nodes=nodes.nodes,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="static",  # c10d waits a second in each restart
        rdzv_endpoint=f"localhost:{get_free_port()}",
        rdzv_configs={"rank": 0},
        max_restarts=restarts,
        monitor_interval=0.05,
        start_method="forkserver",
        local_addr="localhost",
        signals_to_handle="SIGHUP,SIGQUIT",
    )
    if nodes.nodes == 1:
        return alone
    meeting = meet(nodes, processes)
    backend = f"openafm-{meeting.run}"
    rendezvous_handler_registry.register(backend, meeting.handler)
    return replace(
        alone,
        run_id=meeting.run,
        rdzv_backend=backend,
        rdzv_endpoint=nodes.rendezvous,
        rdzv_configs={"join_timeout": round(nodes.join_seconds)},
        local_addr=meeting.address,
    )


def _work(launcher: int, work: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run in a worker."""
    return LauncherWatch(launcher).run(lambda: work(arguments))


@contextmanager
def _forwarded_signals() -> Iterator[None]:
    """Forward SIGTERM and SIGUSR1 to the workers, which save and end, and wait for them."""

    def forward(number: int, _: FrameType | None) -> None:
        for process in multiprocessing.active_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, number)

    before = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
    signal.signal(signal.SIGINT, _ignore)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, _: FrameType | None) -> None:
    """Ignore Ctrl-C: the workers share the terminal and get it as well."""
