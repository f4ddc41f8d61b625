"""Project folders, their initial state and the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from project_folders import add_starts, sample_project, write_counters

from openafm.annotation.environments.project import SAMPLES, ProjectError, Scenario, read_project, write_sample
from openafm.annotation.environments.replay import ProjectEnvironment
from openafm.annotation.environments.tool_functions import ToolFileError, load_tools
from openafm.tokenizer.conversation import ToolCall


@pytest.mark.parametrize("name", SAMPLES)
def test_the_reference_calls_of_a_sample_work(name: str, tmp_path: Path) -> None:
    project = sample_project(name, tmp_path / name)
    environment = ProjectEnvironment(project)
    assert len(load_tools(project.tools_path)) >= 8
    assert len({scenario.language for scenario in project.scenarios}) >= 5
    initial = environment.digest
    num_changed = 0
    for scenario in project.scenarios:
        environment.reset()
        assert environment.digest == initial
        results = [environment.run(call) for call in scenario.calls]
        assert not [r for r in results if r.problem not in ("", "refused")], scenario.id
        num_changed += environment.digest != initial
    assert num_changed >= 4


def test_a_wrong_folder_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=r"has no project\.toml"):
        read_project(tmp_path)
    write_counters(tmp_path / "p")
    with pytest.raises(ProjectError, match="not an empty folder"):
        write_sample("travel", tmp_path / "p")
    with pytest.raises(ProjectError, match="the samples are calendar, shop"):
        write_sample("nothing", tmp_path / "q")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("project.toml", "title = 3", "expected str"),
        ("project.toml", 'title = "x"\nclock = "noon"', "clock must be"),
        ("project.toml", 'title = "x"\ncall_seconds = 0', "must be above 0"),
        ("scenarios/some.jsonl", '{"id": "a"}', "'id' and 'query'"),
        ("scenarios/some.jsonl", '{"id": "a", "query": "b", "calls": [{}]}', "'calls' is a list"),
        ("scenarios/some.jsonl", '{"id": "a", "query": "b"}\n{"id": "a", "query": "b"}', "occurs twice"),
        ("scenarios/some.jsonl", '{"id": "a", "query": "b", "start": "two"}', r"some\.jsonl:1: .* has no two\.json"),
        ("scenarios/some.jsonl", '{"id": "a", "query": "b", "start": "../state"}', "'start' is the name"),
        ("scenarios/some.jsonl", '{"id": "a", "query": "b", "start": []}', "'start' is the name"),
        ("scenarios/some.jsonl", "[", "some.jsonl:1"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, file: str, text: str, message: str) -> None:
    write_counters(tmp_path / "p")
    (tmp_path / "p" / file).write_text(text)
    with pytest.raises(ProjectError, match=message):
        read_project(tmp_path / "p")


@pytest.mark.parametrize(
    ("file", "text"),
    [("broken.sql", "CREATE TABEL x"), ("rows.json", "{}"), ("rows.json", "["), ("counters.json", '[{"other": 1}]')],
)
def test_a_wrong_seed_is_named(tmp_path: Path, file: str, text: str) -> None:
    project = write_counters(tmp_path / "p")
    (tmp_path / "p" / "state" / file).write_text(text)
    with pytest.raises(ProjectError, match=file):
        _ = project.seed


def test_a_scenario_starts_from_its_own_rows(tmp_path: Path) -> None:
    write_counters(tmp_path / "p")
    add_starts(tmp_path / "p")
    project = read_project(tmp_path / "p")
    environment = ProjectEnvironment(project)
    rows = []
    for scenario in project.scenarios:
        environment.begin(scenario)
        environment.call(ToolCall(name="add", arguments={"key": "new"}))
        environment.reset()
        rows.append([(row["id"], row["value"]) for row in rows_of(environment, "counters")])
        assert Scenario.from_dict(scenario.to_dict()) == scenario
    assert rows == [[("c0", 0)], [("k0", 7), ("k1", 8)], []]
    assert "start" not in project.scenarios[0].to_dict()


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ('{"others": []}', r"bad\.json: table 'others': .* no such table; it has counters"),
        ('{"sqlite_master": []}', "no such table"),
        ('{"counters": {}}', "expected a list of objects"),
        ('{"counters": [{"other": 1}]}', r"bad\.json: table 'counters'"),
        ("[]", "expected an object of rows by table"),
        ("{", r"bad\.json: Expecting"),
    ],
)
def test_a_wrong_starting_state_is_named(tmp_path: Path, start: str, message: str) -> None:
    write_counters(tmp_path / "p")
    (tmp_path / "p" / "starts").mkdir()
    (tmp_path / "p" / "starts" / "bad.json").write_text(start)
    (tmp_path / "p" / "scenarios" / "some.jsonl").write_text('{"id": "a", "query": "b", "start": "bad"}')
    project = read_project(tmp_path / "p")
    with pytest.raises(ProjectError, match=message):
        project.start_image(project.scenarios[0])


def rows_of(environment: ProjectEnvironment, table: str) -> list[Any]:
    rows = environment.state[table]
    assert isinstance(rows, list)
    return rows


def test_json_rows_make_a_table(tmp_path: Path) -> None:
    project = write_counters(tmp_path / "p")
    (tmp_path / "p" / "state" / "books.json").write_text(
        '[{"id": "a", "price": 1.5, "tags": ["x"]}, {"id": "b", "price": 2}]'
    )
    books = ProjectEnvironment(project).state["books"]
    assert books == [{"id": "a", "price": 1.5, "tags": '["x"]'}, {"id": "b", "price": 2.0, "tags": None}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import datetime\ndef now() -> str:\n    return str(datetime.datetime.now())", "line 3: datetime.now"),
        ("import random\ndef draw() -> int:\n    return random.randrange(3)", "random.randrange"),
        ("import time\ndef now() -> float:\n    return time.time()", r"time\.time"),
        ("import uuid\ndef new() -> str:\n    return str(uuid.uuid4())", "uuid.uuid4"),
        ("def untyped(x):\n    return x", "has no type"),
        ("x = 1", "no public function"),
        ("def f(:", "cannot be read"),
        ("raise ValueError('no')", "cannot be imported: ValueError: no"),
    ],
)
def test_tools_that_cannot_be_replayed_or_described_are_named(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "tools.py").write_text(source)
    with pytest.raises(ToolFileError, match=message):
        [tool.definition() for tool in load_tools(tmp_path / "tools.py").values()]
