"""Scores on the user's data: losses by source and language, answers against the data's, skipped conversations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from openafm.bundle import open_bundle
from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.data_scores import data_scores, share_of_calls
from openafm.runtime.decoding.likelihood import Scorer
from openafm.runtime.engines.selection import open_engine
from openafm.tokenizer.conversation import AssistantTurn, ToolCall


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Events in English and German, a text, and a conversation that is too long."""
    folder = tmp_path / "data"
    folder.mkdir()
    for language in ("en", "de"):
        config = SyntheticConfig(split="held_out", tasks={"event": 1.0}, languages={language: 1.0})
        lines = [json.dumps(conversation.to_dict()) for conversation in generate(config, 3)]
        (folder / f"events-{language}.jsonl").write_text("\n".join(lines))
    (folder / "note.txt").write_text("Dinner with Maria on Friday.")
    turns = [{"role": "user", "content": "word " * 9_000}, {"role": "assistant", "content": "ok"}]
    (folder / "long.jsonl").write_text(json.dumps({"messages": turns}))
    return folder


def test_losses_and_answers_by_source_and_language(data: Path) -> None:
    bundle = open_bundle("nano")
    scores = data_scores(bundle, data)
    assert set(scores.sources) == {"events-en.jsonl", "events-de.jsonl", "note.txt", "long.jsonl"}
    assert scores.total.num_documents == 8
    assert (scores.sources["long.jsonl"].num_skipped, scores.sources["long.jsonl"].loss) == (1, None)
    assert scores.languages["de"].num_documents == 3
    events = scores.sources["events-en.jsonl"]
    assert events.num_answers == len(events.fields) == 3
    assert events.num_exact == sum(share == 1.0 for share in events.fields)
    scorer = Scorer(engine=open_engine(bundle), tokenizer=bundle.tokenizer)
    text = scorer.loglikelihood_rolling("Dinner with Maria on Friday.")
    assert scores.sources["note.txt"].loss == pytest.approx(-text.log_probability / text.num_tokens)
    conversation = next(iter(generate(SyntheticConfig(tasks={"event": 1.0}, languages={"en": 1.0}), 1)))
    encoded = bundle.template.encode_conversation(bundle.tokenizer, conversation)
    log_p_N, _ = scorer.token_scores(encoded.tokens)
    (data / "one.jsonl").write_text(json.dumps(conversation.to_dict()))
    one = data_scores(bundle, data / "one.jsonl", with_answers=False).total
    assert one.total_loss == pytest.approx(-log_p_N[np.array(encoded.loss_mask)[1:]].sum())
    assert one.num_tokens == sum(encoded.loss_mask)
    assert one.num_answers == 0


def test_calls_are_compared_without_order() -> None:
    first, second = ToolCall(name="f", arguments={"a": 1}), ToolCall(name="g", arguments={})
    both = AssistantTurn(tool_calls=(first, second))
    assert share_of_calls(both, AssistantTurn(tool_calls=(second, first))) == 1
    assert share_of_calls(both, AssistantTurn(tool_calls=(first,))) == 0.5
    assert share_of_calls(AssistantTurn(tool_calls=(first,)), AssistantTurn(tool_calls=(first, first))) == 0.5
    assert share_of_calls(both, AssistantTurn(text="no")) == 0


def test_the_command(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", "nano", "--data", str(data), "--examples", "4", "--no-answers", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total"]["documents"] == 4
    assert result["total"]["loss"] > 0
    assert run(["evaluate", "nano", "--data", str(data), "--no-answers"]) == 0
    table = capsys.readouterr().out
    assert "language de" in table
    assert "1 conversation left out: longer than the context window" in table
    assert run(["evaluate", "nano"]) == 2
    assert "name held-out data with --data" in capsys.readouterr().err
    (data / "empty").mkdir()
    (data / "empty" / "none.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="no documents"):
        data_scores(open_bundle("nano"), data / "empty")


def test_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["complete", "Dinner with Maria", "--max-tokens", "16", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert run(["complete", "Dinner with Maria", "--max-tokens", "16"]) == 0
    assert capsys.readouterr().out == f"{text}\n"
    assert run(["complete", "Dinner with Maria", "--max-tokens", "16", "--stop", text[3:5], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == text[: text.index(text[3:5])]
    assert run(["complete", "Dinner", "--temperature", "-1"]) == 2
