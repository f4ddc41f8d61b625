"""Commands of stages: values of earlier ones, servers, resuming, full disks, the death of the parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from openafm.core.files import OutOfSpaceError
from openafm.core.folder_lock import folder_lock
from openafm.recipes.reproduction import results as results_module
from openafm.recipes.reproduction import runner
from openafm.recipes.reproduction.commands import CommandFailedError, StageCommands
from openafm.recipes.reproduction.cpu_time import children
from openafm.recipes.reproduction.requirements import missing_parts
from openafm.recipes.reproduction.results import StageState, read_results
from openafm.recipes.reproduction.runner import run_stages
from openafm.recipes.reproduction.stages.stage import Command, Stage

TAXONOMY = Command(name="list", words=("safety", "taxonomy", "--json"))
LOG = Command(name="log", words=("private", "log", "init", "{here}/log", "--origin", "a.example/b", "--json"))
SERVER = Command(name="server", words=("private", "log", "serve", "{here}/log", "--port", "0", "--json"), serves=True)
WITNESS = Command(
    name="witness", words=("private", "witness", "{server.url}", "{log.key}", "--name", "c.example/d", "--json")
)


@pytest.mark.long
def test_a_server_runs_while_later_commands_use_its_address(tmp_path: Path) -> None:
    stage = Stage(name="logged", section="1", title="t", commands=(LOG, SERVER, WITNESS))
    before = children(os.getpid())  # of other tests
    (result,) = run_stages((stage,), tmp_path, "tiny", (), lambda _: None)
    assert result.reason == ""
    assert result.figures["witness"]["key"].startswith("c.example/d+")
    assert set(result.command_seconds) == {"log", "witness"}
    port = int(result.figures["server"]["url"].rpartition(":")[2])
    assert port > 0
    assert set(children(os.getpid())) <= set(before)  # the server has ended


@pytest.mark.long
def test_finished_commands_of_a_failed_stage_are_kept(tmp_path: Path) -> None:
    entry = Command(name="entry", words=("private", "log", "add", "{here}/log", "{here}/release.json", "--json"))
    stage = Stage(name="logged", section="1", title="t", commands=(LOG, entry))
    (first,) = run_stages((stage,), tmp_path, "tiny", (), lambda _: None)
    assert first.state is StageState.FAILED
    (second,) = run_stages((stage,), tmp_path, "tiny", (), lambda _: None)
    assert second.figures == first.figures != {}
    assert "exists" not in second.reason  # `log init` refuses an existing log, and did not run again


def test_codes_and_outputs_of_commands_are_checked(tmp_path: Path) -> None:
    check = Command(name="check", words=("safety", "check", "How do I bake bread?"))
    with StageCommands(tmp_path, tmp_path / "home", {}) as commands:
        with pytest.raises(CommandFailedError, match="`openafm safety check` printed no JSON: b'allowed"):
            commands.call(check)
        assert commands._filled('{"type": "x"}{here}{a.b}') == '{"type": "x"}{here}{a.b}'


def test_missing_optional_parts_leave_commands_out(tmp_path: Path) -> None:
    left_out = Command(name="left_out", words=("no",), requires=("program:no-such",), lost="some pages")
    stage = Stage(name="some", section="1", title="t", commands=(left_out, TAXONOMY))
    (result,) = run_stages((stage,), tmp_path, "tiny", (), lambda _: None)
    assert result.state is StageState.DONE
    assert result.notes == ("some pages: needs program no-such",)
    assert read_results(tmp_path)[1] == [result]
    assert missing_parts(("module:json",)) == []
    assert missing_parts(("module:ray_that_is_not_there",)) == ["module ray_that_is_not_there"]


def test_a_full_disk_fails_the_stage_and_results_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = results_module.write_json
    is_full = [True]

    def write(path: Path, value: object) -> None:
        if is_full[0] and (tmp_path / "reserve").exists():
            raise OutOfSpaceError(f"{path}: no space left on the device")
        written(path, value)

    monkeypatch.setattr(results_module, "write_json", write)
    monkeypatch.setattr(runner, "write_json", write)
    stage = Stage(name="some", section="1", title="t", commands=())
    (result,) = run_stages((stage,), tmp_path, "tiny", (), lambda _: None)
    assert result.state is StageState.FAILED
    assert "free some space" in result.reason
    assert read_results(tmp_path)[1] == [result]
    is_full[0] = False
    assert run_stages((stage,), tmp_path, "tiny", (), lambda _: None)[0].state is StageState.DONE


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_children_end_with_a_killed_parent_and_the_folder_is_free(tmp_path: Path) -> None:
    program = f"""
        from pathlib import Path
        from openafm.recipes.reproduction.runner import run_stages
        from openafm.recipes.reproduction.stages.stage import Command, Stage
        from tests.recipes.reproduction.test_commands import LOG, SERVER
        from dataclasses import replace
        endless = replace(SERVER, serves=False)
        stage = Stage(name="logged", section="1", title="t", commands=(LOG, SERVER, endless))
        run_stages((stage,), Path({str(tmp_path)!r}), "tiny", (), print)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    part = tmp_path / "logged" / "outputs" / "server.json.part"
    wait_for(lambda: part.is_file() and part.read_bytes() != b"")
    processes = children(parent.pid)
    assert len(processes) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in processes))
    with folder_lock(tmp_path):
        assert json.loads(part.read_bytes())["url"]


def wait_for(is_true: object) -> None:
    """Wait up to two minutes."""
    assert callable(is_true)
    deadline = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
