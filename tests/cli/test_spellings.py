"""One rule for models and projects, exit codes of absent paths, and errors of the system as sentences."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tiny_bundles import write_tiny_bundle

from openafm.cli import output
from openafm.cli.main import run
from openafm.cli.output import counted


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ("show", "nope"),
        ("show", "--model", "nope"),
        ("show", "--json", "-m", "nope"),
        ("show", "--model=nope"),
        ("doctor", "-m", "nope"),
        ("use", "--model", "nope"),
        ("compress", "--model", "nope"),
        ("chat", "nope"),
        ("chat", "-m", "nope"),
        ("evaluate", "tools", "nope", "--out", "x"),
        ("evaluate", "-m", "nope"),
        ("respond", "-m", "nope", "hi"),
    ],
)
def test_models_are_arguments_or_options(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 2
    assert "no bundle 'nope' on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("grade", "report", "--project", "nope"),
        ("annotate", "export", "nope", "--to", "sft", "--out", "x"),
        ("safety", "report", "nope"),
    ],
)
def test_projects_are_arguments_or_options(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) in (1, 2)
    assert "nope" in capsys.readouterr().err  # the project, not a missing option


@pytest.mark.parametrize(
    "command",
    [
        "evaluate compare absent absent",
        "evaluate card absent",
        "safety redteam absent",
        "grade report absent",
        "train-recipes absent",
        "export nope --out x",
    ],
)
def test_absent_paths_and_missing_options_are_wrong_calls(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "[Errno" not in error


def test_a_folder_that_exists_but_holds_something_else_is_a_failure(tmp_path: Path) -> None:
    assert run(["safety", "report", str(tmp_path)]) == 1
    assert run(["evaluate", "card", str(tmp_path)]) == 1


def test_values_that_look_like_options_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "create", "--model", "x"]) == 2  # a name of a key is no model
    assert "No such option: --model" in capsys.readouterr().err


def test_targets_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_tiny_bundle(tmp_path / "tiny").path
    (tmp_path / "file").write_text("a")
    command = ["evaluate", str(bundle), "--tasks", "needles", "--limit", "1", "--data", ".", "--out", "file/below"]
    assert run(command) == 1
    assert "file/below/samples: Not a directory; a part of the path is a file" in capsys.readouterr().err
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert run([*command[:-1], "locked/below"]) == 1
        assert "choose a place that you can write" in capsys.readouterr().err


def test_data_in_a_folder_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_tiny_bundle(tmp_path / "tiny").path
    command = ["evaluate", str(bundle), "--tasks", "gsm8k", "--out", "scores", "--data"]
    (tmp_path / "there").mkdir()
    assert [run([*command, folder]) for folder in ("absent", "there")] == [2, 1]
    assert capsys.readouterr().err.count("(license: MIT)") == 2


def test_numbers_with_nouns() -> None:
    assert [counted(number, "bundle") for number in (0, 1, 2_000)] == ["0 bundles", "1 bundle", "2,000 bundles"]
    assert [counted(number, "reply", "replies") for number in (1, 2)] == ["1 reply", "2 replies"]


def test_commands_print_counts_with_the_helper() -> None:
    """A number before a plural in a message is wrong for 1."""
    counts = re.compile(r"\{(?:len\([^}]*\)|[a-z_.]*(?:num_[a-z]+|count)(?::,)?)\} (?!s\b|ms\b)[a-z]+s\b")
    wrong = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(Path(output.__file__).parent.glob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if counts.search(line)
    ]
    assert not wrong
