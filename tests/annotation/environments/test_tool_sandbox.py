"""Projects from a copy of ToolSandbox-like tasks, which the tests write."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from openafm.annotation.environments.project import Project, ProjectError, read_project
from openafm.annotation.environments.replay import ProjectEnvironment, replay
from openafm.annotation.environments.task_import import import_tasks
from openafm.annotation.environments.tool_functions import ToolFileError
from openafm.cli.main import app
from openafm.tokenizer.conversation import ToolCall

CONTEXT = """
import contextlib
from enum import Enum
from types import SimpleNamespace

DatabaseNamespace = Enum("DatabaseNamespace", ["SANDBOX", "LAMP", "NOTE"])
Role = Enum("Role", ["SYSTEM", "USER", "AGENT"])
pl = SimpleNamespace(lit=lambda value: lambda row: value)
current = []

class Frame(list):
    def to_dicts(self):
        return [dict(row) for row in self]

class ExecutionContext:
    def __init__(self):
        self.tool_allow_list = None
        self.frames = {each: Frame() for each in DatabaseNamespace}
        self.add_to_database(DatabaseNamespace.LAMP, [{"lamp_id": "l0", "on": False}])

    def get_database(self, namespace, get_all_history_snapshots=False):
        frame = self.frames[namespace]
        return frame if namespace.name != "SANDBOX" or get_all_history_snapshots else Frame(frame[-1:])

    def add_to_database(self, namespace, rows):
        self.frames[namespace].extend(rows)

    def remove_from_database(self, namespace, predicate):
        self.frames[namespace] = Frame(row for row in self.frames[namespace] if not predicate(row))

@contextlib.contextmanager
def new_context(context):
    current.append(context)
    yield context
    current.pop()
"""
TOOLS = '''
import datetime
from typing import Optional, Union
from uuid import uuid4
from garden.common import execution_context
from garden.common.execution_context import DatabaseNamespace as Name
from garden.common.registry import NotGiven, register_as_tool

@register_as_tool(visible_to=("AGENT",))
def switch_lamp(lamp_id: str, on: bool) -> None:
    """Switch a lamp.

    Args:
        lamp_id: which lamp
    """
    import garden.common.registry
    rows = [row for row in execution_context.current[-1].get_database(Name.LAMP) if row["lamp_id"] == lamp_id]
    rows[0]["on"] = on

@register_as_tool()
def take_note(text: str, stars: Union[float, NotGiven] = NotGiven(), place: Optional[str] = None):
    context = execution_context.current[-1]
    context.add_to_database(Name.NOTE, [{"note_id": str(uuid4()), "text": text, "place": place}])
    return [datetime.datetime.now().isoformat(), isinstance(stars, NotGiven)]

@register_as_tool(visible_to=("USER",))
def leave(): ...

@register_as_tool()
def no_types(value): ...
'''
REGISTRY = """
class NotGiven: ...
def register_as_tool(visible_to=("AGENT",)):
    return lambda function: function
"""
SCENARIOS = """
from types import SimpleNamespace as Values
from garden.common.execution_context import DatabaseNamespace as Name, ExecutionContext, Frame, Role

def snapshot_similarity(): ...
def addition_similarity(): ...
def removal_similarity(): ...
def guardrail_similarity(): ...

def expect(table, kind, **row):
    return Values(database_namespace=table, snapshot_constraint=kind, target_dataframe=Frame([row]))

def scenario(query, *constraints, lamps=1, allowed=None, categories=(), turns=1, mines=()):
    context = ExecutionContext()
    context.tool_allow_list = allowed
    context.add_to_database(Name.LAMP, [{"lamp_id": f"l{number}", "on": False} for number in range(1, lamps)])
    rows = [(Role.SYSTEM, Role.AGENT, "Be brief.", None), (Role.SYSTEM, Role.USER, f"Wish: {query}", None)]
    rows += [(Role.USER, Role.AGENT, "An example", [Role.USER])] + [(Role.USER, Role.AGENT, query, None)] * turns
    names = ("sender", "recipient", "content", "visible_to")
    context.add_to_database(Name.SANDBOX, [dict(zip(names, row)) for row in rows])
    matcher = Values(milestones=[Values(snapshot_constraints=constraints)])
    evaluation = Values(milestone_matcher=matcher, minefield_matcher=Values(milestones=list(mines)))
    return Values(starting_context=context, evaluation=evaluation, categories=categories)

def named_scenarios(preferred_tool_backend):
    assert preferred_tool_backend == "usual"
    lit = [expect(Name.LAMP, snapshot_similarity, on=False), expect(Name.LAMP, snapshot_similarity, on=True)]
    return {
        "light_many": scenario("Light please", *lit, allowed=["switch_lamp", "search_web"]),
        "light": scenario("Light please", *lit, expect(Name.SANDBOX, snapshot_similarity), allowed=["switch_lamp"]),
        "clear": scenario("Clear", expect(Name.NOTE, removal_similarity, text="a"),
                          expect(Name.LAMP, guardrail_similarity), mines=[1]),
        "web": scenario("Search", allowed=["search_web"]),
        "held": scenario("Impossible", categories=[Values(name="INSUFFICIENT_INFORMATION")]),
        "long": scenario("Again", turns=2),
        "two": scenario("Two lamps", expect(Name.NOTE, addition_similarity, text="b"), lamps=2),
    }
