"""Projects from a copy of τ-bench-like tasks, which the tests write."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openafm.annotation.environments.project import Project, ProjectError, read_project
from openafm.annotation.environments.replay import ProjectEnvironment, replay
from openafm.annotation.environments.task_import import import_tasks
from openafm.annotation.environments.tau_bench import import_tau_bench
from openafm.annotation.environments.tool_functions import ToolFileError
from openafm.cli.main import app
from openafm.tokenizer.conversation import ToolCall

TOOLS = """
import json
from library.tool import Tool

class Lend(Tool):
    @staticmethod
    def invoke(data, book_id, member):
        book = data["books"].get(book_id)
        if book is None:
            return "Error: no such book"
        book["lent_to"] = member
        data["events"].append({"lent": book_id})
        data["members"].setdefault(member, 0)
        data["members"][member] += 1
        return json.dumps(book)

    @staticmethod
    def get_info():
        properties = {"book_id": {"type": "string"}, "member": {"type": "string", "enum": ["ana", "ben"]}}
        parameters = {"type": "object", "properties": properties, "required": ["book_id", "member"]}
        return {"type": "function", "function": {"name": "lend", "description": "Lend.", "parameters": parameters}}

class Remove(Tool):
    @staticmethod
    def invoke(data, book_id):
        del data["books"][book_id]
        return "removed"

    @staticmethod
    def get_info():
        parameters = {"type": "object", "properties": {"book_id": {"type": "string"}}, "required": ["book_id"]}
        return {"type": "function", "function": {"name": "remove", "description": "Remove.", "parameters": parameters}}

ALL_TOOLS = [Lend, Remove]
"""
TASKS = """
from types import SimpleNamespace as Task

TASKS_TEST = [
    Task(user_id="ana", instruction="You are Ana. Lend b1.", outputs=["b1"], actions=[
        Task(name="lend", kwargs={"book_id": "b1", "member": "ana"})]),
    Task(user_id="ben", instruction="You are Ben. Remove b2.", outputs=["a", "b"], actions=[
        Task(name="respond", kwargs={"content": "b"}), Task(name="remove", kwargs={"book_id": "b2"}),
        Task(name="fly", kwargs={})]),
]
"""


def write_copy(root: Path) -> Path:
    """Write a package with one domain. Its parent packages cannot be imported, as those of a copy without clients."""
    domain = root / "library" / "books"
    for folder in (domain / "tools", domain / "data"):
        folder.mkdir(parents=True)
    for package in (root / "library", domain):
        (package / "__init__.py").write_text("import a_client_of_a_model_service\n")
    (root / "library" / "tool.py").write_text("class Tool: pass\n")
    (domain / "tools" / "__init__.py").write_text(TOOLS)
    tables = {"books": {"b1": {"title": "Emma"}, "b2": {"title": "Ivanhoe"}}, "events": [], "members": {"ana": 2}}
    for name, table in tables.items():
        (domain / "data" / f"{name}.json").write_text(json.dumps(table))
    (domain / "wiki.md").write_text("Lend books.")
    (domain / "tasks_test.py").write_text(TASKS)
    (domain / "tasks_dev.py").write_text("import a_client_of_a_model_service\n")
    return domain


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    return write_copy(tmp_path / "copy")


@pytest.fixture
def project(domain: Path, tmp_path: Path) -> Project:
    import_tau_bench(domain, tmp_path / "project")
    return read_project(tmp_path / "project")


def test_tools_of_a_copy_change_the_rows_of_the_project(project: Project) -> None:
    environment = ProjectEnvironment(project)
    result = environment.run(project.scenarios[0].calls[0])
    assert json.loads(result.text) == {"title": "Emma", "lent_to": "ana"}
    assert sorted((each.table, each.before is None) for each in result.changes) == [
        ("books", False),
        ("events", True),
        ("members", False),
    ]
    state = environment.state
    assert state["members"] == [{"id": "ana", "data": "3"}]
    environment.run(ToolCall(name="lend", arguments={"book_id": "b2", "member": "ben"}))
    environment.run(project.scenarios[1].calls[0])
    assert [row["id"] for row in environment.state["books"]] == ["b1"]  # type: ignore[attr-defined]
    assert [row["data"] for row in environment.state["events"]] == ['{"lent":"b1"}', '{"lent":"b2"}']  # type: ignore[attr-defined]
    environment.reset()
    assert len(environment.state["books"]) == 2  # type: ignore[arg-type]


def test_wrong_calls_of_a_copy_change_nothing(project: Project) -> None:
    calls = [
        ToolCall(name="lend", arguments={"book_id": "b1", "member": "zoe"}),
        ToolCall(name="lend", arguments={"book_id": "b9", "member": "ana"}),
        ToolCall(name="remove", arguments={"book_id": "b9"}),
    ]
    results, digest = replay(project, calls)
    assert [result.problem for result in results] == ["invalid_arguments", "", "raised"]
    assert digest == ProjectEnvironment(project).digest


def test_what_cannot_be_mapped_is_said(domain: Path, tmp_path: Path) -> None:
    with (domain / "tools" / "clock.py").open("w") as file:
        file.write("import datetime\ndef now(): return datetime.datetime.now()\n")
    (domain / "data" / "count.json").write_text("3")
    (domain / "wiki.md").unlink()
    found = import_tau_bench(domain, tmp_path / "project")
    assert (found.tools, found.scenarios, found.rows) == (2, 2, {"books": 2, "events": 0, "members": 1})
    notes = "\n".join(found.notes)
    for part in (
        "simulated user is not run",
        "a replay may differ",
        "tasks_dev.py was left out: ModuleNotFoundError",
        "1 tasks require several texts",
        "1 tasks have actions 'respond'",
        "the tool fly, which the copy does not have",
        "data/count.json is not an object or a list",
        "no wiki.md",
    ):
        assert part in notes
    first, second = read_project(tmp_path / "project").scenarios
    assert (first.id, first.answer, [call.name for call in second.calls]) == ("test-0", "b1", ["remove", "fly"])


def test_a_copy_that_is_changed_moved_or_no_copy_is_refused(domain: Path, project: Project, tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="not an empty folder"):
        import_tau_bench(domain, project.path)
    with pytest.raises(ProjectError, match="has neither tools"):
        import_tasks(tmp_path, tmp_path / "other")
    (domain / "tools" / "more.py").write_text("")
    with pytest.raises(ToolFileError, match="changed after the import"):
        ProjectEnvironment(project)
    domain.rename(domain.with_name("moved"))
    with pytest.raises(ToolFileError, match="import the tasks again"):
        ProjectEnvironment(project)


def test_modules_of_the_same_name_come_back(domain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("library.tool")
    monkeypatch.setitem(sys.modules, "library.tool", other)
    import_tau_bench(domain, tmp_path / "project")
    assert sys.modules["library.tool"] is other
    assert "library.books.tools" not in sys.modules


def test_a_project_from_a_copy_on_the_command_line(domain: Path, tmp_path: Path) -> None:
    reply = CliRunner().invoke(app, ["annotate", "init", str(tmp_path / "new"), "--tasks", str(domain), "--json"])
    assert reply.exit_code == 0, reply.output
    found = json.loads(reply.stdout)
    assert found["scenarios"] == 2
    assert any("simulated user" in note for note in found["notes"])
