"""Two servers behind a plain load balancer: requests carry their whole conversation, so any node can answer.

python examples/two_nodes.py                 # starts two nodes and a balancer, asks them, and stops
python examples/two_nodes.py HOST:PORT ...   # the balancer alone, at port 8080 in front of running servers

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
import time
import urllib.request
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
    turns = itertools.count()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in nodes:
            host, _, number = nodes[next(turns) % len(nodes)].rpartition(":")
            with contextlib.suppress(OSError, TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection(host, int(number)), CONNECT_SECONDS)
        return None

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (node := await connect()) is not None:
                with contextlib.suppress(asyncio.CancelledError):  # the balancer ends; Python 3.11 would print a traceback
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
        place = "127.0.0.1:" + str(json.loads(process.stdout.readline())["url"]).rpartition(":")[2]
        while process.poll() is None and not is_ready(place):
            time.sleep(0.1)
        yield place
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, prompt: str) -> str:
    """Return the answer of the node that the balancer chooses."""
    body = json.dumps({"messages": [{"role": "user", "content": prompt}], "max_tokens": 12}).encode()
    with urllib.request.urlopen(f"{url}/v1/chat/completions", body) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


async def demonstrate() -> None:
    with contextlib.ExitStack() as nodes:
        places = [nodes.enter_context(running_node()) for _ in range(2)]
        async with balancer(places) as url:
            answers = [await asyncio.to_thread(ask, url, "Dinner with Ana at 7") for _ in range(4)]
            print(f"two nodes gave {len(answers)} answers, {len(set(answers))} of them distinct")
            nodes.close()  # both stop; start one again
            places[:] = [nodes.enter_context(running_node()), "127.0.0.1:1"]
            again = [await asyncio.to_thread(ask, url, "Dinner with Ana at 7") for _ in range(2)]
            print(f"one node is left: {'the same answer' if set(again) == set(answers) else 'another answer'}")


def is_ready(place: str) -> bool:
    """Return True once a node has loaded its model; load balancers check the same route."""
    try:
        with urllib.request.urlopen(f"http://{place}/health/ready", timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False


async def serve(nodes: Sequence[str]) -> None:
    async with balancer(nodes, port=8080) as url:
        print(f"{url}/v1 balances between {', '.join(nodes)}; Ctrl-C stops it", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1:]) if sys.argv[1:] else demonstrate())


if __name__ == "__main__":
    main()
