"""The corpus as a whole: deterministic, in every language and task, its structured answers valid."""

from __future__ import annotations

import ast
import collections
import datetime
import functools
import hashlib
import itertools
import json
import operator
import os
import random
import re
import subprocess
import sys
import time

import jsonschema
import pytest

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.data.synthetic import (
    EVENT_SCHEMA,
    LANGUAGES,
    TASKS,
    SyntheticConfig,
    event_instructions,
    event_instructions_today_only,
    example,
    generate,
)
from openafm.data.synthetic.announcements import draw_announcement
from openafm.data.synthetic.rendering import lower
from openafm.data.synthetic.tasks import labels as labels_module
from openafm.data.synthetic.tasks.labels import NamedLabel, _draw_further_text, _draw_language
from openafm.data.synthetic.tasks.notices import notice_turns
from openafm.data.synthetic.text_files.catalogs import CatalogSplit, Label, LabelSet
from openafm.data.synthetic.text_files.frames import frames_of
from openafm.data.synthetic.text_files.source_text import Line, parse_frame
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, ToolTurn, UserTurn
from openafm.tokenizer.schema_text import compact_json

pytestmark = pytest.mark.xdist_group("languages")  # one worker reads the files of all languages

DIGEST = """
import hashlib
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.tokenizer.schema_text import compact_json
config = SyntheticConfig(seed=3, split="held_out", languages={"en": 1, "de": 1})
print(hashlib.sha256("".join(compact_json(c.to_dict()) for c in generate(config, 300)).encode()).hexdigest())
"""


def of(task: str, language: str, count: int, split: str = "train") -> list[Conversation]:
    config = from_dict(SyntheticConfig, {"seed": 1, "split": split, "tasks": {task: 1}, "languages": {language: 1}})
    return list(generate(config, count))


@pytest.mark.long
def test_the_same_index_gives_the_same_example_in_another_process() -> None:
    config = SyntheticConfig(seed=3, split="held_out", languages={"en": 1, "de": 1})
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
    counts = collections.Counter(conversation.language for conversation in generate(SyntheticConfig(), 1500))
    assert min(counts[language] for language in LANGUAGES) >= 0.03 * 1500
    assert counts.most_common(1)[0][0] == "en"


def test_weights_choose_tasks_and_languages() -> None:
    config = SyntheticConfig(tasks={"lookup": 1.0, "event": 0.0}, languages={"da": 1.0, "ko": 3.0})
    counts = collections.Counter((conversation.task, conversation.language) for conversation in generate(config, 400))
    assert counts.keys() == {("lookup", "da"), ("lookup", "ko")}
    assert 2 < counts["lookup", "ko"] / counts["lookup", "da"] < 4.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": {"events": 1}}, "unknown task 'events'; did you mean 'event'"),
        ({"languages": {"zh": 1}}, "unknown language 'zh'"),
        ({"tasks": {"form": -1}}, "0 or more"),
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
        for conversation in of(task, language, 6, split):
            assert (conversation.task, conversation.language) == (task, language)
            instructions, user, *rest = conversation.turns
            assert isinstance(instructions, Instructions)
            assert isinstance(user, UserTurn)
            assert isinstance(rest[-1], AssistantTurn)
            text = compact_json(conversation.to_dict())
            assert not re.search(r"\{[a-z_0-9]+\}", instructions.text + user.text), user.text
            assert all(turn.text.strip() == turn.text for turn in (instructions, user))
            assert user.text
            assert rest[-1].text
            assert Conversation.from_dict(json.loads(text)) == conversation
            if task not in ("tool", "arithmetic"):
                for prompt, answer in answered(conversation):
                    check_answer(prompt, answer)


def answered(conversation: Conversation) -> list[tuple[UserTurn, AssistantTurn]]:
    """The prompts of a conversation that are answered in text, and their answers."""
    pairs = itertools.pairwise(conversation.turns)
    return [(a, b) for a, b in pairs if isinstance(a, UserTurn) and isinstance(b, AssistantTurn) and b.text]