"""


def write_copy(root: Path) -> Path:
    """Write a package without a parent's `__init__`, whose scenarios have two starting states."""
    package = root / "garden"
    for folder in ("common", "tools", "scenarios"):
        (package / folder).mkdir(parents=True)
    (package / "common" / "execution_context.py").write_text(CONTEXT)
    (package / "common" / "registry.py").write_text(REGISTRY)
    (package / "common" / "tool_discovery.py").write_text("class ToolBackend: DEFAULT = 'usual'\n")
    (package / "tools" / "garden_tools.py").write_text(TOOLS)
    (package / "tools" / "web.py").write_text("import requests\n@register_as_tool()\ndef search_web(text: str): ...\n")
    (package / "scenarios" / "__init__.py").write_text(SCENARIOS)
    return package


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_copy(tmp_path / "copy")


@pytest.fixture
def project(package: Path, tmp_path: Path) -> Project:
    import_tasks(package, tmp_path / "project")
    return read_project(tmp_path / "project")


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def test_tools_of_a_copy_change_the_rows_of_the_project(project: Project) -> None:
    environment = ProjectEnvironment(project)
    switch, note = environment.definitions
    assert switch.parameters["properties"] == {
        "lamp_id": {"type": "string", "description": "which lamp"},
        "on": {"type": "boolean"},
    }
    assert (note.parameters["properties"]["stars"], note.parameters["required"]) == ({"type": "number"}, ["text"])
    result = environment.run(call("switch_lamp", lamp_id="l0", on=True))
    assert (result.text, [(each.table, each.before is None) for each in result.changes]) == ("null", [("lamp", False)])
    result = environment.run(call("take_note", text="a"))
    time = project.config.start + datetime.timedelta(minutes=1)
    assert json.loads(result.text) == [time.isoformat(), True]
    state: Any = environment.state
    assert [row["data"] for row in state["lamp"]] == ['{"lamp_id":"l0","on":true}']
    assert [json.loads(row["data"])["note_id"] for row in state["note"]] == [row["id"] for row in state["note"]]


def test_calls_of_a_copy_give_the_same_state_again_and_wrong_ones_change_nothing(project: Project) -> None:
    calls = [call("take_note", text="a", stars=2), call("switch_lamp", lamp_id="l9", on=True), call("take_note", text=3)]
    results, digest = replay(project, calls)
    assert [result.problem for result in results] == ["", "raised", "invalid_arguments"]
    assert "IndexError" in results[1].text
    assert digest == replay(project, calls[:1])[1] != ProjectEnvironment(project).digest
    assert not [name for name in sys.modules if name.startswith("garden")]


def test_scenarios_with_what_cannot_be_mapped(package: Path, tmp_path: Path) -> None:
    found = import_tasks(package, tmp_path / "project")
    assert (found.tools, found.scenarios, found.starts, found.rows) == (2, 3, 2, {"lamp": 1, "note": 0})
    notes = "\n".join(found.notes)
    for part in (
        "search_web was left out: it needs the network",
        "no_types was left out: it has no schema",
        "1 scenarios were left out: they differ",
        "1 scenarios were left out: they need a tool",
        "1 scenarios were left out: they hold back",
        "1 scenarios were left out: they begin with several turns",
        "1 scenarios have milestones of replies and tool calls",
        "1 scenarios have milestones of guardrail_similarity",
        "1 scenarios have minefields",
        "simulated user is not run",
    ):
        assert part in notes
    project = read_project(tmp_path / "project")
    light, clear, two = project.scenarios
    assert (light.start, clear.start, two.start) == ("", "", "start-2")
    assert json.loads((tmp_path / "project" / "starts" / "start-2.json").read_text()).keys() == {"lamp"}
    assert (project.policy, light.id, light.query) == ("Be brief.", "light", "Light please")
    assert light.goal == "At the end, lamp has a row with on = true.\nPlay the user of this instruction: Wish: Light please"
    assert light.extra["expect"] == [{"table": "lamp", "has": "row", "values": {"on": True}}]
    assert clear.goal.startswith('At the end, note has no row with text = "a".')


def test_a_copy_that_is_changed_incomplete_or_no_copy_is_refused(package: Path, project: Project, tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="has neither tools"):
        import_tasks(tmp_path, tmp_path / "other")
    (package / "tools" / "more.py").write_text("import a_package_that_is_missing\n@register_as_tool()\ndef more(): ...\n")
    with pytest.raises(ToolFileError, match="changed after the import"):
        ProjectEnvironment(project)
    with pytest.raises(ToolFileError, match=r"install what it needs: .*a_package_that_is_missing"):
        import_tasks(package, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_scenarios_of_a_copy_begin_in_their_own_states(package: Path, tmp_path: Path) -> None:
    reply = CliRunner().invoke(app, ["annotate", "init", str(tmp_path / "new"), "--tasks", str(package), "--json"])
    assert reply.exit_code == 0, reply.output
    assert json.loads(reply.stdout)["scenarios"] == 3
    project = read_project(tmp_path / "new")
    second = [call("switch_lamp", lamp_id="l1", on=True)]
    problems = {each.id: replay(project, second, each)[0][0].problem for each in project.scenarios}
    assert problems == {"light": "raised", "clear": "raised", "two": ""}
