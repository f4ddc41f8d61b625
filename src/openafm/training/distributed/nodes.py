"""The machines of a run find each other at an address of the first one, and check that they can train together.

The first node holds a key-value store. Each node writes what it is: versions and number of processes. When all have joined,
the first node compares them and publishes the outcome; then torchrun's agents meet in the same store, also after a restart.
"""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING

from openafm.core.errors import OpenAFMError, UsageError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

POLL_SECONDS = 0.05
JOIN_SECONDS = 600.0
READ_SECONDS = 10.0
"""How long the first node waits for the others to read that the run cannot start."""


class NodeLostError(OpenAFMError):
    """A node did not join the run, or was lost while the others waited for it."""

    exit_code = 75  # EX_TEMPFAIL: the same command continues the run


class NodesDifferError(UsageError):
    """The nodes of a run have different versions or numbers of processes."""


@dataclass(frozen=True, kw_only=True)
class NodesConfig:
    """The machines of a run: their number, which one this is, and the address of the first one, as HOST:PORT.

    Raises:
        UsageError: the address is not HOST:PORT, or the rank is not one of the nodes.
    """

    nodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""
    join_seconds: float = JOIN_SECONDS

    def __post_init__(self) -> None:
        if not 0 <= self.node_rank < self.nodes:
            raise UsageError(f"--node-rank {self.node_rank} is not one of {self.nodes} nodes; nodes are counted from 0")
        host, _, port = self.rendezvous.rpartition(":")
        if self.nodes > 1 and not (host and port.isdigit() and 0 < int(port) < 1 << 16):
            raise UsageError(
                f"{self.nodes} nodes need the address of node 0 in --rendezvous, such as node0:29400; "
                f"got {self.rendezvous!r}"
            )

    @property
    def host(self) -> str:
        return self.rendezvous.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.rendezvous.rpartition(":")[2])


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What nodes must have in common. `host` and `run` are for messages and names."""

    versions: str
    processes: int
    host: str
    run: str


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The store of all nodes, the id of the run, and the address at which the others reach this node."""

    store: Store
    run: str
    address: str

    def handler(self, parameters: RendezvousParameters) -> RendezvousHandler:
        """Return the handler with which torchrun's agents meet in the store."""
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        class Backend(C10dRendezvousBackend):
            @property
            def name(self) -> str:
                return parameters.backend

        return create_handler(self.store, Backend(self.store, parameters.run_id), parameters)


def meet(config: NodesConfig, processes: int) -> Meeting:
    """Wait for all nodes and check that they can train together.

    Raises:
        NodeLostError: a node does not join in time; the message names it.
        NodesDifferError: the versions or numbers of processes differ; equal on all nodes.
    """
    import torch

    versions = f"openafm {version('openafm')}, torch {torch.__version__}"
    mine = NodeFacts(versions=versions, processes=processes, host=socket.gethostname(), run=uuid.uuid4().hex)
    deadline_s = time.monotonic() + config.join_seconds
    store = _connect(config)
    try:
        store.set(f"node/{config.node_rank}", json.dumps(asdict(mine)))
        if config.node_rank == 0:
            missing = _wait(lambda: _missing(store, config.nodes), deadline_s)
            if missing:
                store.set("outcome", f"lost:{_lost(missing, config)}")
            else:
                facts = [NodeFacts(**json.loads(store.get(f"node/{node}"))) for node in range(config.nodes)]
                store.set("outcome", f"differ:{difference(facts)}" if difference(facts) else "ready")
        elif _wait(lambda: [] if store.check(["outcome"]) else [0], deadline_s + 10):
            raise NodeLostError(f"node 0 at {config.rendezvous} stopped waiting; repeat the command on all nodes")
        outcome, _, reason = store.get("outcome").decode().partition(":")
        first = NodeFacts(**json.loads(store.get("node/0")))
        store.set(f"read/{config.node_rank}", "")
        if config.node_rank == 0 and outcome != "ready":  # the store ends with this process
            joined = [node for node in range(config.nodes) if store.check([f"node/{node}"])]
            _wait(lambda: [node for node in joined if not store.check([f"read/{node}"])], time.monotonic() + READ_SECONDS)
    except (RuntimeError, TimeoutError) as error:
        raise NodeLostError(f"node 0 at {config.rendezvous} was lost: {error}; repeat the command on all nodes") from error
    if outcome == "lost":
        raise NodeLostError(reason)
    reason = reason or difference([first, mine])  # a node that joins again was not compared before
    if reason:
        raise NodesDifferError(reason)
    return Meeting(store=store, run=first.run, address=_own_address(config))


def difference(facts: list[NodeFacts]) -> str:
    """Return why nodes cannot train together, or an empty text."""
    for what, remedy in (("versions", "install the same versions"), ("processes", "start the same number of --processes")):
        values = [getattr(each, what) for each in facts]
        other = next((node for node, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            return f"{facts[0].host} has {what} {values[0]}, {facts[other].host} has {values[other]}; {remedy} on all nodes"
    return ""


def _connect(config: NodesConfig) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stub has no __all__

    is_first = config.node_rank == 0
    timeout = timedelta(seconds=60 if is_first else config.join_seconds)
    try:
        return TCPStore(config.host, config.port, is_master=is_first, wait_for_workers=False, timeout=timeout)
    except (RuntimeError, TimeoutError) as error:
        if is_first:
            raise UsageError(
                f"node 0 cannot listen at {config.rendezvous}: {error}; use a free port of this machine"
            ) from error
        raise NodeLostError(
            f"node 0 did not answer at {config.rendezvous} within {config.join_seconds:.0f} s; start it, and check the "
            "address and the firewall"
        ) from error


def _missing(store: Store, nodes: int) -> list[int]:
    return [node for node in range(nodes) if not store.check([f"node/{node}"])]


def _wait(missing: Callable[[], list[int]], deadline_s: float) -> list[int]:
    """Return what is still missing at the deadline; an empty list as soon as nothing is."""
    while (left := missing()) and time.monotonic() < deadline_s:
        time.sleep(POLL_SECONDS)
    return left


def _lost(missing: list[int], config: NodesConfig) -> str:
    names = ", ".join(map(str, missing))
    return (
        f"node {names} of {config.nodes} did not join at {config.rendezvous} within {config.join_seconds:.0f} s; start the "
        "same command there with its --node-rank, and repeat it here"
    )


def _own_address(config: NodesConfig) -> str:
    """Return the address of this node towards the first one. No packet is sent."""
    if config.node_rank == 0:
        return config.host
    family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
    return found