@functools.cache
def validator(schema: str) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    return jsonschema.Draft202012Validator(json.loads(schema), format_checker=jsonschema.FormatChecker())


def check_answer(user: UserTurn, answer: AssistantTurn) -> None:
    """Check that a structured answer is compact JSON that follows its schema, keys in `x-order`."""
    if user.response_format is None:
        return
    value = json.loads(answer.text)
    validator(compact_json(user.response_format)).validate(value)
    assert answer.text == compact_json(value)
    if not isinstance(value, dict) or "x-order" not in user.response_format:
        return
    order = user.response_format["x-order"]
    assert set(order) == set(user.response_format["properties"])
    assert list(value) == [name for name in order if name in value]


@pytest.mark.parametrize("language", LANGUAGES)
def test_tool_calls_and_results_are_arithmetically_right(language: str) -> None:
    num_calls = set()
    for conversation in of("arithmetic", language, 30):
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


def test_a_quarter_of_the_first_event_messages_has_no_event_and_the_answer_is_empty() -> None:
    empty = {"null", "[]", "{}"}
    answers = [c.turns[2].text for c in of("event", "en", 600)]
    nothing = [text for text in answers if text in empty or re.fullmatch(r'\{"[^"]+":(null|\[\])\}', text)]
    assert 0.18 < len(nothing) / len(answers) < 0.32


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_titles_and_places_are_spans_of_the_message(split: str) -> None:
    checked = 0
    for conversation in of("event", "en", 300, split):
        for user, answer in answered(conversation):
            if user.response_format == EVENT_SCHEMA:
                event = json.loads(answer.text)
                assert event["title"] in user.text
                assert event.get("location", "") in user.text
                checked += 1
    assert checked > 100


@pytest.mark.parametrize("language", ["en", "ja"])
def test_plain_events_share_a_week_and_most_titles_are_in_no_list(language: str) -> None:
    titles, lengths = [], set()
    for conversation in of("plain_event", language, 150):
        instructions, *turns = conversation.turns
        assert re.search(r"Today is \w+ \d{4}-\d\d-\d\d; ", instructions.text)
        for user, answer in zip(turns[::2], turns[1::2], strict=True):
            assert isinstance(user, UserTurn)
            assert user.response_format == EVENT_SCHEMA
            event = json.loads(answer.text)
            assert event["title"] in user.text
            assert event.get("location", "") in user.text
            titles.append(event["title"])
        lengths.add(len(turns))
    assert lengths == {2, 4, 6}
    assert len(set(titles)) > 0.87 * len(titles)  # titles of the lists alone: 0.82 in English


def test_the_canonical_instructions() -> None:
    assert event_instructions(datetime.date(2026, 11, 21)) == (
        "Extract the event. Today is Sat 2026-11-21; "
        "Sun 11-22, Mon 11-23, Tue 11-24, Wed 11-25, Thu 11-26, Fri 11-27, Sat 11-28."
    )
    assert "; Sun 12-29, Mon 12-30, Tue 12-31, Wed 2025-01-01," in event_instructions(datetime.date(2024, 12, 28))
    assert event_instructions_today_only(datetime.date(2028, 2, 29)) == "Extract the event. Today is Tue 2028-02-29."


def test_tool_calls_follow_their_schema_and_a_third_of_the_requests_takes_none() -> None:
    without, num_calls = 0, collections.Counter[int]()
    conversations = of("tool", "en", 400) + of("tool", "en", 100, "held_out")
    for conversation in conversations:
        instructions, *turns = conversation.turns
        assert isinstance(instructions, Instructions)
        tools = {tool.name: tool for tool in instructions.tools}
        assert 1 <= len(tools) == len(instructions.tools) <= 8
        assert isinstance(turns[1], AssistantTurn)
        without += not turns[1].tool_calls
        num_calls[len(turns[1].tool_calls)] += 1
        for turn, following in itertools.pairwise(turns):
            for call in turn.tool_calls if isinstance(turn, AssistantTurn) else ():
                validator(compact_json(tools[call.name].parameters)).validate(call.arguments)
                assert isinstance(following, ToolTurn)
    assert 0.25 < without / len(conversations) < 0.38
    assert num_calls[2] > 20


