"""Nodes, relays and clients: answers, refusals, and what a node and a relay let out."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from endpoints import wait_until
from private_servers import CONFIG, Deployment, running
from servers import http
from statements_of_nodes import release

import openafm as fm
from openafm.core.files import data_home
from openafm.serving.private.client import GATEWAY_PATH, STATEMENT_PATH, PrivateClient
from openafm.serving.private.errors import (
    MessageError,
    NodeRefusedError,
    NodeUnreachableError,
    PrivateComputeError,
    PrivateSetupError,
)
from openafm.serving.private.node.inner import ROUTES
from openafm.serving.private.node.keys import NodeKeys
from openafm.serving.private.node.statements import SOFTWARE_ONLY, open_statement
from openafm.serving.private.oblivious_http.binary_http import BinaryRequest, decode_response, encode_request
from openafm.serving.private.oblivious_http.encapsulation import CHUNKED, WHOLE, open_response, seal_request
from openafm.serving.private.oblivious_http.key_configs import decode_key_config
from openafm.serving.private.relay import build_relay
from openafm.serving.private.verification import Trust

PROMPT = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with contextlib.ExitStack() as stack:
        yield Deployment(tmp_path_factory.mktemp("private"), stack)


@pytest.fixture
def trust(deployed: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trust:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    return Trust(log=deployed.log_url, log_key=str(deployed.log.key))


@pytest.mark.parametrize("through", ["node", "relay"])
def test_a_client_streams_the_answer_of_a_verified_node(deployed: Deployment, trust: Trust, through: str) -> None:
    client = PrivateClient([getattr(deployed, f"{through}_url")], trust, [SOFTWARE_ONLY])
    pieces = list(client.chat(PROMPT, max_tokens=40))
    assert "".join(pieces)
    stored = next((data_home() / "private" / "checkpoints").iterdir())
    assert "example.com/releases" in stored.read_text(encoding="utf-8")
    assert "".join(client.chat(PROMPT, max_tokens=40)) == "".join(pieces)


def test_whole_requests_and_errors_are_encrypted_and_padded(deployed: Deployment) -> None:
    listed = http.get(deployed.node_url + GATEWAY_PATH)
    assert listed.headers["content-type"] == "application/ohttp-keys"
    config = decode_key_config(listed.content[2:])
    assert config == deployed.keys.current().config
    lengths = set()
    for path, body, status in (
        ("/v1/chat/completions", {"messages": PROMPT, "max_tokens": 4}, 200),
        ("/v1/chat/completions", {"messages": PROMPT, "max_tokens": 0}, 400),
        ("/v1/chat/completions", {"messages": PROMPT, "model": "none"}, 404),
        ("/v1/responses", {"input": "Hello"}, 404),
        ("/v1/adapters/load", {"model": "nano"}, 404),
    ):
        request = BinaryRequest(method="POST", path=path, content=json.dumps(body).encode())
        sealed, exchange = seal_request(config, [encode_request(request)], WHOLE)
        reply = http.post(deployed.node_url + GATEWAY_PATH, content=sealed, headers={"content-type": WHOLE.request_type})
        assert (reply.status_code, reply.headers["content-type"]) == (200, WHOLE.response_type)
        response = decode_response(open_response(exchange, reply.content))
        assert response.status == status, response.content
        lengths.add(len(reply.content))
    assert len(lengths) == 1


def test_a_stream_has_chunks_of_one_length(deployed: Deployment) -> None:
    lengths: dict[int, set[int]] = {}
    for num_tokens in (2, 60):
        body = {"messages": PROMPT, "max_tokens": num_tokens, "stream": True}
        request = BinaryRequest(method="POST", path="/v1/chat/completions", content=json.dumps(body).encode())
        sealed, _ = seal_request(deployed.keys.current().config, [encode_request(request)], CHUNKED)
        headers = {"content-type": CHUNKED.request_type}
        reply = http.post(deployed.node_url + GATEWAY_PATH, content=sealed, headers=headers).content
        at, sizes = 16, list[int]()
        while reply[at]:
            size = int.from_bytes(reply[at : at + 2], "big") & 0x3FFF
            sizes.append(size)
            at += 2 + size
        lengths[num_tokens] = {*sizes, len(reply) - at - 1}
    assert lengths[2] == {1024 + 16}
    assert lengths[60] <= {size + 16 for size in (1024, 4096)}


def test_only_the_routes_of_private_compute_exist(deployed: Deployment) -> None:
    for path in ("/", "/v1/chat/completions", "/v1/models", "/v1/responses", "/playground/app.js", "/openapi.json", "/docs"):
        for url in (deployed.node_url, deployed.relay_url):
            assert http.get(url + path).status_code == 404, path
            assert http.post(url + path, json={}).status_code == 404, path
    assert http.get(deployed.node_url + "/health").status_code == 200
    assert b"openafm:http_replies" in http.get(deployed.node_url + "/metrics").content
    assert http.get(deployed.relay_url + "/metrics").status_code == 404
    assert http.post(deployed.node_url + GATEWAY_PATH, json={}).status_code == 415
    assert http.post(deployed.relay_url + GATEWAY_PATH, json={}).status_code == 415
    assert not any("responses" in path or "adapters" in path for _, path in ROUTES)


def test_damaged_unknown_and_repeated_requests_are_refused(deployed: Deployment) -> None:
    headers = {"content-type": CHUNKED.request_type}

    def send(data: bytes) -> httpx.Response:
        return http.post(deployed.relay_url + GATEWAY_PATH, content=data, headers=headers)

    request = encode_request(BinaryRequest(method="GET", path="/v1/models"))
    sealed, _ = seal_request(deployed.keys.current().config, [request], CHUNKED)
    assert send(sealed[:-1] + bytes((sealed[-1] ^ 1,))).status_code == 400
    assert send(b"").status_code == 400
    unknown = send(b"\xff" + sealed[1:])
    assert (unknown.status_code, unknown.headers["content-type"]) == (400, "application/problem+json")
    assert unknown.json()["type"].endswith("#ohttp-key")
    assert send(sealed).status_code == 200
    repeated = send(sealed)
    assert (repeated.status_code, repeated.json()["error"]["code"]) == (400, "encryption")


def test_a_relay_removes_the_address_and_the_headers_of_clients(deployed: Deployment) -> None:
    seen: list[dict[str, str]] = []

    async def node(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        seen.append({name.decode(): value.decode() for name, value in scope["headers"]} | {"path": scope["path"]})
        kind = [(b"content-type", b"application/json"), (b"set-cookie", b"id=1"), (b"x-node", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        await send({"type": "http.response.body", "body": b"{}"})

    with running(node) as node_url, running(build_relay(CONFIG, node_url, "afm_relay")) as relay_url:
        headers = {"Cookie": "a=b", "X-Forwarded-For": "192.0.2.1", "User-Agent": "me", "Authorization": "Bearer mine"}
        reply = http.get(f"{relay_url}{STATEMENT_PATH}?who=me", headers=headers)
    assert reply.content == b"{}"
    assert not {"set-cookie", "x-node"} & set(reply.headers)
    assert seen[0].pop("host").startswith("127.0.0.1:")
    assert seen[0].pop("connection") in ("keep-alive", "close")
    assert seen[0] == {
        "accept": "*/*",
        "accept-encoding": "identity",
        "user-agent": "openafm-relay",
        "authorization": "Bearer afm_relay",
        "path": STATEMENT_PATH,
    }


def test_refusals_have_a_reason(deployed: Deployment, trust: Trust) -> None:
    with pytest.raises(NodeRefusedError, match="--accept software-only"):
        PrivateClient([deployed.node_url], trust).choose()
    with pytest.raises(NodeRefusedError, match="trusted key"):
        other = deployed.log.key
        wrong = Trust(log=trust.log, log_key=str(type(other)(other.name, other.kind, "22" * 32)))
        PrivateClient([deployed.node_url], wrong, [SOFTWARE_ONLY]).choose()
    with pytest.raises(NodeUnreachableError, match="cannot be reached"):
        PrivateClient(["http://127.0.0.1:1"], trust, [SOFTWARE_ONLY]).choose()
    with pytest.raises(PrivateSetupError, match="URL"):
        PrivateClient(["localhost"], trust)
    chosen = PrivateClient(["http://127.0.0.1:1", deployed.node_url], trust, [SOFTWARE_ONLY]).choose()
    assert chosen.url == deployed.node_url
    with pytest.raises(PrivateComputeError, match=r"404: the model 'none' does not exist"):
        list(PrivateClient([deployed.node_url], trust, [SOFTWARE_ONLY]).chat(PROMPT, model="none"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads limits of Linux")
def test_a_node_forbids_dumps_debuggers_and_shared_caches() -> None:
    code = """
