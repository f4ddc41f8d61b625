"""The commands of private compute in processes of their own, and canaries in everything that they write."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import http

from openafm.cli.main import run

Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a command in a process with its own home, and returns its URL."""
    with contextlib.ExitStack() as stack:

        def started(home: str, *arguments: str) -> str:
            folder = tmp_path / home
            folder.mkdir(exist_ok=True)
            environment = {**os.environ, "OPENAFM_HOME": str(folder / "openafm"), "TMPDIR": str(folder), "HOME": str(folder)}
            output, errors = (stack.enter_context((folder / name).open("w+b")) for name in ("stdout.txt", "stderr.txt"))
            command = [sys.executable, "-m", "openafm", *arguments, "--port", "0", "--json"]
            process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=errors)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            deadline = time.monotonic() + 90
            while time.monotonic() < deadline and process.poll() is None:
                lines = (folder / "stdout.txt").read_text().splitlines()
                with contextlib.suppress(Exception):
                    url = str(json.loads(lines[0])["url"])
                    http.get(f"{url}/checkpoint", timeout=30)
                    return url
                time.sleep(0.1)
            raise AssertionError((folder / "stderr.txt").read_text())

        yield started


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["private", "ask", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_from_a_release_to_an_answer_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: Start
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "client"))
    monkeypatch.chdir(tmp_path)
    assert run(["private", "log", "init", "log", "--origin", "example.com/releases", "--json"]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    assert run(["private", "release", "node", "--model", "nano"]) == 0
    assert run(["private", "log", "add", "log", "node/release.json"]) == 0
    log_url = start("log_home", "private", "log", "serve", str(tmp_path / "log"))
    node_url = start("node_home", "serve", "--private", str(tmp_path / "node"))
    relay_url = start("relay_home", "private", "relay", "--to", node_url)
    code, _, error = ask(capsys, relay_url, "Hello")
    assert (code, "private trust" in error) == (2, True)
    assert run(["private", "trust", key, "--log", log_url]) == 0
    code, _, error = ask(capsys, relay_url, "Hello")
    assert (code, "--accept software-only" in error) == (1, True)

    canary = "zebra-quartz-81723"
    code, answer, error = ask(capsys, relay_url, f"Repeat: {canary}", "--accept", "software-only", "--max-tokens", "32")
    assert (code, error) == (0, "")
    assert answer.strip()
    assert ask(capsys, node_url, canary, "--accept", "software-only", "-m", canary)[0] == 1
    wrong = http.post(f"{node_url}/{canary}?{canary}=1", json={"messages": canary}, headers={"X-Note": canary})
    assert wrong.status_code == 404
    searched = 0
    words = [canary.encode(), *(word.encode() for word in (answer.strip(),) if len(answer.strip()) > 12)]
    for home in ("node_home", "relay_home", "log_home"):
        for path in (tmp_path / home).rglob("*"):
            if path.is_file():
                searched += 1
                content = path.read_bytes()
                assert not any(word in content for word in words), path
    assert searched >= 6
    metrics = http.get(f"{node_url}/metrics").content
    assert b"openafm" in metrics
    assert canary.encode() not in metrics

    assert (
        run(["private", "release", "node2", "--model", "nano", "--set", "max_choices=1", "--number", "2", "--minimum", "2"])
        == 0
    )
    assert run(["private", "log", "add", "log", "node2/release.json"]) == 0
    code, _, error = ask(capsys, node_url, "Hello", "--accept", "software-only")
    assert (code, "refused (downgraded)" in error) == (1, True), error


def test_settings_of_a_node_are_fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--private", str(tmp_path), "--model", "nano"]) == 2
    assert "models" in capsys.readouterr().err
    assert run(["serve", "--private", str(tmp_path)]) == 2
    assert "private release" in capsys.readouterr().err
    assert run(["private", "release", str(tmp_path / "node"), "--model", "nano", "--set", "workers=2"]) == 2
    assert "one process" in capsys.readouterr().err
    assert run(["private", "release", str(tmp_path / "node"), "--model", "nano", "--set", "guardrail_model=x"]) == 2
    assert "guardrail_model" in capsys.readouterr().err


def test_a_node_without_a_release_shows_no_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["private", "release", str(tmp_path), "--model", "nano"]) == 0
    (tmp_path / "release.json").unlink()
    capsys.readouterr()
    assert run(["serve", "--private", str(tmp_path), "--port", "0"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "has no release" in shown.err


def test_a_relay_for_other_machines_needs_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    assert run(["private", "relay", "--to", "http://localhost:1", "--host", "0.0.0.0"]) == 2
    assert "keys create" in capsys.readouterr().err


def test_a_witness_signs_a_log_that_only_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from private_servers import running
    from statements_of_nodes import release

    from openafm.serving.private.log.release_log import ReleaseLog
    from openafm.serving.private.log.server import build_log_server

    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    log = ReleaseLog.create(tmp_path / "log", "example.com/releases")
    log.add(release(1))
    options = ("--name", "example.org/w", "--key", str(tmp_path / "w.key"), "--json")
    with running(build_log_server(log.folder)) as url:
        assert run(["private", "witness", url, str(log.key), *options]) == 0
        signed = json.loads(capsys.readouterr().out)
        assert run(["private", "log", "cosign", str(log.folder), signed["key"], signed["signature"]]) == 0
        assert "example.org/w" in http.get(f"{url}/checkpoint").text
        log.add(release(2))
        assert http.get(f"{url}/checkpoint").text.splitlines()[1] == "2"
        assert run(["private", "witness", url, str(log.key), *options]) == 0
        assert http.get(f"{url}/entries/1").content == release(2).data
        assert http.get(f"{url}/entries/2").status_code == 404
        assert http.get(f"{url}/proofs?leaf=zz").status_code == 400
    (tmp_path / "other" / "entries").mkdir(parents=True)
    for name in ("log.key", "log.key.pub", "origin"):
        (tmp_path / "other" / name).write_bytes((log.folder / name).read_bytes())
    forked = log.folder.with_name("other")
    from openafm.serving.private.log.release_log import _write_checkpoint

    _write_checkpoint(forked, [], log.key)
    ReleaseLog(forked).add(release(3))
    with running(build_log_server(forked)) as url:
        capsys.readouterr()
        assert run(["private", "witness", url, str(log.key), *options]) == 1
        assert "rolled-back" in capsys.readouterr().err
