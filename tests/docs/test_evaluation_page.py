"""The task of docs/evaluation.md works, and its commands have the options that the verbs have."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tiny_bundles import write_tiny_bundle

from openafm.cli.main import run
from openafm.evaluation.tasks.catalog import TASKS

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_task_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    bundle = str(write_tiny_bundle(tmp_path / "tiny").path)
    command = ["evaluate", bundle, "--plugins", str(tmp_path / "mine.py"), "--tasks", "Capitals", "--data", str(tmp_path)]
    assert run([*command, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["Capitals"]["count"] == 2


def test_the_page_names_every_task() -> None:
    table = PAGE.partition("## Data")[2].partition("## Rules")[0]
    assert set(re.findall(r"`([a-z0-9_]+(?::lm_eval)?)`", table)) >= set(TASKS)


def test_commands_have_the_options_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [
        shlex.split(line.partition("#")[0]) for line in re.findall(r"^    openafm (evaluate .*)$", PAGE, re.MULTILINE)
    ]
    assert len(commands) == 12
    for words in commands:
        verb = words[1] if not words[1].startswith("-") else "run"
        assert run(["evaluate", verb, "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in words if word.startswith("--"))
