"""The fresh held-out sets: expected answers recomputed independently, graders that reject wrong answers, and scores of
baselines."""

from __future__ import annotations

import datetime
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from openafm.core.errors import UsageError
from openafm.data.synthetic import LANGUAGES
from openafm.evaluation.fresh.cases import Case, event_cases, form_cases, iso_cases, label_cases, tool_cases
from openafm.evaluation.fresh.natural import LABEL_SETS, natural_cases, words
from openafm.evaluation.fresh.samples import fresh_samples
from openafm.evaluation.fresh.scores import FIELDS, constant_answer, grade_answer, score_cases


def test_every_language_has_events_labels_and_nothing() -> None:
    by_figure: dict[str, set[str]] = {}
    for case in event_cases() + label_cases() + form_cases():
        by_figure.setdefault(case.figure, set()).add(case.language)
    assert by_figure["event"] == by_figure["nothing"] == by_figure["label_first"] == by_figure["form"] == set(LANGUAGES)


def test_dates_follow_the_listed_week() -> None:
    """The expected date of a weekday is the day that the instructions list under it."""
    for case in event_cases():
        if case.figure == "event" and case.expected["weekday"]:
            date = datetime.date.fromisoformat(case.expected["date"][0])
            assert f"{date:%a} {date:%m-%d}" in case.instructions or f"{date:%a} {date:%Y-%m-%d}" in case.instructions


def test_truth_is_valid_under_its_schema() -> None:
    for case in form_cases():
        assert case.schema is not None
        jsonschema.validate(case.expected, case.schema)
    for case in tool_cases():
        for name, arguments in case.expected:
            (tool,) = [tool for tool in case.tools if tool.name == name]
            jsonschema.validate(arguments, dict(tool.parameters))


@pytest.mark.parametrize(
    ("answer", "grades"),
    [
        ({"title": "Dentist.", "date": "2025-01-02", "time": None}, {"event": 1.0, "event_whole": 1.0}),
        ({"title": "dentist", "date": "2025-01-03", "location": "x"}, {"event": 0.5, "event_whole": 0.0}),
        (None, {"event": 0.5, "event_whole": 0.0}),
    ],
)
def test_events_are_graded_field_by_field(answer: object, grades: dict[str, float]) -> None:
    expected = {"title": ("dentist",), "date": ("2025-01-02",), "time": (None,), "location": (None,), "weekday": False}
    assert grade_answer(Case(figure="event", language="en", prompt="", expected=expected), answer) == grades


def test_calls_need_the_right_tool_and_exactly_the_right_arguments() -> None:
    case = next(case for case in tool_cases() if case.expected == [["calculate", {"expression": "18*42"}]])
    assert grade_answer(case, [["calculate", {"expression": "18 * 42"}]]) == {"tool": 1.0, "tool_name": 1.0}
    assert grade_answer(case, [["calculate", {"expression": "18*24"}]]) == {"tool": 0.0, "tool_name": 1.0}
    assert grade_answer(case, [["stopwatch", {}]]) == {"tool": 0.0, "tool_name": 0.0}
    no_call = next(case for case in tool_cases() if not case.expected)
    assert grade_answer(no_call, []) == {"no_call": 1.0}
    assert grade_answer(no_call, None) == {"no_call": 0.0}


def test_a_constant_answer_scores_by_the_place_of_the_label_alone() -> None:
    scores = score_cases(label_cases(), constant_answer)
    assert (scores["label_first"].score, scores["label_last"].score) == (1.0, 0.0)


def test_natural_sets_are_read_from_a_folder(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "intent": f"intentKind_{n}", "slots": [["place", f"p{n}"]]} for n in range(8)]
    for name in LABEL_SETS:
        with gzip.open(tmp_path / f"{name}-test.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    with pytest.raises(UsageError, match=r"NAME-train\.jsonl\.gz"):
        natural_cases(tmp_path, count=1, part="train")
    for name in LABEL_SETS:
        with gzip.open(tmp_path / f"{name}-train.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row | {"text": f"train {row['text']}"}) + "\n" for row in rows)
    assert all(case.prompt.startswith("train ") for case in natural_cases(tmp_path, count=3, part="train"))
    cases = natural_cases(tmp_path, count=3)
    assert all(case.prompt.startswith("text ") for case in cases)
    labels = [case for case in cases if case.figure == "natural_label"]
    tools = [case for case in cases if case.figure == "natural_tool"]
    assert (len(labels), len(tools)) == (15, 6)
    assert all(case.schema and case.expected in case.schema["properties"]["label"]["enum"] for case in labels)
    assert all(case.expected[0][0] in [tool.name for tool in case.tools] for case in tools)
    assert words("AddToPlaylist") == "add to playlist"
    right = tools[0].expected
    assert grade_answer(tools[0], right) == {"natural_tool": 1.0, "natural_slots": 1.0}
    assert grade_answer(tools[0], [[right[0][0], {}]]) == {"natural_tool": 1.0, "natural_slots": 0.0}
    with pytest.raises(UsageError, match="snips-test"):
        natural_cases(tmp_path / "none", count=1)


def test_samples_are_the_best_and_the_worst_answer_of_each_set() -> None:
    events = event_cases()
    right = next(case for case in events if case.figure == "event")

    def answer(case: Case) -> Any:
        return {name: values[0] for name, values in case.expected.items() if name in FIELDS} if case is right else {}

    best, worst = fresh_samples(events, ["event", "absent"], answer)
    assert (best.prompt, best.grade) == (right.prompt, 1.0)
    assert worst.grade < 1
    assert worst.answer == "{}"
    assert json.loads(worst.expected)["title"]
    assert None not in json.loads(best.expected).values()


def test_the_right_tool_with_wrong_arguments_is_no_right_sample() -> None:
    case = next(each for each in tool_cases() if each.expected)
    natural = replace(case, figure="natural_tool", expected=[[case.expected[0][0], {"city": "Rome"}]])
    best, _ = fresh_samples([natural], ["natural_tool"], lambda each: [[each.expected[0][0], {"city": "Oslo"}]])
    assert best.grade == 0


def test_iso_dates_stand_in_their_messages_beside_a_listed_week() -> None:
    for case in iso_cases():
        (date,) = case.expected["date"]
        assert date in case.prompt
        assert case.instructions.startswith("Today is ")
        values = {name: case.expected[name][0] for name in FIELDS}
        assert grade_answer(case, values) == {"event_iso": 1.0}
        assert grade_answer(case, values | {"date": None}) == {"event_iso": 0.75}
