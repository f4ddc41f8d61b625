"""The corpus as a whole: deterministic, in every language and task, its structured answers valid."""

from __future__ import annotations

import ast
import collections
import functools
import hashlib
import json
import operator
import os
import re
import subprocess
import sys

import jsonschema
import pytest

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.data.synthetic import LANGUAGES, TASKS, SyntheticConfig, example, generate
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, ToolTurn, UserTurn
from openafm.tokenizer.schema_text import compact_json

DIGEST = """
import hashlib
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.tokenizer.schema_text import compact_json
config = SyntheticConfig(seed=3, split="held_out")
print(hashlib.sha256("".join(compact_json(c.to_dict()) for c in generate(config, 300)).encode()).hexdigest())
"""


def of(task: str, language: str, count: int, split: str = "train") -> list[Conversation]:
    config = from_dict(SyntheticConfig, {"seed": 1, "split": split, "tasks": {task: 1}, "languages": {language: 1}})
    return list(generate(config, count))


def test_the_same_index_gives_the_same_example_in_another_process() -> None:
    config = SyntheticConfig(seed=3, split="held_out")
    here = hashlib.sha256("".join(compact_json(c.to_dict()) for c in generate(config, 300)).encode()).hexdigest()
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    there = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True, env=environment)
    assert there.stdout.strip() == here


def test_an_example_depends_on_seed_split_and_index_alone() -> None:
    config = SyntheticConfig(seed=5)
    stream = list(generate(config, 50))
    assert [example(config, index) for index in reversed(range(50))] == stream[::-1]
    assert example(SyntheticConfig(seed=6), 0) != stream[0]
    assert example(SyntheticConfig(seed=5, split="held_out"), 0) != stream[0]
    assert len({compact_json(conversation.to_dict()) for conversation in stream}) == 50


def test_every_language_has_its_share_and_english_the_largest() -> None:
    weights = SyntheticConfig().languages
    assert set(weights) == set(LANGUAGES)
    assert min(weights.values()) / sum(weights.values()) >= 0.03
    counts = collections.Counter(conversation.language for conversation in generate(SyntheticConfig(), 4000))
    assert min(counts[language] for language in LANGUAGES) >= 0.03 * 4000
    assert counts.most_common(1)[0][0] == "en"


def test_weights_choose_tasks_and_languages() -> None:
    config = SyntheticConfig(tasks={"story": 1.0, "event": 0.0}, languages={"da": 1.0, "ko": 3.0})
    counts = collections.Counter((conversation.task, conversation.language) for conversation in generate(config, 400))
    assert counts.keys() == {("story", "da"), ("story", "ko")}
    assert 2 < counts["story", "ko"] / counts["story", "da"] < 4.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": {"events": 1}}, "unknown task 'events'; did you mean 'event'"),
        ({"languages": {"zh": 1}}, "unknown language 'zh'"),
        ({"tasks": {"story": -1}}, "0 or more"),
        ({"languages": {"en": 0}}, "positive weight"),
        ({"split": "test"}, "expected one of 'train', 'held_out'"),
    ],
)
def test_a_wrong_config_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(SyntheticConfig, arguments)