import ctypes, os, resource
from openafm.runtime.engines.cache_limits import cache_limit
from openafm.runtime.engines import image_cache, prefix_cache
from openafm.serving.private.node.node import forbid_traces_of_requests
forbid_traces_of_requests()
limits = [cache_limit(module.LIMIT, 1) for module in (prefix_cache, image_cache)]
print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), limits)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[0] == "(0, 0) 0 [0, 0]"


def test_a_client_that_leaves_ends_its_answer(deployed: Deployment, trust: Trust) -> None:
    model = fm.SystemLanguageModel(bundle="nano").load()
    stop = model.template.stop_token(model.tokenizer)
    for url in (deployed.node_url, deployed.relay_url):
        client = PrivateClient([url], trust, [SOFTWARE_ONLY])
        answer = client.chat(PROMPT, max_tokens=3000, logit_bias={str(stop): -100})
        assert next(answer)
        answer.close()
        wait_until(lambda: "num_requests_running 0.0" in http.get(deployed.node_url + "/metrics").text)


def test_nodes_are_chosen_at_random(deployed: Deployment, trust: Trust) -> None:
    client = PrivateClient([deployed.node_url, deployed.relay_url], trust, [SOFTWARE_ONLY])
    assert {client.choose().url for _ in range(16)} == {deployed.node_url, deployed.relay_url}


