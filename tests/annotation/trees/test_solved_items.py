"""Items that solve their scenarios: expected rows, the state after reference calls, required texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from project_folders import write_counters
from tree_items import change, new_item, open_store, step

from openafm.annotation.environments.project import DATABASE, ProjectError, read_project
from openafm.cli.main import run

ADD = {"name": "add", "arguments": {"key": "a", "value": 1}}
REFUSED = {"name": "remove", "arguments": {"key": "z"}}
BROKEN = {"name": "misbehave", "arguments": {"how": "raise"}}


def row(table: str, has: str = "row", **values: Any) -> dict[str, Any]:
    return {"table": table, "has": has, "values": values}


CASES: dict[str, tuple[dict[str, Any], int, str, str]] = {
    # the scenario, the value that the item adds to the counter a, the outcome, a part of the reason
    "same-state": ({"calls": [ADD]}, 1, "solved", ""),
    "missing-row": ({"calls": [ADD]}, 2, "not_solved", 'the row {"id": "a", "value": 1} of the reference calls is missing'),
    "unexpected-row": ({"calls": [REFUSED]}, 1, "not_solved", "is not there after the reference calls"),
    "refusal": ({"calls": [REFUSED]}, 0, "solved", ""),
    "broken-reference": ({"calls": [BROKEN]}, 0, "not_checkable", "the reference call misbehave fails"),
    "nothing-expected": ({}, 1, "not_checkable", "no 'expect'"),
    "expected-row": ({"expect": [row("counters", id=" A", value=1)], "calls": [BROKEN]}, 1, "solved", ""),
    "no-expected-row": ({"expect": [row("counters", value=1)]}, 2, "not_solved", 'counters has no row with {"value": 1}'),
    "forbidden-row": ({"expect": [row("counters", "no row", id="a")]}, 1, "not_solved", "counters has a row"),
    "row-as-json": ({"expect": [row("notes", id="n", on=True)]}, 0, "solved", ""),
    "unknown-table": ({"expect": [row("lamps", on=True)]}, 0, "not_checkable", "the table 'lamps'"),
    "start-reference": ({"calls": [ADD], "start": {"counters": [{"id": "a", "value": 5}]}}, 1, "solved", ""),
    "start-row": ({"expect": [row("counters", id="a", value=6)], "start": "five"}, 1, "solved", ""),
    "start-without": ({"expect": [row("counters", id="a", value=6)]}, 1, "not_solved", "counters has no row"),
    "text": ({"answer": "1000"}, 0, "solved", ""),
    "missing-text": ({"outputs": ["1000", "euros"]}, 0, "not_solved", "no answer contains 'euros'"),
}


@pytest.mark.long
def test_items_are_compared_with_what_their_scenarios_expect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "counters"
    write_counters(folder)
    (folder / "state" / "notes.sql").write_text(
        """CREATE TABLE notes (id TEXT PRIMARY KEY, data TEXT); INSERT INTO notes VALUES ('n', '{"on": true}');"""
    )
    (folder / "starts").mkdir()
    (folder / "starts" / "five.json").write_text('{"counters": [{"id": "a", "value": 5}]}')
    scenarios = [{"id": id, "query": "Count."} | scenario for id, (scenario, *_) in CASES.items()]
    (folder / "scenarios" / "some.jsonl").write_text("".join(json.dumps(each) + "\n" for each in scenarios))
    project = read_project(folder)
    with open_store(project, folder / DATABASE) as (store, pool):
        for number, (_, value, _, _) in enumerate(CASES.values()):
            item = new_item(project, store, pool, number)
            item.query("Count.", change())
            if value:
                item.step(step("add", key="a", value=value), change())
            item.answer("It is 1,000 EUR.", change())
            item.set_done(True, change())
        new_item(project, store, pool).query("Still open.", change())
    assert run(["annotate", "check", "--project", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {each["scenario"]: each["outcome"] for each in report["items"]} == {id: case[2] for id, case in CASES.items()}
    for each in report["items"]:
        assert CASES[each["scenario"]][3] in each["reason"]
        assert bool(each["reason"]) == (each["outcome"] != "solved")
    assert (report["solved"], report["not_solved"], report["not_checkable"], report["open"]) == (7, 6, 3, 1)


def test_a_malformed_expectation_is_refused_with_its_line(tmp_path: Path) -> None:
    write_counters(tmp_path / "counters")
    scenario = {"id": "one", "query": "Count.", "expect": [{"table": "counters", "has": "rows", "values": {}}]}
    (tmp_path / "counters" / "scenarios" / "some.jsonl").write_text(json.dumps(scenario))
    with pytest.raises(ProjectError, match=r"some\.jsonl:1: 'expect' is a list"):
        read_project(tmp_path / "counters")


@pytest.mark.parametrize("verb", ["check", "statistics"])
def test_a_project_that_does_not_exist_is_a_usage_error(tmp_path: Path, verb: str) -> None:
    assert run(["annotate", verb, "--project", str(tmp_path / "absent")]) == 2
