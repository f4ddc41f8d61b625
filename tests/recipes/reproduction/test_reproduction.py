"""Stages: finished ones are kept, failed or missing ones are reported; claims and the page come from stored outputs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from openafm.cli.main import app, run
from openafm.core.config import override
from openafm.core.errors import UsageError
from openafm.recipes.catalog import build_run
from openafm.recipes.reproduction.claims.catalog import CLAIMS, measured_claims
from openafm.recipes.reproduction.next_commands import next_commands
from openafm.recipes.reproduction.page.page import write_pages
from openafm.recipes.reproduction.results import StageResult, StageState, read_results
from openafm.recipes.reproduction.runner import kept_stages, run_stages
from openafm.recipes.reproduction.sizes import SIZES
from openafm.recipes.reproduction.stages.catalog import report_stages
from openafm.recipes.reproduction.stages.stage import Command, Stage

GOOD = Stage(
    name="good", section="1", title="works", commands=(Command(name="list", words=("safety", "taxonomy", "--json")),)
)
BAD = Stage(name="bad", section="2", title="fails", commands=(Command(name="no", words=("inspect", "nothing", "--json")),))
AFTER = replace(GOOD, name="after", needs=("bad",))
ABSENT = replace(GOOD, name="absent", requires=("module:no_such_module",))


def outcomes(results: list[StageResult]) -> dict[str, StageState]:
    return {result.name: result.state for result in results}


@pytest.mark.long
def test_done_stages_are_kept_and_failures_stop_what_needs_them(tmp_path: Path) -> None:
    lines: list[str] = []
    results = run_stages((GOOD, BAD, AFTER, ABSENT), tmp_path, "tiny", (), lines.append)
    assert outcomes(results) == {
        "good": StageState.DONE,
        "bad": StageState.FAILED,
        "after": StageState.SKIPPED,
        "absent": StageState.SKIPPED,
    }
    by_name = {result.name: result for result in results}
    assert len(by_name["good"].figures["list"]["subcategories"]) == 58
    assert "nothing" in by_name["bad"].reason
    assert "no_such_module" in by_name["absent"].reason
    assert any("failed" in line for line in lines)
    assert read_results(tmp_path) == ("tiny", results)
    again = run_stages((GOOD,), tmp_path, "tiny", (), lines.append)
    assert outcomes(again) == {"good": StageState.KEPT}
    assert again[0].figures == by_name["good"].figures


@pytest.mark.long
def test_a_changed_stage_and_those_that_need_it_are_done_again(tmp_path: Path) -> None:
    second = replace(GOOD, name="second", needs=("good",))
    run_stages((GOOD, second), tmp_path, "tiny", (), lambda _: None)
    (tmp_path / "good" / "old").write_text("of the old commands")
    changed = replace(GOOD, commands=(replace(GOOD.commands[0], name="other"),))
    assert kept_stages((changed, second), tmp_path) == {}
    assert set(kept_stages((GOOD, second), tmp_path)) == {"good", "second"}
    results = run_stages((changed, second), tmp_path, "tiny", ("good",), lambda _: None)
    assert outcomes(results) == {"good": StageState.DONE, "second": StageState.SKIPPED}
    assert set(results[0].figures) == {"other"}
    assert not (tmp_path / "good" / "old").exists()


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no stage is called 'x'; the stages are good"):
        run_stages((GOOD,), tmp_path, "tiny", ("x",), lambda _: None)
    run_stages((GOOD,), tmp_path, "tiny", (), lambda _: None)
    with pytest.raises(UsageError, match="holds a reproduction of size tiny"):
        run_stages((GOOD,), tmp_path, "micro", (), lambda _: None)
    assert run(["reproduce", "--size", "huge", "--out", str(tmp_path)]) == 2
    assert run(["reproduce", "report", str(tmp_path / "nothing")]) == 2


@pytest.mark.parametrize("size", SIZES)
def test_stages_need_earlier_ones_and_claims_name_stages(size: str) -> None:
    stages = report_stages(size)
    names = [stage.name for stage in stages]
    assert len(set(names)) == len(names)
    for number, stage in enumerate(stages):
        assert set(stage.needs) <= set(names[:number])
        assert len({command.name for command in stage.commands}) == len(stage.commands)
    commands = {(stage.name, command.name) for stage in stages for command in stage.commands}
    assert {(claim.stage, claim.command) for claim in CLAIMS} <= commands


@pytest.mark.parametrize("size", SIZES)
def test_commands_fit_the_verbs_and_changes_fit_the_recipes(size: str) -> None:
    verbs = typer.main.get_command(app)
    for command in (command for stage in report_stages(size) for command in stage.commands):
        words = list(command.words)
        if words[0] == "compress" and words[1] != "report":
            words.insert(1, "BUNDLE")  # may be left out
        verb, words = resolved(verbs, words)
        known = {name for parameter in verb.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, command.words
        if command.words[0] == "train":
            changes = (words[number + 1].partition("=") for number, word in enumerate(words) if word == "--set")
            config = build_run(command.words[1], command.words[command.words.index("--size") + 1])
            override(config, {key: value for key, _, value in changes if "corpora" not in key or "--data" not in words})


def resolved(command: Any, words: list[str]) -> tuple[Any, list[str]]:
    """Return the verb of a command line, and the words after its name."""
    while hasattr(command, "resolve_command"):
        _, command, words = command.resolve_command(typer.Context(command), words)
    return command, words


@pytest.mark.long
def test_claims_and_page_come_from_the_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report's own figures of its architecture are measured on its own sizes, so they hold at any size."""
    out = tmp_path / "run"
    assert run(["reproduce", "--size", "tiny", "--only", "models,taxonomy", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    holding = {claim["text"]: claim["ours"] for claim in found["claims"] if claim["holds"]}
    assert holding["sharing keys and values makes the KV cache smaller"] == "-37.5%"
    assert holding["tracks need fewer synchronizations than tensor parallelism"] == "-87.5% (12 against 96)"
    assert holding["categories and subcategories of harm"] == "6 and 58"
    assert found["claims_measured"] == found["claims_holding"] == len(holding)
    assert not (out / "reserve").exists()  # on a full disk the page needs its space
    page = Path(found["page"]).read_text()
    assert "-87.5% (12 against 96)" in page
    assert "left out by --only" in page
    (out / "home").mkdir(exist_ok=True)
    assert run(["reproduce", "report", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "hold in shape" in shown
    assert f"bundles: {out / 'home'}" in shown


def test_the_commands_to_try_next_use_what_was_made(tmp_path: Path) -> None:
    def done(*names: str) -> list[StageResult]:
        return [StageResult(name=name, digest="", state=StageState.KEPT, figures={}) for name in names]

    folder = tmp_path / "my run"
    assert next_commands(folder, "tiny", []) == []
    found = next_commands(folder, "tiny", done("pretraining", "two_bits", "images", "framework"))
    assert len(found) == 3
    verbs = typer.main.get_command(app)
    for line in found:
        home, program, *words = shlex.split(line)
        assert (home, program) == (f"OPENAFM_HOME={folder / 'home'}", "openafm")
        verb, words = resolved(verbs, words)
        known = {name for parameter in verb.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
    failed = [replace(result, state=StageState.FAILED) for result in done("pretraining")]
    assert next_commands(folder, "tiny", failed) == []


def test_a_figure_that_an_output_lacks_is_not_measured(tmp_path: Path) -> None:
    stage = report_stages("tiny")[0]
    result = StageResult(name="models", digest="", state=StageState.DONE, figures={"on_device": {}}, seconds=1.0)
    claims = measured_claims([result], [stage], "tiny")
    assert all(claim.holds is None for claim in claims)
    assert claims[0].ours.startswith("not measured: the output of models has no")
    html, markdown = write_pages(tmp_path, "tiny", (stage,), [replace(result, reason="<script>")], claims)
    assert "<script>" not in html.read_text()
    assert "not measured" in markdown.read_text()


@pytest.mark.slow
def test_the_smallest_size_ends_after_kills(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "openafm", "reproduce", "--size", "tiny", "--out", str(tmp_path / "run"), "--json"]
    for seconds in (20, 60):  # in the midst of stages
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sdk = found["stages"].pop("apple_sdk")
    assert sdk["state"] in ("done", "kept") or "openafm apple-sdk install" in sdk["reason"]
    assert {stage["state"] for stage in found["stages"].values()} <= {"done", "kept"}
    assert found["claims_measured"] >= 40
