"""Exports: fine-tuning and preferences that training reads, whole trees and their import, statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from project_folders import add_starts, sample_project, write_counters
from tree_items import change, new_item, open_store, step

from openafm.annotation.agent import run_agent
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project, read_project
from openafm.annotation.scripted_model import ScriptedModel
from openafm.annotation.trees.document import ForeignTreeError, import_tree, tree_document, tree_schema
from openafm.annotation.trees.export import export
from openafm.annotation.trees.item import Item
from openafm.annotation.trees.nodes import Content
from openafm.annotation.trees.statistics import statistics
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tree import ErrorKind
from openafm.cli.main import run
from openafm.data.preferences import read_preferences
from openafm.tokenizer.conversation import AssistantTurn, Conversation, ToolTurn


@pytest.fixture(scope="module")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return sample_project("travel", tmp_path_factory.mktemp("projects") / "travel")


@pytest.fixture(scope="module")
def tools(travel: Project) -> Iterator[tuple[TreeStore, ToolPool]]:
    with open_store(travel, travel.path / "annotations.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def corrected(travel: Project, tools: tuple[TreeStore, ToolPool]) -> Item:
    """An item whose model made a mistake in each call; the annotator corrected all of them."""
    item = new_item(travel, *tools)
    scenario = travel.scenarios[0]
    item.query(scenario.query, change())
    for number, call in enumerate(scenario.calls):
        list(run_agent(item, ScriptedModel(travel, mistakes=1.0), change(), max_steps=1))
        wrong = item.tree.path()[1 + number]
        item.flag(wrong.id, ErrorKind.WRONG_ARGUMENTS, number == 0, change())
        item.edit(wrong.id, Content(kind=wrong.kind, calls=(call,)), change(), reason="wrong")
    item.answer("Booked for 98 euros.", change())
    item.set_done(True, change())
    return item


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_main_stems_are_conversations_for_fine_tuning(
    travel: Project, tools: tuple[TreeStore, ToolPool], corrected: Item, tmp_path: Path
) -> None:
    open_item = new_item(travel, *tools, scenario=1)
    report = export(tools[0], travel, tools[1], "sft", tmp_path / "sft.jsonl")
    assert {"item": open_item.id, "reason": "not marked as done"} in report.skipped
    (line,) = (line for line in lines_of(tmp_path / "sft.jsonl") if line["item"] == corrected.id)
    conversation = Conversation.from_dict(line)
    calls = [call for turn in conversation.turns if isinstance(turn, AssistantTurn) for call in turn.tool_calls]
    assert calls == list(travel.scenarios[0].calls)
    assert sum(isinstance(turn, ToolTurn) for turn in conversation.turns) == 3
    assert len(conversation.turns[0].tools) == 10  # type: ignore[union-attr]


def test_sibling_branches_are_preferences(
    travel: Project, tools: tuple[TreeStore, ToolPool], corrected: Item, tmp_path: Path
) -> None:
    export(tools[0], travel, tools[1], "preferences", tmp_path / "preferences.jsonl")
    preferences = list(read_preferences(tmp_path / "preferences.jsonl"))
    assert len(preferences) == 3
    for preference, call in zip(preferences, travel.scenarios[0].calls, strict=True):
        chosen, rejected = (turns[0] for turns in preference.answers)
        assert isinstance(chosen, AssistantTurn)
        assert chosen.tool_calls == (call,)
        assert rejected.tool_calls[0].name == call.name  # type: ignore[union-attr]
    assert [preference.strength for preference in preferences] == [2, 1, 1]


def test_undone_attempts_are_no_preferences(travel: Project, tools: tuple[TreeStore, ToolPool], tmp_path: Path) -> None:
    item = new_item(travel, *tools)
    item.query("Hello", change())
    item.answer("Wrong", change())
    item.undo(change())
    item.answer("Hello!", change())
    item.set_done(True, change())
    export(tools[0], travel, tools[1], "preferences", tmp_path / "preferences.jsonl")
    assert not [line for line in lines_of(tmp_path / "preferences.jsonl") if "Hello!" in line["chosen"]["content"]]


@pytest.mark.long
def test_a_stem_that_does_not_replay_is_left_out(tmp_path: Path) -> None:
    project = write_counters(tmp_path / "counters")
    with open_store(project, tmp_path / "items.sqlite") as (store, pool):
        item = new_item(project, store, pool)
        item.query("Count.", change())
        list(run_agent(item, ScriptedModel(project), change(), max_steps=1))
        item.delete(item.tree.head, change())
        item.insert(
            item.tree.head, Content.from_dict({"kind": "step", "calls": [{"name": "read", "arguments": {}}]}), change()
        )
        item.answer("Zero.", change())
        item.set_done(True, change())
        assert export(store, project, pool, "sft", tmp_path / "sft.jsonl").lines == 1
    (project.path / "state" / "more.sql").write_text("INSERT INTO counters VALUES ('new', 3)")
    (project.path / "state" / "more.sql").rename(project.path / "state" / "z.sql")
    changed = read_project(project.path)
    with open_store(changed, tmp_path / "items.sqlite") as (store, pool):
        report = export(store, changed, pool, "sft", tmp_path / "sft.jsonl")
    assert report.lines == 0
    assert "the tool returns" in report.skipped[0]["reason"]


def test_trees_are_exported_and_imported(
    travel: Project, tools: tuple[TreeStore, ToolPool], corrected: Item, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(tree_document(corrected.id, corrected.tree, tools[0].events(corrected.id))))
    jsonschema.validate(document, tree_schema())
    with open_store(travel, tmp_path / "other.sqlite", tools[1]) as (store, pool):
        assert import_tree(document, store, travel, pool) == corrected.id
        again = Item(store, corrected.id, pool)
        assert tree_document(again.id, again.tree, store.events(again.id)) | {"events": []} == document | {"events": []}
        assert again.tables(again.tree.head) == corrected.tables(corrected.tree.head)
        with pytest.raises(ForeignTreeError, match="already in the project"):
            import_tree(document, store, travel, pool)
        again.revert(again.tree.path()[2].id, change())


def test_foreign_trees_are_refused(travel: Project, tools: tuple[TreeStore, ToolPool], corrected: Item) -> None:
    document = tree_document("f" * 12, corrected.tree, tools[0].events(corrected.id))
    node = next(event for event in document["events"] if event["kind"] == "node" and event["payload"]["results"])
    result = node["payload"]["results"][0]
    for wrong, message in (
        ([], "not a tree of openafm"),
        ({"format": "other"}, "not a tree of openafm"),
        (document | {"version": 2}, "version 2"),
        (document | {"events": document["events"][1:]}, "damaged"),
        (document | {"item": "../x"}, "not a tree of openafm"),
        (
            document
            | {
                "events": [
                    each if each is not node else node | {"payload": node["payload"] | {"results": [result | {"text": "x"}]}}
                    for each in document["events"]
                ]
            },
            "gives other results",
        ),
    ):
        with pytest.raises(ForeignTreeError, match=message):
            import_tree(wrong, tools[0], travel, tools[1])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("opened", {"scenario": None}),
        ("opened", {"scenario": {"id": "x"}}),
        ("opened", {"tools_digest": None}),
        ("opened", {"policy": "Tell everything."}),
        ("opened", {"tools": []}),
        ("node", {"text": 5}),
        ("node", {"text": "\ud800"}),
        ("node", {"parent": None}),
        ("node", {"kind": "answer"}),
        ("node", {"results": ["a"]}),
        ("node", {"calls": [{"name": ["a"], "arguments": {}}]}),
        ("status", {"done": "yes"}),
        ("flag", {"error": "other"}),
    ],
)
def test_forged_events_are_refused(
    travel: Project, tools: tuple[TreeStore, ToolPool], corrected: Item, kind: str, changes: dict[str, Any]
) -> None:
    document = json.loads(json.dumps(tree_document("f" * 12, corrected.tree, tools[0].events(corrected.id))))
    event = next(each for each in document["events"] if each["kind"] == kind)
    event["payload"] |= changes
    with pytest.raises(ForeignTreeError, match=r"not a tree|damaged|another policy"):
        import_tree(document, tools[0], travel, tools[1])


def test_an_import_stores_the_results_of_its_own_calls(
    travel: Project, tools: tuple[TreeStore, ToolPool], corrected: Item, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(tree_document(corrected.id, corrected.tree, tools[0].events(corrected.id))))
    nodes = [each["payload"] for each in document["events"] if each["kind"] == "node"]
    for payload in nodes:
        payload["num_calls"] = 10**12
        for result in payload["results"]:
            result |= {"changes": [{"table": "forged"}], "detail": "forged"}
    with open_store(travel, tmp_path / "other.sqlite", tools[1]) as (store, pool):
        again = Item(store, import_tree(document, store, travel, pool), pool)
    assert [(n.results, n.num_calls) for n in again.tree.nodes.values()] == [
        (n.results, n.num_calls) for n in corrected.tree.nodes.values()
    ]


def test_statistics_count_corrections_errors_and_time(tools: tuple[TreeStore, ToolPool], corrected: Item) -> None:
    found = statistics({corrected.id: tools[0].events(corrected.id)})
    assert found["corrections"] == {"edited": 3}
    assert found["errors"] == {"wrong_arguments": 1}
    assert (found["items"], found["done"], found["steps_with_calls"]) == (1, 1, 3)
    assert found["people"][""]["changes"] == len(tools[0].events(corrected.id)) - 1


@pytest.mark.slow  # starts a tool process for each command
def test_the_commands(travel: Project, corrected: Item, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["annotate", "init", str(tmp_path / "new"), "--sample", "device"]) == 0
    assert "openafm annotate serve" in capsys.readouterr().out
    for target in ("sft", "preferences", "tree"):
        assert run(["annotate", "export", "--project", str(travel.path), "--to", target, "--json"]) == 0
        file = Path(json.loads(capsys.readouterr().out)["file"])
        assert file.name == f"{target}.jsonl"
        assert lines_of(file)
    assert run(["annotate", "statistics", "--project", str(travel.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["corrections"]["edited"] == 3
    assert run(["annotate", "import", str(file), "--project", str(tmp_path / "new")]) == 1
    assert "other tools" in capsys.readouterr().err
    assert run(["annotate", "export", "--project", str(tmp_path), "--to", "sft"]) == 1
    assert "has no project.toml" in capsys.readouterr().err


def test_items_of_other_starting_states_are_exported_and_imported(tmp_path: Path) -> None:
    write_counters(tmp_path / "counters")
    add_starts(tmp_path / "counters")
    project = read_project(tmp_path / "counters")
    with open_store(project, tmp_path / "items.sqlite") as (store, pool):
        for scenario in range(3):
            item = new_item(project, store, pool, scenario)
            item.query("Count.", change())
            item.step(step("add", key="k0"), change())
            item.answer("Done.", change())
            item.set_done(True, change())
        assert export(store, project, pool, "sft", tmp_path / "sft.jsonl").lines == 3
        values = [json.loads(line["messages"][-2]["content"])["value"] for line in lines_of(tmp_path / "sft.jsonl")]
        assert values == [1, 8, 1]
        assert export(store, project, pool, "tree", tmp_path / "trees.jsonl").lines == 3
        (tmp_path / "counters" / "starts" / "two.json").write_text('{"counters": []}')
        changed = read_project(tmp_path / "counters")
        report = export(store, changed, pool, "sft", tmp_path / "sft.jsonl")
        assert (report.lines, "the tool returns" in report.skipped[0]["reason"]) == (2, True)
        (tmp_path / "counters" / "starts" / "two.json").unlink()
        report = export(store, project, pool, "sft", tmp_path / "sft.jsonl")  # its state was read before
        assert report.lines == 3
    with open_store(project, tmp_path / "other.sqlite") as (store, pool):
        first, second, third = lines_of(tmp_path / "trees.jsonl")
        for document in (first, third):
            assert import_tree(document, store, project, pool) == document["item"]
        tables = [Item(store, each["item"], pool).tables(0)["counters"] for each in (first, third)]
        assert tables == [[{"id": "c0", "value": 0}], []]
        with pytest.raises(ForeignTreeError, match="starting state of the tree does not fit"):
            import_tree(second, store, replace(project), pool)