def test_training_has_up_to_ten_rounds_with_the_same_tools() -> None:
    counts = collections.Counter[int]()
    for conversation in of("tool", "en", 200):
        prompts = [turn.text for turn in conversation.turns if isinstance(turn, UserTurn)]
        assert len(set(prompts)) == len(prompts)
        counts[len(prompts)] += 1
    assert set(counts) == set(range(1, 11))
    assert min(counts.values()) > 8


def test_copied_arguments_stand_in_the_request() -> None:
    for conversation in of("tool", "en", 300):
        instructions, user, answer = conversation.turns[:3]
        assert isinstance(instructions, Instructions)
        assert isinstance(answer, AssistantTurn)
        tools = {tool.name: tool.parameters["properties"] for tool in instructions.tools}
        for call in answer.tool_calls:
            for name, value in call.arguments.items():
                if tools[call.name][name] == {"type": "string"}:
                    assert value.lower() in user.text.lower()


def test_text_of_a_schema_is_no_part_of_an_answer() -> None:
    for conversation in of("form", "en", 300):
        for user, answer in answered(conversation):
            assert user.response_format is not None
            for name, schema in user.response_format["properties"].items():
                value = json.loads(answer.text).get(name)
                if schema == {"type": "string"}:
                    assert value is None or value in user.text


def test_labels_stand_in_any_order() -> None:
    positions = collections.Counter[float]()
    for conversation in of("label", "en", 800):
        user, answer = answered(conversation)[0]
        schema = user.response_format
        if schema is None:
            continue
        (choice,) = schema.get("properties", {"": schema}).values()
        value = json.loads(answer.text)
        (label,) = value.values() if isinstance(value, dict) else [value]
        assert 2 <= len(choice["enum"]) <= 8
        if len(choice["enum"]) == 3:
            positions[choice["enum"].index(label)] += 1
    assert max(positions.values()) < 2 * min(positions.values())


@pytest.mark.parametrize("task", ["event", "form", "label"])
def test_training_asks_several_times_under_one_schema_and_held_out_once(task: str) -> None:
    counts = collections.Counter[int]()
    for conversation in of(task, "en", 120):
        pairs = answered(conversation)
        counts[len(pairs)] += 1
        assert all(user.response_format == pairs[0][0].response_format for user, _ in pairs)
    assert set(range(1, 5)) <= set(counts)
    assert max(counts) in (range(7, 17) if task == "label" else range(4, 5))
    assert all(len(answered(conversation)) == 1 for conversation in of(task, "en", 60, "held_out"))


def test_texts_of_one_choice_are_distinct() -> None:
    for conversation in of("label", "en", 300):
        texts = [user.text for user, _ in answered(conversation)]
        assert len(set(texts)) == len(texts)


def test_a_further_text_belongs_to_its_choice_and_other_to_labels_that_are_no_choice() -> None:
    labels = tuple(
        Label(name=name, aliases=(), description="", texts=(parse_frame(Line(text=letter * 12, number=1, file="")),))
        for name, letter in (("first", "x"), ("second", "y"), ("third", "z"))
    )
    choices = [NamedLabel("FIRST", "", labels[0]), NamedLabel("SECOND", "", labels[1]), NamedLabel("OTHER", "")]
    found = set()
    for seed in range(60):
        for known, letters in ((choices, "xyz"), ([*choices[1:], choices[0]], "xyz"), (choices[:2], "xy")):
            label_set = LabelSet(name="set", question="", labels=labels)
            text, name = _draw_further_text(random.Random(seed), label_set, known, frames_of("en", "train"))
            letter = max(letters, key=text.lower().count)
            assert name == {"x": "FIRST", "y": "SECOND", "z": "OTHER"}[letter], text
            found.add(name)
    assert len(found) == 3