def test_a_node_refuses_to_run_another_release(deployed: Deployment) -> None:
    import dataclasses

    from openafm.serving.private.node.folder import check_place, open_keys, read_config

    with pytest.raises(PrivateSetupError, match="differs from release 1 in config"):
        open_keys(deployed.folder / "node", dataclasses.replace(deployed.config, guardrails=False))
    with pytest.raises(PrivateSetupError, match="max_running"):
        check_place(dataclasses.replace(CONFIG, models=(), max_running=3))
    with pytest.raises(PrivateSetupError, match="private release"):
        read_config(deployed.folder, CONFIG)


def test_keys_are_replaced_and_expire() -> None:
    now = [1_800_000_000.0]
    keys = NodeKeys(release(1), "11" * 32, valid_seconds=1000, clock=lambda: now[0])
    first = keys.current()
    sealed, _ = seal_request(first.config, [b"question"], CHUNKED)
    now[0] += 499
    assert keys.current() is first
    now[0] += 1
    assert keys.current() is not first
    assert open_statement(keys.statement()).key == keys.current().config
    assert keys.open(sealed, CHUNKED)[0] == b"question"
    with pytest.raises(MessageError, match="received before"):
        keys.open(sealed, CHUNKED)
    late, _ = seal_request(first.config, [b"question"], CHUNKED)
    now[0] += 801
    with pytest.raises(MessageError, match="key id 0"):
        keys.open(late, CHUNKED)


def test_logs_have_the_outer_route_only(deployed: Deployment, trust: Trust, caplog: pytest.LogCaptureFixture) -> None:
    canary = "canary-7f3a-prompt"
    with caplog.at_level(logging.DEBUG):
        client = PrivateClient([deployed.node_url], trust, [SOFTWARE_ONLY])
        list(client.chat([{"role": "user", "content": canary}], max_tokens=4))
        with pytest.raises(PrivateComputeError):
            list(client.chat([{"role": "user", "content": canary}], model=canary))
    assert GATEWAY_PATH in caplog.text
    assert canary not in caplog.text
    assert canary not in http.get(deployed.node_url + "/metrics").text
