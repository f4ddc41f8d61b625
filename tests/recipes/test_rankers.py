"""What the rankers of the shipped model are trained on: training parts alone; and the two commands that train them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.text_files.catalogs import catalog_of
from openafm.ranking.ranker import open_ranker
from openafm.ranking.span_ranker import FieldName, open_span_ranker
from openafm.ranking.span_training import FilledText
from openafm.recipes.shipping import ranker, spans
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    UserTurn,
)


def test_held_out_texts_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranker, "LANGUAGES", ("da",))
    texts = {text for each in ranker.choice_sets(None) for choice in each.choices for text in choice.texts}
    texts |= {text for each in ranker.choice_sets(None) for text in each.none_texts}
    held_out = catalog_of("da", "held_out")
    labels = (text for labels in held_out.label_sets for label in labels.labels for text in label.texts)
    requests = (text for tool in held_out.tools for text in tool.requests)
    unseen = {frame.line.text for frame in (*labels, *requests) if not set("[{(<") & set(frame.line.text)}
    assert len(texts) > 500
    assert len(unseen) > 50
    # A request may be written for a tool of training too.
    assert len(unseen & texts) <= len(unseen) // 50


def test_shares_of_kinds_are_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranker, "LANGUAGES", ("da",))
    sets = ranker.choice_sets(None)
    assert sum(each.weight for each in sets) == pytest.approx(1 - ranker.SHARES["natural"])
    (tools,) = (each for each in sets if each.may_be_none)
    assert tools.none_texts
    assert tools.weight == pytest.approx(ranker.SHARES["tools"])


def test_slots_have_no_values() -> None:
    tools = ranker._tools(random.Random(0), "en")
    assert not any(set("{}[]") & set(text) for choice in tools.choices for text in choice.texts)


def test_fields_of_objects_and_of_single_calls_are_read() -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "where"}, "n": {"type": "integer"}},
    }
    tool = ToolDefinition(name="get_weather", description="", parameters=parameters)
    call = ToolCall(name="get_weather", arguments={"city": "Oslo", "n": 2})
    form = {"title": "Guest", "properties": {"name": {"type": "string"}, "day": {"type": ["string", "null"]}}}
    turns = (
        Instructions(text="Help.", tools=(tool,)),
        UserTurn(text="weather in Oslo"),
        AssistantTurn(tool_calls=(call,)),
        ToolTurn(name="get_weather", text="rain"),
        AssistantTurn(text="It rains."),
        UserTurn(text="twice, please"),
        AssistantTurn(tool_calls=(call, call)),
        ToolTurn(name="get_weather", text="rain"),
        ToolTurn(name="get_weather", text="rain"),
        AssistantTurn(text="Still."),
        UserTurn(text="Mo comes", response_format=form),
        AssistantTurn(text='{"name":"Mo","day":null}'),
    )
    assert list(spans.filled_texts(Conversation(turns=turns))) == [
        FilledText(text="weather in Oslo", fields=((FieldName("city", "get_weather", "where"), "Oslo"),)),
        FilledText(text="Mo comes", fields=((FieldName("name", "Guest"), "Mo"), (FieldName("day", "Guest"), None))),
    ]


def test_the_corpus_has_values_that_are_spans() -> None:
    config = SyntheticConfig(seed=3, tasks=spans.TASKS, languages={"en": 0.5, "ja": 0.5})
    found = [each for conversation in generate(config, 60) for each in spans.filled_texts(conversation)]
    values = [(each.text, value) for each in found for _, value in each.fields if value is not None]
    assert len(found) > 40
    assert sum(value in text for text, value in values) > 0.5 * len(values)


def test_the_commands_write_rankers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ranker, "LANGUAGES", ("da",))
    monkeypatch.setattr(sys, "argv", ["ranker", "--out", str(tmp_path / "ranker"), "--steps", "2"])
    ranker.main()
    assert open_ranker(tmp_path / "ranker").log_probabilities("spil musik", ["musik", "vejr"]).shape == (2,)
    monkeypatch.setattr(sys, "argv", ["spans", "--out", str(tmp_path / "spans"), "--steps", "2", "--examples", "20"])
    spans.main()
    assert open_span_ranker(tmp_path / "spans").find("Oslo", [FieldName("city", "weather")])
