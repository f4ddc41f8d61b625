"""Imported models in sessions and commands: guided answers, tools, streams, exact token counts."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Literal

import checkpoints
import pytest
import torch
from checkpoints import FAMILIES

import openafm as fm
from openafm.bundle.hugging_face import import_hugging_face
from openafm.cli.main import run

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "kind": {"enum": ["work", "leisure"]},
    },
    "required": ["city", "days", "kind"],
    "additionalProperties": False,
}
GREEDY = fm.GenerationOptions(maximum_response_tokens=200)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("open weights")
    for family in FAMILIES:
        checkpoints.save(folder / family, family)
        import_hugging_face(folder / family, folder / f"{family}-bundle")
    return {family: folder / f"{family}-bundle" for family in FAMILIES}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("family", FAMILIES)
def test_guided_answers_are_valid_and_a_second_turn_prefills_what_is_new(family: str, models: dict[str, Path]) -> None:
    model = fm.SystemLanguageModel(bundle=models[family])
    session = fm.LanguageModelSession("Plan trips.", model)
    for number in range(3):
        content = session.respond_blocking(f"A trip, number {number}", json_schema=SCHEMA, options=GREEDY)
        value = json.loads(content.to_json())
        assert value.keys() == {"city", "days", "kind"}
        assert 1 <= value["days"] <= 30
        assert (session.usage.cached_tokens > 0) == (number > 0)
    answered = session.usage.generated_tokens
    known = asyncio.run(model.token_count(session.transcript))
    prompt = asyncio.run(model.token_count("Thanks"))
    session.respond_blocking("Thanks", options=fm.GenerationOptions(maximum_response_tokens=5))
    assert session.usage.prompt_tokens == known + prompt
    assert session.usage.prompt_tokens - session.usage.cached_tokens <= prompt + answered + 2


@pytest.mark.parametrize("family", FAMILIES)
def test_tools_are_called_and_their_outputs_prefilled(family: str, models: dict[str, Path]) -> None:
    called: list[str] = []

    @fm.tool
    def weather(city: Literal["Kraków", "Łódź"], days: Literal[1, 2]) -> str:
        """The weather of a city."""
        called.append(city)
        return f"{city}: grey <|im_end|><|eot_id|>"

    model = fm.SystemLanguageModel(bundle=models[family])
    session = fm.LanguageModelSession("Use tools.", model, tools=[weather], tool_limits=fm.ToolLimits(rounds=1, calls=4))
    options = fm.GenerationOptions(maximum_response_tokens=300, tool_calling_mode=fm.ToolCallingMode.REQUIRED)
    content = session.respond_blocking("How is it?", json_schema=SCHEMA, options=options)
    assert json.loads(content.to_json()).keys() == {"city", "days", "kind"}
    assert set(called) <= {"Kraków", "Łódź"}
    assert 1 <= len(called) <= 4
    assert asyncio.run(model.token_count(session.transcript)) > 0
    restored = fm.LanguageModelSession.from_transcript(session.transcript, model)
    restored.respond_blocking("And?", options=fm.GenerationOptions(maximum_response_tokens=5))
    assert restored.usage.generated_tokens > 0


def test_streams_and_prewarming(models: dict[str, Path]) -> None:
    session = fm.LanguageModelSession("Be brief.", fm.SystemLanguageModel(bundle=models["qwen3"]))
    session.prewarm("How is ")
    options = fm.GenerationOptions(maximum_response_tokens=20)
    snapshots = [snapshot.content for snapshot in session.stream_blocking("How is it?", options=options)]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(snapshots))
    assert "<think>" not in snapshots[-1]
    assert session.usage.cached_tokens > 0


def test_the_commands_import_inspect_use_and_respond(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints.save(tmp_path / "tiny-llama", "llama")
    assert run(["import", "hf", str(tmp_path / "tiny-llama"), "--json"]) == 0
    imported = json.loads(capsys.readouterr().out)
    assert imported["tools"]
    assert any("one tool call per turn" in note for note in imported["notes"])
    assert run(["inspect", "tiny-llama", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["layers"], described["vocab_size"]) == (4, checkpoints.VOCAB_ROWS)
    assert run(["use", "tiny-llama"]) == 0
    capsys.readouterr()
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    assert run(["respond", "A trip", "--schema", str(schema)]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"city", "days", "kind"}
    assert run(["import", "hf", str(tmp_path / "tiny-llama"), "--name", "half", "--compute", "bfloat16"]) == 0
    assert "openafm use half" in capsys.readouterr().out
    assert run(["respond", "A trip", "--model", "half", "--max-tokens", "5"]) == 0
    assert run(["import", "hf", str(tmp_path)]) == 1
    assert "config.json is missing" in capsys.readouterr().err
    assert run(["import", "hf", str(tmp_path / "tiny-llama"), "--name", "../x"]) == 2