def test_training_draws_sets_of_many_texts_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_of(name: str, num_texts: int) -> LabelSet:
        texts = tuple(parse_frame(Line(text=f"{name} text", number=1, file="")) for _ in range(num_texts))
        return LabelSet(
            name=name,
            question="",
            labels=tuple(Label(name=f"{name}{label}", aliases=(), description="", texts=texts) for label in "ab"),
        )

    catalog = CatalogSplit(label_sets=(set_of("small", 2), set_of("large", 32)), tools=(), forms=(), small_talk=())
    monkeypatch.setattr(labels_module, "catalog_of", lambda language, split: catalog)
    shares = {}
    for split in ("train", "held_out"):
        drawn = [labels_module.label_turns(random.Random(seed), "en", split)[1].text.lower() for seed in range(400)]
        shares[split] = sum("large" in text for text in drawn) / sum("large" in text or "small" in text for text in drawn)
    assert shares["train"] == pytest.approx(0.8, abs=0.06)  # roots of 64 and 4 texts
    assert shares["held_out"] == pytest.approx(0.5, abs=0.07)


def test_a_lookup_answers_with_the_value_that_stands_beside_the_key() -> None:
    for conversation in of("lookup", "en", 200):
        instructions, first, *_ = conversation.turns
        for user, answer in zip(conversation.turns[1::2], conversation.turns[2::2], strict=True):
            assert isinstance(user, UserTurn)
            value = answer.text if user.response_format is None else next(iter(json.loads(answer.text).values()))
            assert value in instructions.text + first.text


