"""The live agent: events of a run, mistakes of a model, limits, cancellation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from project_folders import sample_project
from tree_items import change, new_item, open_store

from openafm.annotation.agent import run_agent
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project
from openafm.annotation.errors import AnnotationError
from openafm.annotation.scripted_model import ScriptedModel
from openafm.annotation.trees.store import ConflictError, TreeStore
from openafm.framework.errors import GenerationError
from openafm.tokenizer.conversation import AssistantTurn, ToolCall, Turn


class Repeating(ScriptedModel):
    """A model that makes the same answer again and again; an answer that is an error is raised."""

    def __init__(self, project: Project, turn: AssistantTurn | Exception) -> None:
        super().__init__(project)
        self.turn = turn

    def next_turn(self, turns: list[Turn]) -> AssistantTurn:  # type: ignore[override]
        if isinstance(self.turn, Exception):
            raise self.turn
        return self.turn


@pytest.fixture(scope="module")
def travel(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return sample_project("travel", tmp_path_factory.mktemp("projects") / "travel")


@pytest.fixture(scope="module")
def tools(travel: Project) -> Iterator[tuple[TreeStore, ToolPool]]:
    with open_store(travel, travel.path / "items.sqlite") as opened:
        yield opened


def test_a_run_shows_calls_results_changes_and_the_answer(travel: Project, tools: tuple[TreeStore, ToolPool]) -> None:
    item = new_item(travel, *tools)
    item.query(travel.scenarios[0].query, change())
    events = list(run_agent(item, ScriptedModel(travel), change(), max_steps=8))
    kinds = [event["type"] for event in events if event["type"] != "text"]
    assert kinds == ["calls", "result", "node"] * 3 + ["node", "stopped"]
    booked = next(event for event in events if event["type"] == "result" and event["changes"])
    assert {each["table"] for each in booked["changes"]} == {"travelers", "flights", "bookings"}
    assert events[-1] == {"type": "stopped", "reason": "answered"}
    assert "98" in item.tree.path()[-1].content.text
    assert item.tree.path()[-1].model == "scripted"
    item.undo(change())
    assert [node.kind for node in item.tree.path()] == ["query"]


def test_a_model_resumes_after_a_correction_and_a_follow_up(travel: Project, tools: tuple[TreeStore, ToolPool]) -> None:
    item = new_item(travel, *tools)
    item.query(travel.scenarios[0].query, change())
    model = ScriptedModel(travel, mistakes=1.0)
    list(run_agent(item, model, change(), max_steps=8))
    wrong = item.tree.path()[1]
    assert wrong.content.calls[0] != travel.scenarios[0].calls[0]
    item.edit(wrong.id, type(wrong.content)(kind=wrong.kind, calls=travel.scenarios[0].calls[:1]), change(), reason="name")
    list(run_agent(item, ScriptedModel(travel), change(), max_steps=8))
    assert [call for node in item.tree.path() for call in node.content.calls] == list(travel.scenarios[0].calls)
    item.query("And the weather?", change())
    assert list(run_agent(item, model, change(), max_steps=8))[-1]["reason"] == "answered"


@pytest.mark.parametrize(
    ("turn", "reason", "num_steps"),
    [
        (AssistantTurn(tool_calls=(ToolCall(name="fly", arguments={}),)), "max_steps", 2),
        (AssistantTurn(tool_calls=(ToolCall(name="find_traveler", arguments={"name": 3}),)), "max_steps", 2),
        (AssistantTurn(text=" "), "error", 0),
        (GenerationError("the model is broken"), "error", 0),
    ],
)
def test_what_a_model_does_wrong_is_shown(
    travel: Project, tools: tuple[TreeStore, ToolPool], turn: AssistantTurn | Exception, reason: str, num_steps: int
) -> None:
    item = new_item(travel, *tools)
    item.query("Hello", change())
    events = list(run_agent(item, Repeating(travel, turn), change(), max_steps=2))
    assert events[-1]["reason"] == reason
    assert len(item.tree.path()) == 1 + num_steps
    assert all(result["problem"] for node in item.tree.path() for result in node.results)


def test_a_run_can_be_cancelled_and_needs_a_query(travel: Project, tools: tuple[TreeStore, ToolPool]) -> None:
    item = new_item(travel, *tools)
    with pytest.raises(AnnotationError, match="write one first"):
        list(run_agent(item, ScriptedModel(travel), change(), max_steps=2))
    stale = change(item)
    item.query(travel.scenarios[0].query, change())
    with pytest.raises(ConflictError):
        list(run_agent(item, ScriptedModel(travel), stale, max_steps=2))
    run = run_agent(item, ScriptedModel(travel), change(), max_steps=8, cancelled=lambda: len(item.tree.path()) > 1)
    assert list(run)[-1]["reason"] == "cancelled"
    assert len(item.tree.path()) == 2
