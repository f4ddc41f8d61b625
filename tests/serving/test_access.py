"""Keys, scopes, origins, and requests that are too large, too slow or damaged."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import ANY
from urllib.parse import urlsplit

import httpx2 as httpx
import openai
import pytest
from endpoints import wait_until
from fastapi.routing import APIRoute
from servers import http, running_server

from openafm.core.files import data_home
from openafm.core.folder_lock import FolderInUseError, folder_lock
from openafm.serving import keys
from openafm.serving.access import PUBLIC_PATHS
from openafm.serving.app import ROUTERS
from openafm.serving.config import ServerConfig, ServerSetupError
from openafm.serving.server import bind, check_setup, uvicorn_config

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAFM_HOME", str(tmp_path_factory.mktemp("home")))
        yield data_home()


@pytest.fixture(scope="module")
def locked(home: Path) -> Iterator[str]:
    """The URL of a server that needs keys."""
    with running_server(requires_key=True, max_body_bytes=100_000, body_seconds=0.5, header_seconds=0.5) as url:
        yield url


@pytest.fixture(scope="module")
def key(home: Path) -> str:
    return keys.create_key("tests")[0]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def exchange(url: str, request: bytes, *, seconds: float = 30.0) -> bytes:
    """Send bytes and return what the server sends until it closes the connection."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def test_a_client_that_still_sends_reads_its_refusal(locked: str) -> None:
    parts = urlsplit(locked)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n")
        for _ in range(3):
            time.sleep(0.1)
            connection.sendall(b" " * 10_000)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("stream", ["false", "true"])
def test_half_of_a_surrogate_pair_is_refused_and_a_whole_one_is_not(url: str, stream: str) -> None:
    rest = f'"messages": [{{"role": "user", "content": "\\ud83d\\ude00"}}], "max_tokens": 1, "stream": {stream}'
    for start, status in (('"model": "a\\ud800",', 400), ('"user": "\\uDE00",', 400), ("", 200)):
        assert http.post(f"{url}/v1/chat/completions", content=f"{{{start}{rest}}}").status_code == status, start


def test_every_route_but_health_needs_a_key(locked: str) -> None:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 10
    for route in routes:
        path = re.sub(r"{\w+(:path)?}", "x", route.path)
        for method in route.methods:
            status = http.request(method, locked + path, json={}).status_code
            assert (status == 401) == (path not in PUBLIC_PATHS), path  # not ready, 503, is an answer too
    for path in ("/", "/nothing", "/openapi.json", "/v1/../metrics", "//metrics", "/health/../metrics"):
        assert http.get(locked + path).status_code == 401, path


def test_errors_of_a_missing_key_have_the_form_of_each_api(locked: str) -> None:
    with pytest.raises(openai.AuthenticationError, match="keys create"):
        openai.OpenAI(base_url=f"{locked}/v1", api_key="afm_wrong", max_retries=0).models.list()
    assert isinstance(http.post(f"{locked}/api/chat", json={}).json()["error"], str)
    assert http.post(f"{locked}/v1/messages", json={}).json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("form", ["bearer", "x-api-key", "basic"])
def test_a_key_is_accepted_in_three_headers(locked: str, key: str, form: str) -> None:
    headers = {"bearer": bearer(key), "x-api-key": {"x-api-key": key}}.get(form)
    auth = httpx.BasicAuth("any", key) if form == "basic" else None
    assert http.get(f"{locked}/v1/models", headers=headers, auth=auth).status_code == 200


