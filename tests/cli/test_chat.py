"""`openafm chat` and `openafm respond` on the shipped model: commands, interruption, standard input, escaping."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_bundles import write_tiny_bundle

import openafm as fm
from openafm.cli.chat import ChatLoop
from openafm.cli.main import run
from openafm.cli.output import escaped, human_bytes, human_number, styled
from openafm.cli.respond import default_instructions, generation_options
from openafm.framework.backends.language_model import FinishReason
from openafm.framework.backends.system_model import SystemLanguageModel

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))


def chat(lines: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return run(["chat", "--max-tokens", "16"])


def test_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [
        "hello",
        "/save chat.session",
        "/undo",
        "/undo",
        "/load chat.session",
        "/schema schema.json",
        "Dinner with Maria",
        "/schema off",
        "/model nano",
        "/nonsense",
        "/load",
        "/clear",
        "/exit",
        "not read",
    ]
    assert chat("\n".join(lines), monkeypatch) == 0
    captured = capsys.readouterr()
    answers, notes = captured.out, captured.err
    assert json.loads(answers[answers.index("{") :]).keys() == {"title"}
    for note in (
        "saved to chat.session",
        "removed the last prompt",
        "there is no prompt to undo",
        "loaded a conversation with 1 prompt",
        "answers satisfy schema.json",
        "continues with nano",
        "unknown command /nonsense; /help",
        "/load needs a file",
        "started a new conversation",
    ):
        assert note in notes
    assert (tmp_path / "chat.session").is_file()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/load absent.session", "absent.session is not a file; /load reads a conversation that /save wrote"),
        ("/load .", ". is not a file"),
        ("/load schema.json", "schema.json"),
        ("/save absent/chat.session/", "absent"),
        ("/schema absent.json", "the schema absent.json cannot be read: No such file or directory"),
        ("/model absent", "no bundle 'absent'"),
    ],
)
def test_a_wrong_argument_is_explained_without_error_numbers(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(line, monkeypatch) == 0
    notes = capsys.readouterr().err
    assert message in notes
    assert "Errno" not in notes


@pytest.mark.parametrize("command", ["respond", "chat"])
def test_input_that_is_not_utf_8_is_explained(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for errors, place in (("strict", "the byte 0xE9 is not UTF-8"), ("surrogateescape", "is the byte 0xE9")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors))
        code = run([command, "--instructions", ""])
        captured = capsys.readouterr().err
        assert place in captured
        assert "iconv" in captured
        assert "encode_bytes" not in captured
        assert code == (2 if errors == "strict" else 0 if command == "chat" else 1)


def test_a_continued_line_and_a_block_are_one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []
    monkeypatch.setattr(ChatLoop, "_answer", lambda self, prompt: prompts.append(prompt))
    assert chat('one \\\ntwo\n"""three\nfour"""\nfive\n', monkeypatch) == 0
    assert prompts == ["one \ntwo", "three\nfour", "five"]


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    loop = ChatLoop(SystemLanguageModel(), default_instructions(), generation_options(None, None, 64), None)
    loop._answer("hello")
    session, before = loop._session, len(loop._session.transcript)
    stream = session.stream_blocking

    def interrupted(*arguments: Any, **keywords: Any) -> Iterator[Any]:
        for index, snapshot in enumerate(stream(*arguments, **keywords)):
            if index == 0:
                signal.raise_signal(signal.SIGINT)
            yield snapshot

    session.stream_blocking = interrupted  # type: ignore[method-assign, assignment]
    handler = signal.getsignal(signal.SIGINT)
    loop._answer("Tell me of the sea.")
    assert "stopped" in capsys.readouterr().err
    assert len(session.transcript) == before
    assert signal.getsignal(signal.SIGINT) is handler
    session.stream_blocking = stream  # type: ignore[method-assign]
    loop._answer("and now?")
    assert len(session.transcript) == before + 2


def test_respond_reads_prompt_or_schema_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Dinner with Maria"))
    assert run(["respond", "--schema", "schema.json", "--max-tokens", "200"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"title"}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(SCHEMA)))
    assert run(["respond", "Dinner with Maria", "--schema", "-", "--max-tokens", "200"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"title"}
    assert run(["respond", "--schema", "-"]) == 2
    assert "one of them as an argument" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert run(["respond"]) == 2
    assert "standard input is empty" in capsys.readouterr().err


def test_an_empty_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    empty = SimpleNamespace(content=" ", finish_reason=FinishReason.STOP)
    monkeypatch.setattr(
        "openafm.framework.session.session.LanguageModelSession.respond_full_blocking", lambda *_, **__: empty
    )
    assert run(["respond", "hello"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "empty answer" in captured.err
    assert "--schema" in captured.err


def test_a_text_of_the_shipped_model_comes_with_what_it_is_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SimpleNamespace(content="January", finish_reason=FinishReason.STOP)
    monkeypatch.setattr(
        "openafm.framework.session.session.LanguageModelSession.respond_full_blocking", lambda *_, **__: text
    )
    assert run(["respond", "hello"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, "made for typed answers" in captured.err) == ("January\n", True)
    assert run(["respond", "hello", "--model", str(write_tiny_bundle(tmp_path / "tiny").path)]) == 0
    assert "made for" not in capsys.readouterr().err


def test_an_answer_at_the_limit_is_valid_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.json").write_text(json.dumps({"type": "array", "items": SCHEMA, "minItems": 2}))
    limited = ["--schema", "long.json", "--max-tokens", "24", "--temperature", "9", "--json"]
    reasons = set()
    for seed in range(8):  # by chance one of these draws may end before the limit
        assert run(["respond", "Dinner with Maria", *limited, "--seed", str(seed)]) == 0
        captured = capsys.readouterr()
        answer = json.loads(captured.out)
        assert len(answer["content"]) >= 2
        assert all(item.keys() == {"title"} for item in answer["content"])
        assert ("ended at 24 tokens; --max-tokens" in captured.err) == (answer["finish_reason"] == "length")
        reasons.add(answer["finish_reason"])
    assert "length" in reasons


def test_escapes() -> None:
    assert escaped("\x1b]0;title\x07 a\u202eb\u200b\x9b1m") == "\\u001b]0;title\\u0007 a\\u202eb\\u200b\\u009b1m"
    assert json.loads(escaped(json.dumps("\U000e0041\x9b", ensure_ascii=False))) == "\U000e0041\x9b"
    for text in ("Łódź\n\t東京 👩\u200d💻", "plain"):
        assert escaped(text) == text


def test_colors_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("model", "bold", stream=terminal) == "\x1b[1mmodel\x1b[0m"
    assert styled("model", "bold", stream=io.StringIO()) == "model"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("model", "bold", stream=terminal) == "model"


def test_numbers_for_people() -> None:
    assert [human_number(n) for n in (7, 999, 10_700_000, 3.1e9, 2e12)] == ["7", "999", "10.7 M", "3.1 B", "2 T"]
    assert [human_bytes(n) for n in (12, 1_320, 4_420_000, 6.2e9)] == ["12 bytes", "1.32 KB", "4.42 MB", "6.2 GB"]


def test_options_of_sampling_are_those_of_the_framework() -> None:
    assert generation_options(None, None, 64).sampling == fm.SamplingMode.greedy()
    assert generation_options(None, 7, 64, top_k=4).sampling == fm.SamplingMode.random(top=4, seed=7)
    assert generation_options(0.5, None, 64, top_p=0.9).sampling == fm.SamplingMode.random(probability_threshold=0.9)
