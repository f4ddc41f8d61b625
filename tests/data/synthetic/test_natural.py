"""Requests that people wrote, as tasks: from a folder of small files, test parts kept apart, attributed."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from openafm.core.config import ConfigError
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.tasks.natural import (
    ATTRIBUTIONS,
    NaturalDataError,
    NearDuplicates,
    natural_set,
    natural_turns,
    words_of_intent,
)
from openafm.recipes.sources.corpora import SyntheticCorpusConfig
from openafm.tokenizer.conversation import AssistantTurn, Instructions, UserTurn

TRAIN: list[dict[str, Any]] = [
    {"text": "play some jazz in the kitchen", "intent": "PlayMusic", "slots": [["genre", "jazz"], ["room", "kitchen"]]},
    {"text": "Put on Miles Davis", "intent": "PlayMusic", "slots": [["artist", "miles davis"]]},
    {"text": "what is the weather in Rome", "intent": "GetWeather", "slots": [["city", "Rome"]]},
    {"text": "will it rain here tomorrow morning", "intent": "GetWeather", "slots": []},
    {"text": "book a table for five please", "intent": "BookTable", "slots": [["people", "five"]]},
    {"text": "do fish sleep at night", "intent": None},
]
TEST = [{"text": "Will it rain here, tomorrow morning?", "intent": "GetWeather", "slots": []}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("natural")
    for name in ATTRIBUTIONS:
        for part, rows in (("train", TRAIN), ("test", TEST)):
            with gzip.open(folder / f"{name}-{part}.jsonl.gz", "wt", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_near_duplicates_of_the_test_part_are_left_out(folder: Path) -> None:
    assert len(natural_set(folder, "snips").requests) == len(TRAIN) - 1
    known = NearDuplicates(["set a timer for ten minutes please"])
    assert known.has("Set a timer for ten minutes, please!")
    assert not known.has("set an alarm for ten minutes please")


def test_near_duplicates_of_another_sets_test_part_are_left_out_too(tmp_path: Path) -> None:
    for name, part, rows in (
        ("home", "train", TRAIN),
        ("clinc150", "test", [{"text": "Put on Miles Davis!", "intent": None}]),
    ):
        with gzip.open(tmp_path / f"{name}-{part}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    assert "Put on Miles Davis" not in {request.text for request in natural_set(tmp_path, "home").requests}


def test_requests_become_labels_tools_and_forms_whose_answers_are_copies(folder: Path) -> None:
    texts = {row["text"] for row in TRAIN}
    kinds = set()
    for seed in range(300):
        instructions, user, answer = natural_turns(random.Random(seed), folder)[:3]
        assert isinstance(instructions, Instructions)
        assert isinstance(user, UserTurn)
        assert isinstance(answer, AssistantTurn)
        assert user.text in texts
        for call in answer.tool_calls:
            kinds.add("tool")
            assert call.name in {tool.name for tool in instructions.tools}
            assert all(value in user.text for value in call.arguments.values())
        if instructions.tools and not answer.tool_calls:
            kinds.add("no tool")
        if user.response_format and not instructions.tools and "enum" not in json.dumps(user.response_format):
            kinds.add("form")
            values = [value for value in json.loads(answer.text).values() if value is not None]
            assert all(value in user.text for value in values)
        elif not instructions.tools:
            kinds.add("label")
    assert kinds == {"tool", "no tool", "form", "label"}


def test_each_request_of_a_conversation_has_the_answer_of_its_own_intent(folder: Path) -> None:
    """Of several requests to one list of labels or one set of tools, some have none that fits."""
    intents = {row["text"]: words_of_intent(row["intent"] or "") for row in TRAIN}
    counts: Counter[str] = Counter()
    for seed in range(400):
        instructions, *rest = natural_turns(random.Random(seed), folder)
        assert isinstance(instructions, Instructions)
        pairs = [
            (user, answer)
            for user, answer in itertools.pairwise(rest)
            if isinstance(user, UserTurn) and isinstance(answer, AssistantTurn)
        ]
        if len(pairs) == 1:
            continue
        assert len({user.text for user, _ in pairs}) == len(pairs)
        names = {re.sub(r"[ _-]", "", tool.name).lower() for tool in instructions.tools}
        for user, answer in pairs:
            intent = intents[user.text]
            if instructions.tools:
                called = [re.sub(r"[ _-]", "", call.name).lower() for call in answer.tool_calls]
                right = intent.replace(" ", "")
                assert called == ([right] if right in names else [])
                counts["call" if called else "no call"] += 1
            else:
                listed = bool(intent) and intent in instructions.text
                assert (answer.text == intent) if listed else (answer.text in instructions.text)
                counts["label" if listed else "no label"] += 1
    assert min(counts[kind] for kind in ("call", "no call", "label", "no label")) > 10


def test_the_corpus_has_its_share_of_them_in_training_only(folder: Path) -> None:
    config = SyntheticConfig(natural=str(folder), natural_share=0.5)
    tasks = [conversation.task for conversation in generate(config, 300)]
    assert 100 < tasks.count("natural") < 200
    held_out = SyntheticConfig(natural=str(folder), natural_share=0.5, split="held_out")
    assert all(conversation.task != "natural" for conversation in generate(held_out, 100))
    assert all(conversation.task != "natural" for conversation in generate(SyntheticConfig(natural_share=0.5), 100))


def test_the_card_attributes_them() -> None:
    with_them = SyntheticConfig(natural="somewhere", natural_share=0.1)
    text = SyntheticCorpusConfig(name="a", synthetic=with_them, num_examples=10).description
    assert all(attribution in text for attribution in ATTRIBUTIONS.values())
    without = SyntheticCorpusConfig(name="a", synthetic=SyntheticConfig(natural_share=0.1), num_examples=10)
    assert "PolyAI" not in without.description


def test_a_folder_without_the_sets_and_a_wrong_share_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NaturalDataError, match=r"train\.jsonl\.gz"):
        natural_set(tmp_path, "snips")
    (tmp_path / "home-train.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(NaturalDataError, match="cannot be read"):
        natural_set(tmp_path, "home")
    with pytest.raises(ConfigError, match="from 0 to 1"):
        SyntheticConfig(natural_share=2)