def test_keys_are_hashed_scoped_revoked_and_expire(locked: str, home: Path) -> None:
    text, record = keys.create_key("metrics only", ["metrics"])
    file = keys.keys_file()
    secret = text.split("_", 2)[2]  # may contain underscores
    assert len(secret) >= 40
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert http.get(f"{locked}/metrics", headers=bearer(text)).status_code == 200
    refused = http.post(f"{locked}/v1/chat/completions", headers=bearer(text), json=CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_scope")
    keys.revoke_key(record.id)
    assert http.get(f"{locked}/metrics", headers=bearer(text)).status_code == 401
    expired, _ = keys.create_key("yesterday", days=-1)
    assert http.get(f"{locked}/v1/models", headers=bearer(expired)).status_code == 401


@pytest.mark.parametrize("path", ["/metrics", "/v1/adapters/load", "/v1/adapters/unload"])
@pytest.mark.parametrize("end", ["", "%0A", "/", "%00"])
def test_no_spelling_of_a_path_avoids_its_scope(locked: str, key: str, path: str, end: str) -> None:
    method = "GET" if path == "/metrics" else "POST"
    reply = http.request(method, f"{locked}{path}{end}", headers=bearer(key), json={"model": "nano"}, follow_redirects=True)
    assert reply.status_code in (403, 404), reply.text


def test_answers_that_are_cancelled_or_fail_count_as_tokens(locked: str, home: Path) -> None:
    admin, _ = keys.create_key("reads metrics", ["admin"])
    tokens = http.post(f"{locked}/tokenize", headers=bearer(admin), json={"messages": CHAT["messages"]}).json()["tokens"]
    endless = CHAT | {"max_tokens": 400, "logit_bias": {str(tokens[-2]): -100}, "stream": True}
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tool = {"type": "function", "function": {"name": "note", "parameters": parameters}}
    for number, body in enumerate((endless, CHAT | {"tools": [tool], "tool_choice": "required"})):
        text, _ = keys.create_key(f"cut {number}", tokens_per_minute=2)
        with http.stream("POST", f"{locked}/v1/chat/completions", headers=bearer(text), json=body) as reply:
            first = next(reply.iter_bytes())
        assert reply.status_code == 200 or b"tool_call_truncated" in first
        wait_until(lambda: "num_requests_running 0.0" in http.get(f"{locked}/metrics", headers=bearer(admin)).text)
        assert http.post(f"{locked}/v1/chat/completions", headers=bearer(text), json=CHAT).status_code == 429


def test_keys_are_not_changed_by_two_processes_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "serve.json"
    _, record = keys.create_key("first", file=file)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    with folder_lock(file.parent):
        for change in (lambda: keys.create_key("second", file=file), lambda: keys.revoke_key(record.id, file=file)):
            with pytest.raises(FolderInUseError):
                change()
    keys.revoke_key(record.id, file=file)
    assert keys.read_keys(file) == []


def test_an_idle_connection_stays_for_at_least_a_second() -> None:
    """Without that, a client that sends its next request meets a reset instead of the reply."""
    for header_seconds, idle in ((0.2, 1), (15.0, 15)):
        assert uvicorn_config(ServerConfig(header_seconds=header_seconds), "none:app").timeout_keep_alive == idle


def test_rate_limits_of_a_key(locked: str, home: Path) -> None:
    text, _ = keys.create_key("slow", requests_per_minute=2)
    client = openai.OpenAI(base_url=f"{locked}/v1", api_key=text, max_retries=0)
    for _ in range(2):
        client.chat.completions.create(model="nano", **CHAT)  # type: ignore[call-overload]
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(model="nano", **CHAT)  # type: ignore[call-overload]
    assert 1 <= int(raised.value.response.headers["retry-after"]) <= 30
    tokens, _ = keys.create_key("few tokens", tokens_per_minute=3)
    client = openai.OpenAI(base_url=f"{locked}/v1", api_key=tokens, max_retries=0)
    client.chat.completions.create(model="nano", **CHAT)  # type: ignore[call-overload]
    with pytest.raises(openai.RateLimitError, match="tokens per minute"):
        client.chat.completions.create(model="nano", **CHAT)  # type: ignore[call-overload]


def test_tokenizing_counts_as_a_request(locked: str, home: Path) -> None:
    text, _ = keys.create_key("counts tokens", requests_per_minute=3)
    statuses = [
        http.post(f"{locked}{path}", headers=bearer(text), json=body).status_code
        for path, body in (
            ("/tokenize", {"prompt": "a"}),
            ("/v1/detokenize", {"tokens": [600]}),
            ("/v1/messages/count_tokens", CHAT),
            ("/v1/messages/count_tokens", CHAT),
        )
    ]
    assert statuses == [200, 200, 200, 429]


def test_other_origins_and_rebound_names_are_refused(url: str) -> None:
    for origin in ("http://[", "null", "https://example.com"):
        crossed = http.post(f"{url}/v1/chat/completions", json=CHAT, headers={"Origin": origin})
        assert (crossed.status_code, crossed.json()["error"]["code"]) == (403, "cross_origin")
    assert "access-control-allow-origin" not in crossed.headers
    assert http.request("OPTIONS", f"{url}/v1/models", headers={"Origin": "https://example.com"}).status_code == 403
    rebound = http.get(f"{url}/v1/models", headers={"Host": "example.com"})
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "host")
    assert http.get(f"{url}/v1/models", headers={"Origin": url}).status_code == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "invalid_value"),
        (b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}', "invalid_value"),
        (b"[" * 50_000, "invalid_json"),
        (b"null", "invalid_value"),
        (b'{"messages": 3}', "invalid_value"),
    ],
)
def test_damaged_bodies_are_errors_of_the_client(url: str, body: bytes, code: str) -> None:
    reply = http.post(f"{url}/v1/chat/completions", content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


def test_repeated_headers_are_refused(locked: str, key: str) -> None:
    request = f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nAuthorization: Bearer x\r\n\r\n"
    assert b"400" in exchange(locked, request.encode()).splitlines()[0]


def test_large_bodies_are_refused_before_they_are_read(locked: str, key: str) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n"
    declared = exchange(locked, f"{head}Content-Length: 104857600\r\n\r\n".encode())
    assert b"413" in declared.splitlines()[0]
    chunk = b"4e20\r\n" + b"x" * 20_000 + b"\r\n"
    streamed = exchange(locked, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 6)
    assert b"413" in streamed.splitlines()[0]


@pytest.mark.parametrize("header", ["X: " + "a" * 70_000, "\r\n".join(f"X-{n}: {'a' * 100}" for n in range(700))])
@pytest.mark.parametrize("end", ["", "\r\n\r\n"])
def test_large_headers_are_refused_before_they_end(url: str, header: str, end: str) -> None:
    assert b"400" in exchange(url, f"GET /health HTTP/1.1\r\nHost: localhost\r\n{header}{end}".encode()).splitlines()[0]


def test_headers_of_a_usual_size_are_read(url: str) -> None:
    head = f"GET /health HTTP/1.1\r\nHost: localhost\r\nX: {'a' * 60_000}\r\nConnection: close\r\n\r\n"
    assert b"200" in exchange(url, head.encode()).splitlines()[0]


@pytest.mark.long
def test_slow_clients_are_disconnected(locked: str, key: str) -> None:
    started = time.monotonic()
    assert exchange(locked, b"GET /health HTTP/1.1\r\nHost: a\r\nX: ") == b""
    assert exchange(locked, b"") == b""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Length: 50\r\n\r\n{{"
    assert b"408" in exchange(locked, head.encode()).splitlines()[0]
    assert time.monotonic() - started < 10


def test_half_closed_and_reset_connections_leave_the_server_well(url: str) -> None:
    parts = urlsplit(url)
    body = json.dumps({**CHAT, "stream": True}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for _ in range(3):
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            while connection.recv(65536):
                pass
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            connection.sendall(request[: len(request) // 2])
    assert http.post(f"{url}/v1/chat/completions", json=CHAT).status_code == 200


def test_replies_have_the_headers_of_a_closed_page(url: str) -> None:
    headers = http.get(f"{url}/health").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "server" not in headers


def test_other_addresses_need_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    with pytest.raises(ServerSetupError, match="keys create"):
        check_setup(ServerConfig(host="0.0.0.0", models=("nano",)))
    assert not ServerConfig(host="::1").needs_keys
    assert not ServerConfig(host="localhost").needs_keys
    assert ServerConfig(host="example.com").needs_keys


def test_a_port_in_use_is_named() -> None:
    with bind(ServerConfig(port=0)) as bound:
        bound.listen()
        with pytest.raises(ServerSetupError, match="choose another address or port"):
            bind(ServerConfig(port=bound.getsockname()[1]))


def test_logs_and_metrics_have_no_content(url: str, caplog: pytest.LogCaptureFixture) -> None:
    canary = "canary-7f3a"
    with caplog.at_level("DEBUG"):
        for body in ({"messages": [{"role": "user", "content": canary}]}, {"messages": canary}, {"model": canary, **CHAT}):
            http.post(f"{url}/v1/chat/completions?q={canary}", json={"max_tokens": 2, **body})
        http.get(f"{url}/{canary}")
    assert canary not in "".join(record.getMessage() for record in caplog.records if not record.name.startswith("httpx"))
    assert canary not in http.get(f"{url}/metrics").text


def test_unexpected_errors_are_hidden(
    start_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("secret text")

    monkeypatch.setattr("openafm.serving.service.encode", fails)
    reply = http.post(f"{start_server()}/v1/chat/completions", json=CHAT)
    assert reply.status_code == 500
    assert reply.json()["error"] == {"message": ANY, "type": "server_error", "param": None, "code": "internal_error"}
    assert "secret" not in reply.text
    wait_until(lambda: "RuntimeError" in caplog.text)
    assert "secret" not in caplog.text
