"""`openafm adapter`: output and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterAbout, write_adapter
from openafm.adapters.store import installed_adapters
from openafm.bundle import open_bundle, shipped_bundle
from openafm.bundle.store import SHIPPED_NAME
from openafm.cli.main import run

OTHER_SIGNATURE = "f" * 40


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def signature() -> str:
    """Return the signature of the current model, the shipped one."""
    shipped = shipped_bundle()
    assert shipped is not None
    return open_bundle(shipped).signature


def write(path: Path, base_signature: str, name: str = "tags") -> Path:
    weights = {"q.lora.a": np.ones((3, 6)), "q.lora.b": np.ones((5, 3))}
    about = AdapterAbout(author="A. Uthor")
    return write_adapter(
        path, weights=weights, config=LoRAConfig(rank=3), base_signature=base_signature, name=name, about=about
    ).path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["adapter", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["adapter", *arguments]) in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("openafm: ")
    return lines[0]


def test_install_inspect_and_remove(tmp_path: Path, signature: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "list") == []
    identifier = f"fmadapter-tags-{signature[:7]}"
    installed = printed(capsys, "install", str(write(tmp_path / "a", signature)))
    assert installed["identifier"] == identifier
    printed(capsys, "install", str(write(tmp_path / "b", OTHER_SIGNATURE)))
    listing = {entry["identifier"]: entry for entry in printed(capsys, "list")}
    assert listing[identifier]["base"] == SHIPPED_NAME
    assert listing["fmadapter-tags-fffffff"]["base"] is None
    assert run(["adapter", "list"]) == 0
    assert "obsolete" in capsys.readouterr().out
    described = printed(capsys, "inspect", "tags")
    assert described["path"] == installed["path"]
    assert (described["author"], described["rank"], described["parameters"]) == ("A. Uthor", 3, 33)
    assert run(["adapter", "inspect", str(tmp_path / "a")]) == 0
    assert "A. Uthor" in capsys.readouterr().out
    assert printed(capsys, "remove", "--obsolete") == {"removed": ["fmadapter-tags-fffffff"]}
    assert printed(capsys, "remove", "tags") == {"removed": [identifier]}
    assert installed_adapters() == []


def test_a_damaged_bundle_does_not_break_other_verbs(
    tmp_path: Path, signature: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "install", str(write(tmp_path / "a", OTHER_SIGNATURE)))
    broken = tmp_path / "home" / "bundles" / "broken"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    (entry,) = printed(capsys, "list")
    assert (entry["name"], entry["base"], entry["error"]) == ("tags", None, None)
    assert printed(capsys, "inspect", str(tmp_path / "a"))["base"] is None
    assert "broken" in failure(capsys, "remove", "--obsolete")  # its signature is unknown, so nothing is removed
    assert len(installed_adapters()) == 1


def test_a_damaged_adapter_is_listed_and_not_described(
    tmp_path: Path, signature: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(printed(capsys, "install", str(write(tmp_path / "a", signature)))["path"])
    (place / "metadata.json").write_text("{")
    (entry,) = printed(capsys, "list")
    assert "metadata.json" in entry["error"]
    assert "metadata.json" in failure(capsys, "inspect", "tags")
    assert printed(capsys, "remove", "tags")["removed"] == [place.name]


def test_failures_are_one_line(tmp_path: Path, signature: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "a", signature))
    data = tmp_path / "train.jsonl"
    data.write_text('{"messages": []}\n')
    assert "letters" in failure(capsys, "export", path, "--name", "two words", "--output", str(tmp_path / "out"))
    assert "KEY=VALUE" in failure(capsys, "export", path, "--name", "x", "--output", str(tmp_path), "--set", "x")
    assert "no bundle" in failure(capsys, "export", path, "--name", "x", "--output", str(tmp_path), "--draft", "none")
    assert "train.jsonl:1" in failure(capsys, "train", "--data", str(data), "--output", str(tmp_path / "run"))
    assert "letters" in failure(capsys, "train", "--data", str(data), "--name", "a-b")
    assert "train.jsonl:1" in failure(capsys, "draft-train", path, "--data", str(data), "--output", str(tmp_path / "run"))
    assert "cannot name a bundle" in failure(capsys, "draft-train", path, "--data", str(data), "--name", "a/b")
    assert "either the NAME" in failure(capsys, "remove")
    assert "either the NAME" in failure(capsys, "remove", "x", "--obsolete")
    assert "is installed" in failure(capsys, "remove", "x")
    assert "cannot be reached" in failure(capsys, "pull", "http://127.0.0.1:1", "tags")
    assert "not a key" in failure(capsys, "serve", str(tmp_path), "--key", str(data))
    assert "has no adapters" in failure(capsys, "serve", str(tmp_path / "nowhere"))


def test_export_keeps_values_as_json_or_text(tmp_path: Path, signature: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "a", signature))
    values = ("--set", "count=3", "--set", 'list=["a",1]', "--set", "text=so it is", "--author", "B. Uthor")
    exported = printed(capsys, "export", path, "--name", "titles", "--output", str(tmp_path / "out"), *values)
    assert exported["creator_defined"] == {"count": 3, "list": ["a", 1], "text": "so it is"}
    assert (exported["author"], exported["name"], exported["draft"]) == ("B. Uthor", "titles", None)
    assert Path(exported["path"]) == tmp_path / "out" / "titles.fmadapter"


def test_serve_and_pull(tmp_path: Path, signature: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "shelf" / "tags.fmadapter", signature)
    keys = printed(capsys, "keygen", str(tmp_path / "mine"))
    command = [sys.executable, "-m", "openafm", "adapter", "serve", str(tmp_path / "shelf"), "--port", "0", "--json"]
    server = subprocess.Popen(
        [*command, "--key", keys["private"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs ignore SIGINT
    )
    assert server.stdout is not None
    assert server.stderr is not None
    served = json.loads(server.stdout.readline())
    assert (served["key"], served["adapters"]) == (keys["key"], [f"fmadapter-tags-{signature[:7]}"])
    pulled = printed(capsys, "pull", served["url"], "tags", "--key", keys["public"])
    assert pulled["fetched_bytes"] > 0
    assert printed(capsys, "pull", served["url"], "tags")["fetched_bytes"] == 0
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 130
    server.stdout.close()
    server.stderr.close()