def test_a_list_is_asked_for_several_keys_and_for_weekdays_in_another_form() -> None:
    lookups = of("lookup", "de", 300)
    assert {len(lookup.turns) // 2 for lookup in lookups} == {1, 2, 3, 4, 5, 6}
    listed = [(t[0].text + t[1].text.rsplit("\n", 1)[0], turn.text) for t in (x.turns for x in lookups) for turn in t[3::2]]
    assert any("Freitag" in question and "Freitag" not in entries and "Fr" in entries for entries, question in listed)


def test_reordered_items_are_those_of_the_list() -> None:
    for conversation in of("reorder", "en", 200):
        instructions, *turns = conversation.turns
        assert isinstance(instructions, Instructions)
        for prompt, answer in zip(turns[::2], turns[1::2], strict=True):
            end = next(each for each in ("\n", "; ", ", ") if each in prompt.text)
            keys, items = prompt.text.split(end), answer.text.split(end)
            assert len(set(keys)) == len(keys) == len(items) >= 2
            for key, item in zip(keys, items, strict=True):
                value = re.sub("^( = |: | )", "", item.removeprefix(key))
                assert item.startswith(key)
                assert re.sub(r"^\d{4}-(?=\d\d-\d\d$)", "", value) in instructions.text


def test_dates_of_a_reordered_week_are_those_of_its_weekdays() -> None:
    dates = [
        (key, datetime.date.fromisoformat(day))
        for conversation in of("reorder", "de", 300)
        for answer in conversation.turns[2::2]
        for key, day in re.findall(r"(Freitag|Friday)\W+(\d{4}-\d\d-\d\d)", answer.text)
        if "Today is" in conversation.turns[0].text
    ]
    assert {key for key, _ in dates} == {"Freitag", "Friday"}
    assert {day.weekday() for _, day in dates} == {4}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_note_has_a_day_of_its_reference_week(language: str) -> None:
    notes = of("note", language, 60)
    dated = [json.loads(answer.text) for _, _, answer in (note.turns for note in notes)]
    assert {"date"} <= set.intersection(*map(set, dated))
    assert any("title" in event for event in dated)
    days_ahead = []
    for (instructions, prompt, _), event in zip((note.turns for note in notes), dated, strict=True):
        assert all(event.get(name, "") in prompt.text for name in ("title", "location"))
        if today := re.search(r"Today is \w+ (\d{4}-\d\d-\d\d);", instructions.text):
            days_ahead.append((datetime.date.fromisoformat(event["date"]) - datetime.date.fromisoformat(today[1])).days)
    assert sum(0 <= ahead <= 7 for ahead in days_ahead) > 0.4 * len(days_ahead) > 5
    weekdays = {datetime.date.fromisoformat(event["date"]).weekday() for event in dated}
    assert len(weekdays) == 7


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_agenda_has_notes_with_all_kinds_of_days(language: str) -> None:
    days_ahead, fields = collections.Counter[int](), set()
    for conversation in of("agenda", language, 120):
        pairs = answered(conversation)
        assert 2 <= len(pairs) <= 8
        today = re.search(r"Today is \w+ (\d{4}-\d\d-\d\d);", conversation.turns[0].text)
        for user, answer in pairs:
            event = json.loads(answer.text)
            fields.add(tuple(event))
            assert all(event.get(name, "") in user.text for name in ("title", "location"))
            if today:
                first = datetime.date.fromisoformat(today[1])
                days_ahead[(datetime.date.fromisoformat(event["date"]) - first).days] += 1
    assert {("date",), ("date", "time"), ("title", "date", "time", "location")} <= fields
    num_days = sum(days_ahead.values())
    assert all(days_ahead[day] > 0.03 * num_days for day in range(3))  # today, tomorrow, the day after
    assert sum(count for day, count in days_ahead.items() if day > 7) > 0.15 * num_days


@pytest.mark.parametrize("language", ["en", "tr", "ja"])
def test_a_notice_has_its_event_among_other_lines(language: str) -> None:
    orders, num_with_other_lines = set(), 0
    for split in ("train", "held_out"):
        for notice in of("notice", language, 60, split):
            ((user, answer),) = answered(notice)
            event = json.loads(answer.text)
            assert list(event) == ["title", "date", "time", "location"]
            lines = [line for line in user.text.split("\n") if line]
            assert any(event["location"] in line for line in lines)
            orders.add(lines.index(event["title"]))
            num_with_other_lines += len(lines) > 4
    assert {0, 1, 2} <= orders
    assert num_with_other_lines > 60


@pytest.mark.parametrize("language", ["en", "tr", "ko"])
def test_the_day_and_the_time_of_a_notice_are_those_that_it_shows(language: str) -> None:
    for seed in range(60):
        announced = draw_announcement(random.Random(seed), language, "train")
        _, user, answer = notice_turns(random.Random(seed), language, "train")
        assert json.loads(answer.text) == announced.event
        assert announced.date in user.text
        assert announced.time in user.text
        days_ahead = (datetime.date.fromisoformat(announced.event["date"]) - announced.today).days
        assert 1 <= days_ahead <= 360
        assert "BAŞLAMA SAATI" not in user.text  # Turkish capitals have a dot


def test_lower_case_of_turkish_keeps_both_letters_i() -> None:
    assert lower("İzmir Işık", "tr") == "izmir ışık"
    assert lower("ISBN", "en") == "isbn"


def test_the_corpus_is_made_fast_enough() -> None:
    list(generate(SyntheticConfig(), 200))
    start = time.process_time()
    list(generate(SyntheticConfig(), 500))
    assert time.process_time() - start < 5  # 2 M tokens per minute take 1.5 s


def test_a_choice_among_languages_has_two_or_more_with_different_names() -> None:
    for seed in range(500):
        _, gold, others = _draw_language(random.Random(seed), "train")
        names = [gold.name, *(other.name for other in others)]
        assert len(set(names)) == len(names) >= 2
