"""Admission, deadlines, disconnects, several models, adapters, draining and worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import openai
import pytest
from endpoints import wait_until
from servers import http, running_server
from tiny_bundles import write_random_adapter

import openafm as fm
from openafm.adapters.store import install_adapter
from openafm.bundle import open_bundle
from openafm.cli.main import run
from openafm.serving.admission import Admission
from openafm.serving.errors import ApiError
from openafm.serving.models import ModelCatalog

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count."}],
    "max_tokens": 3000,
    "temperature": 2,
    "seed": 3,
    "stop": None,
    "logit_bias": {},
}
SHORT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


def num_running(url: str) -> float:
    lines = http.get(f"{url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("openafm:num_requests_running")).split()[1])


def endless(url: str) -> dict[str, Any]:
    """Return a request whose answer does not end: its stop token is never chosen."""
    tokens = http.post(f"{url}/tokenize", json={"messages": [{"role": "user", "content": ""}]}).json()["tokens"]
    return {**LONG, "logit_bias": {str(tokens[-2]): -100}}  # <|turn_end|>


@contextlib.contextmanager
def streaming(url: str) -> Iterator[Iterator[str]]:
    """Start an endless answer and yield the lines of its stream after the first tokens."""
    with http.stream("POST", f"{url}/v1/chat/completions", json={**endless(url), "stream": True}, timeout=30) as reply:
        lines = reply.iter_lines()
        for _ in range(6):
            next(lines)
        yield lines


def test_requests_beyond_the_limits_get_429(start_server: Callable[..., str]) -> None:
    url = start_server(max_running=1, max_waiting=0)
    with streaming(url):
        refused = http.post(f"{url}/v1/chat/completions", json=SHORT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
    wait_until(lambda: num_running(url) == 0)
    assert http.post(f"{url}/v1/chat/completions", json=SHORT).status_code == 200


def test_a_request_that_exceeds_the_memory_is_refused(start_server: Callable[..., str]) -> None:
    url = start_server(kv_bytes=200_000)
    assert http.post(f"{url}/v1/chat/completions", json=SHORT).status_code == 200
    refused = http.post(f"{url}/v1/chat/completions", json=LONG)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_a_disconnect_ends_the_answer_within_a_step(url: str) -> None:
    scheduler = fm.SystemLanguageModel(bundle="nano").load().engine.scheduler
    for is_streamed in (True, False):
        if is_streamed:
            with streaming(url):
                pass
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post(f"{url}/v1/chat/completions", json=endless(url), timeout=0.3)
        closed = scheduler.num_steps
        wait_until(lambda: num_running(url) == 0)
        ended = scheduler.num_steps
        time.sleep(0.1)
        assert scheduler.num_steps == ended
        assert ended - closed < 500  # of 3,000; the thread of this test is slower than a step


def test_the_deadline_ends_an_answer(start_server: Callable[..., str]) -> None:
    url = start_server(request_seconds=0.3)
    reply = http.post(f"{url}/v1/chat/completions", json=endless(url))
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
    with http.stream("POST", f"{url}/v1/chat/completions", json={**endless(url), "stream": True}) as streamed:
        last = [line for line in streamed.iter_lines() if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"


def test_concurrent_answers_equal_those_alone(url: str) -> None:
    prompts = [f"Write about the number {number}." for number in range(6)]

    async def ask(client: httpx.AsyncClient, prompt: str) -> str:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 16, "temperature": 1, "seed": 1}
        reply = await client.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        return str(reply.json()["choices"][0]["message"]["content"])

    async def ask_all() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    async def ask_each() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            return [await ask(client, prompt) for prompt in prompts]

    assert asyncio.run(ask_all()) == asyncio.run(ask_each())


def test_admission_follows_priority_then_arrival() -> None:
    async def order() -> list[str]:
        admission, admitted = Admission(kv_bytes=10, max_running=1, max_waiting=9, queue_seconds=9), []

        async def request(name: str, priority: int) -> None:
            async with admission.admitted(10, priority=priority):
                admitted.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(*(request(*each) for each in (("a", 0), ("b", 0), ("c", 5), ("d", 1))))
        assert (admission.used_bytes, admission.num_running, admission.num_waiting) == (0, 0, 0)
        return admitted

    assert asyncio.run(order()) == ["a", "c", "d", "b"]


def test_admission_ends_waits_and_forgets_cancelled_requests() -> None:
    async def run() -> None:
        admission = Admission(kv_bytes=10, max_running=4, max_waiting=9, queue_seconds=0.05)
        async with admission.admitted(8):
            with pytest.raises(ApiError) as raised:
                async with admission.admitted(8):
                    pass
            assert raised.value.status == 429
            waiting = asyncio.ensure_future(admission.admitted(8).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            async with admission.admitted(2):  # the cancelled one does not block the queue
                pass
        assert (admission.used_bytes, admission.num_running) == (0, 0)

    asyncio.run(run())


def test_idle_models_are_released(tiny_path: Path) -> None:
    async def run() -> None:
        catalog = ModelCatalog([str(tiny_path)], idle_seconds=0.01)
        tiny = catalog.find("tiny")
        await catalog.acquire(tiny)
        await asyncio.sleep(0.02)
        assert catalog.release_idle() == []
        assert not catalog.unload(tiny)
        catalog.release(tiny)
        await asyncio.sleep(0.02)
        assert catalog.release_idle() == ["tiny"]
        assert (catalog.num_loaded, catalog.is_ready) == (0, True)
        await catalog.acquire(tiny)
        assert catalog.is_loaded("tiny")

    asyncio.run(run())


def test_an_adapter_is_chosen_by_the_model_name(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    adapter = write_random_adapter(tmp_path / "random.fmadapter", open_bundle(tiny_path))
    install_adapter(adapter.path)
    with running_server(models=(str(tiny_path),)) as url:
        ids = [model["id"] for model in http.get(f"{url}/v1/models").json()["data"]]
        assert ids == ["tiny", "tiny:random"]
        replies = [
            http.post(f"{url}/v1/chat/completions", json={**SHORT, "model": name, "logprobs": True}).json()["choices"][0]
            for name in ids
        ]
        scores = [[item["logprob"] for item in reply["logprobs"]["content"]] for reply in replies]
        assert scores[0] != scores[1]
        assert http.get(f"{url}/v1/adapters").json()["data"] == [{"id": "tiny:random", "loaded": True}]
        assert http.post(f"{url}/v1/adapters/unload", json={"model": "tiny:random"}).json()["loaded"] is False
        assert http.post(f"{url}/v1/adapters/load", json={"model": "tiny:random"}).json()["loaded"] is True


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Return a function that runs `openafm serve` in a process and returns it with its URL."""
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> tuple[subprocess.Popen[str], str]:
            arguments = [sys.executable, "-m", "openafm", "serve", "--port", "0", "--model", "nano", "--json", *options]
            environment = {**os.environ, "OPENAFM_HOME": str(tmp_path)}
            process = subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            url = str(json.loads(process.stdout.readline())["url"])
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                with contextlib.suppress(httpx.TransportError):
                    if http.get(f"{url}/health/ready").status_code == 200:
                        return process, url
                time.sleep(0.1)
            raise AssertionError("the server did not start")

        yield start


