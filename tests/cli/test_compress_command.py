"""`openafm compress NAME` and `openafm compress report A B`: tables, JSON and errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from openafm.bundle import Bundle, bundle_place, open_bundle
from openafm.cli.main import run

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
from tiny_sources import write_source


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def source() -> Bundle:
    return write_source(bundle_place("tiny"), context_length=2048)


@pytest.mark.long
def test_compress_then_report_as_json(
    source: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("events", "held_out", "calculator", "tool_requests"):
        monkeypatch.setattr(f"openafm.evaluation.{module}.MAX_TOKENS", 4)
    astc = "compress tiny --format astc --rank 4 --set calibration.num_rows=1 --json"
    assert run(astc.split()) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["format"], made["source_signature"]) == ("astc", source.signature)
    assert Path(made["bundle"]) == bundle_place("tiny-astc")
    assert run(["compress", "tiny", "--format", "int2", "--name", "two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["adapter_bits_per_weight"] == 0
    assert run(["compress", "report", "tiny", "tiny-astc", "two", "--examples", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["bundles"]
    assert [row["name"] for row in rows] == ["tiny", "tiny-astc", "two"]
    assert run(["compress", "report", "two", "--examples", "1"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("bundle")
    assert "No retention: none of the bundles is uncompressed." in table
    assert run(["inspect", "tiny-astc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["adapter_bits_per_weight"] == made["adapter_bits_per_weight"]


def test_options_before_the_name(source: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compress", "--json", "--no-calibration", "--rank", "0", "tiny"]) == 0
    assert json.loads(capsys.readouterr().out)["adapter_bits_per_weight"] == 0
    assert "without calibration" in open_bundle("tiny-astc").card()


def test_a_bundle_with_the_name_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_source(tmp_path / "report")
    for command in ("compress ./report --format int2", "compress BUNDLE report --format int2"):
        assert run(command.split()) == 0
        assert "report-int2" in capsys.readouterr().out


def test_the_help_explains_both(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compress", "compress --help"):
        assert run(command.split()) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "openafm compress NAME --format astc" in shown
        assert "openafm compress report A B" in shown
    assert run(["compress", "tiny", "--help"]) == 0
    assert "--no-calibration" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "exit_code", "text"),
    [
        ("compress tiny --format gguf", 2, "unknown format 'gguf'; known: astc, int2"),
        ("compress nosuch", 2, "no bundle 'nosuch'"),
        ("compress tiny --name tiny", 2, "choose another --name"),
        ("compress tiny --name a/b", 2, "cannot name a bundle"),
        ("compress tiny --format int2 --rank 4", 2, "adapter"),
        ("compress tiny --format int2 --no-calibration", 2, "calibration"),
        ("compress tiny --format int8 --method hqq", 2, "--method hqq is for --format int4"),
        ("compress tiny --format int4 --method gptq --no-calibration", 2, "--method gptq is for --format int4 with"),
        ("compress tiny --rank 99 --no-calibration", 2, "got 99"),
        ("compress tiny --rank -1", 2, "rank must be positive"),
        ("compress report", 2, "--help"),
        ("compress report nosuch --json", 2, "no bundle 'nosuch'"),
        ("compress report tiny --examples 0", 2, "at least one example"),
    ],
)
def test_errors_are_one_line(
    command: str, exit_code: int, text: str, source: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command.split()) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert text in captured.err
