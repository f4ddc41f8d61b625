"""Two servers behind a plain load balancer: requests carry their whole conversation, so any node can answer.

    python examples/two_nodes.py                 # two nodes and the balancer on this machine
    python examples/two_nodes.py HOST:PORT ...   # the balancer alone, in front of running servers

The balancer gives each connection to the next node and skips nodes that do not answer. nginx does the same:

    upstream openafm { least_conn; server node1:8000; server node2:8000; }
    server { listen 80; location / { proxy_pass http://openafm; proxy_buffering off; proxy_read_timeout 600s; } }
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence

CONNECT_SECONDS = 5.0
COMMAND = [sys.executable, "-m", "openafm", "serve", "--port", "0", "--json"]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the sender ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@contextlib.asynccontextmanager
async def balancer(nodes: Sequence[str], port: int = 0) -> AsyncIterator[str]:
    """Run a balancer in front of nodes, given as HOST:PORT, and yield its URL."""
    turns = itertools.cycle(nodes)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in nodes:
            host, _, number = next(turns).rpartition(":")
            with contextlib.suppress(OSError, TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection(host, int(number)), CONNECT_SECONDS)
        return None

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (node := await connect()) is not None:
                await asyncio.gather(copy(reader, node[1]), copy(node[0], writer))
                node[1].close()
        finally:
            writer.close()

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    async with server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}"


@contextlib.contextmanager
def running_node() -> Iterator[str]:
    """Run a server in a process and yield its HOST:PORT."""
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield "127.0.0.1:" + str(json.loads(process.stdout.readline())["url"]).rpartition(":")[2]
    finally:
        process.terminate()
        process.wait(30)


async def serve(nodes: Sequence[str]) -> None:
    async with balancer(nodes, port=8080) as url:
        print(f"{url}/v1 balances between {', '.join(nodes)}; Ctrl-C stops it", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        nodes = sys.argv[1:] or [stack.enter_context(running_node()) for _ in range(2)]
        asyncio.run(serve(nodes))


if __name__ == "__main__":
    main()