def test_the_config_survives_json() -> None:
    config = SyntheticConfig(seed=9, split="held_out", tasks={"event": 1.0}, languages={"vi": 2.0})
    assert from_dict(SyntheticConfig, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_exists_in_every_language(task: str, language: str) -> None:
    for split in ("train", "held_out"):
        for conversation in of(task, language, 30, split):
            assert (conversation.task, conversation.language) == (task, language)
            instructions, user, *rest = conversation.turns
            assert isinstance(instructions, Instructions)
            assert isinstance(user, UserTurn)
            assert isinstance(rest[-1], AssistantTurn)
            text = compact_json(conversation.to_dict())
            said = instructions.text + user.text + ("" if user.response_format else rest[-1].text)
            assert not re.search(r"[\0\1<>|\[\]{}]", said), said
            assert all(turn.text.strip() == turn.text for turn in (instructions, user, rest[-1]))
            assert instructions.text or task in ("tool", "form")
            assert user.text
            assert rest[-1].text
            assert Conversation.from_dict(json.loads(text)) == conversation
            check_answer(user, rest[-1])


@functools.cache
def validator(schema: str) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    return jsonschema.Draft202012Validator(json.loads(schema), format_checker=jsonschema.FormatChecker())


def check_answer(user: UserTurn, answer: AssistantTurn) -> None:
    """A structured answer is compact JSON that follows its schema, keys in `x-order`, and holds no null."""
    if user.response_format is None:
        return
    value = json.loads(answer.text)
    validator(compact_json(user.response_format)).validate(value)
    assert answer.text == compact_json(value)
    if not isinstance(value, dict):
        return
    order = user.response_format["x-order"]
    assert set(order) == set(user.response_format["properties"])
    assert list(value) == [name for name in order if name in value]
    assert None not in value.values()


@pytest.mark.parametrize("language", LANGUAGES)
def test_tool_calls_and_results_are_arithmetically_right(language: str) -> None:
    num_calls = set()
    for conversation in of("arithmetic", language, 80):
        instructions, user, call, *results, answer = conversation.turns
        assert isinstance(instructions, Instructions)
        assert isinstance(user, UserTurn)
        assert isinstance(call, AssistantTurn)
        assert isinstance(answer, AssistantTurn)
        assert len(call.tool_calls) == len(results)
        num_calls.add(len(results))
        tools = {tool.name: tool for tool in instructions.tools}
        for tool_call, result in zip(call.tool_calls, results, strict=True):
            assert isinstance(result, ToolTurn)
            assert result.name == tool_call.name
            validator(compact_json(tools[tool_call.name].parameters)).validate(tool_call.arguments)
            expression = tool_call.arguments["expression"]
            assert calculated(expression) == int(result.text) > 0
            assert result.text in answer.text
            assert set(re.findall(r"\d+", expression)) <= set(re.findall(r"\d+", user.text))
    assert num_calls == {1, 2}


def calculated(expression: str) -> int:
    tree = ast.parse(expression, mode="eval").body
    assert isinstance(tree, ast.BinOp)
    assert isinstance(tree.left, ast.Constant)
    assert isinstance(tree.right, ast.Constant)
    left, right = tree.left.value, tree.right.value
    if isinstance(tree.op, ast.Div):
        assert left % right == 0
        return int(left // right)
    return int({ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}[type(tree.op)](left, right))


def test_tags_are_distinct_and_come_with_and_without_a_choice() -> None:
    with_choice = 0
    for conversation in of("tagging", "en", 200):
        user, answer = conversation.turns[1:]
        assert isinstance(user, UserTurn)
        assert user.response_format is not None
        tags = json.loads(answer.text)["tags"]
        assert 1 <= len(set(tags)) == len(tags) <= 3
        choice = user.response_format["properties"]["tags"]["items"].get("enum")
        if choice is not None:
            with_choice += 1
            assert len(choice) > len(tags)
    assert 100 < with_choice < 190


@pytest.mark.parametrize("language", LANGUAGES)
def test_summaries_are_one_sentence_of_two_to_four(language: str) -> None:
    for conversation in of("summary", language, 60) + of("summary", language, 20, "held_out"):
        _, text, summary = conversation.turns
        assert num_sentences(summary.text) == 1, summary.text
        assert 2 <= num_sentences(text.text) <= 4, text.text


@pytest.mark.parametrize("language", LANGUAGES)
def test_stories_are_short(language: str) -> None:
    for conversation in of("story", language, 60):
        assert 3 <= num_sentences(conversation.turns[-1].text) <= 8


def num_sentences(text: str) -> int:
    return len(re.findall(r"[。！？]+[」”]?|[.!?]+[\"”“」»]?(?=\s|$)", text))


def test_lists_hold_what_the_message_enumerates() -> None:
    for language in LANGUAGES:
        lists = [c for c in of("rewrite", language, 60) if c.turns[-1].text.startswith("- ")]
        assert lists
        for conversation in lists:
            items = conversation.turns[-1].text.split("\n")
            assert 3 <= len(items) <= 5
            assert all(item.removeprefix("- ") in conversation.turns[1].text for item in items)
