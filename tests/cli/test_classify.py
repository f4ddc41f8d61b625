"""`openafm classify`: one text, lines, JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from openafm.cli.main import run

LABELS = ["--label", "set alarm: a time to wake up", "--label", "play music"]


def test_a_text_has_a_label_with_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["classify", "put on some jazz", *LABELS]) == 0
    first, second = capsys.readouterr().out.strip().splitlines()
    assert first.startswith("play music")
    assert second.startswith("set alarm")
    assert run(["classify", "put on some jazz", *LABELS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["label"] == "play music"
    assert sum(found["probabilities"].values()) == pytest.approx(1)


def test_each_line_has_a_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "wake me up at six\n\nput on some jazz\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert run(["classify", "--lines", "-", *LABELS]) == 0
    assert capsys.readouterr().out == "set alarm\twake me up at six\nplay music\tput on some jazz\n"
    (tmp_path / "texts.txt").write_text(text, encoding="utf-8")
    assert run(["classify", "--lines", str(tmp_path / "texts.txt"), *LABELS, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["wake me up at six", "put on some jazz"]


def test_a_line_without_a_label_is_named_and_the_others_are_classified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n" + "rain " * 5000 + "\nput on some jazz\n", encoding="utf-8")
    assert run(["classify", "--lines", str(tmp_path / "texts.txt"), *LABELS]) == 1
    output = capsys.readouterr()
    assert output.out == "play music\tput on some jazz\n"
    assert "line 2: labels and text need" in output.err
    assert "1 line has no label" in output.err
    (tmp_path / "texts.txt").write_bytes(b"\xff\xfe\n")
    assert run(["classify", "--lines", str(tmp_path / "texts.txt"), *LABELS]) == 2
    assert "texts.txt" in capsys.readouterr().err


def test_wrong_input_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["classify", "  ", *LABELS]) == 2
    assert "the text is empty" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert run(["classify", "--lines", "-", *LABELS, "--model", "missing"]) == 2
    assert capsys.readouterr().err.count("no bundle 'missing'") == 1


def test_standard_input_is_a_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("put on some jazz"))
    assert run(["classify", "-", *LABELS]) == 0
    assert capsys.readouterr().out.startswith("play music")