@pytest.mark.slow
def test_sigterm_lets_running_answers_end(command: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    process, url = command("--drain-seconds", "30")
    body = {**endless(url), "max_tokens": 200, "stream": True}
    with http.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(httpx.TransportError):
            http.get(f"{url}/health")
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert process.wait(30) == 0
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_workers_share_the_port_and_survive_a_kill(command: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    process, url = command("--workers", "2")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = [int(text) for text in children.read_text().split()]
    os.kill(workers[-1], signal.SIGKILL)
    wait_until(lambda: workers[-1] not in [int(text) for text in children.read_text().split()])
    deadline, answers = time.monotonic() + 60, 0
    while answers < 5 and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            answers += http.post(f"{url}/v1/chat/completions", json=SHORT, timeout=30).status_code == 200
    assert answers == 5
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_busy_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "--model", "nano", "--port", str(taken.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert error.startswith("openafm: cannot listen at 127.0.0.1:")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("header_seconds", [1.0, 600.0])
def test_a_client_that_does_not_read_loses_its_place(start_server: Callable[..., str], header_seconds: float) -> None:
    """With 600 seconds its connection is still open when its answers are computed and their places are free."""
    url = start_server(max_running=8, header_seconds=header_seconds)
    body = {
        **endless(url),
        "max_tokens": 60,  # the reply has about a megabyte, more than the buffers of the connection
        "stream": True,
        "n": 8,
        "temperature": 1,
        "logprobs": True,
        "top_logprobs": 20,
    }
    data = json.dumps(body).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", urlsplit(url).port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        wait_until(lambda: num_running(url) == 1)
        wait_until(lambda: num_running(url) == 0)
        assert http.post(f"{url}/v1/chat/completions", json={**SHORT, "n": 8, "temperature": 1}).status_code == 200


def test_a_profile_records_the_answers_of_a_server(client: openai.OpenAI) -> None:
    with fm.profile() as profile:
        client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "Hello"}], max_tokens=5)
    (session,) = profile.trace.sessions
    (inference,) = session.children[0].children
    assert session.name == "requests without a session"
    assert inference.attributes["generated_tokens"] > 0
    assert [part.kind for part in inference.children] == ["prefill", "decode"]
