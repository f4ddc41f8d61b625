"""BFCL multi-turn with a small copy of the leaderboard's files: states are compared after each message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openafm.evaluation.harness.task import Item, Output, TaskDataError
from openafm.evaluation.tasks.bfcl_multi_turn import BFCLMultiTurnConfig, Classes, parse_call

CODE = """
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context import EXTRA
import copy

class TicketAPI:
    def __init__(self):
        self.open, self._secret = [], 0

    def _load_scenario(self, scenario, long_context=False):
        self.open = copy.deepcopy(scenario.get("open", [])) + (EXTRA if long_context else [])

    def create_ticket(self, title, priority=1):
        self.open.append([title, priority])
        return {"id": len(self.open)}

    def close_ticket(self, id):
        return {"closed": self.open.pop(id - 1)[0]}

    def count(self):
        self._secret += 1
        return len(self.open)
"""
ROW = {
    "id": "multi_turn_base_0",
    "question": [[{"role": "user", "content": f"Message {number}"}] for number in range(3)],
    "initial_config": {"TicketAPI": {"open": [["printer", 2]]}},
    "involved_classes": ["TicketAPI"],
    "excluded_function": ["delete_ticket"],
}
TRUTH = [["create_ticket('lamp', priority=3)"], [], ["close_ticket(id=1)", "count()"]]
RIGHT = (
    {"turn": 0, "name": "create_ticket", "arguments": {"title": "lamp", "priority": 3}},
    {"turn": 2, "name": "count", "arguments": {}},
    {"turn": 2, "name": "close_ticket", "arguments": {"id": 1}},
    {"turn": 2, "name": "count", "arguments": {}},
)


def function(name: str) -> dict[str, Any]:
    return {"name": name, "description": name, "parameters": {"type": "dict", "properties": {"id": {"type": "integer"}}}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    bfcl = tmp_path / "bfcl"
    for folder in ("possible_answer", "func_source_code", "multi_turn_func_doc"):
        (bfcl / folder).mkdir(parents=True)
    (bfcl / "BFCL_v4_multi_turn_base.json").write_text(json.dumps(ROW))
    (bfcl / "possible_answer" / "BFCL_v4_multi_turn_base.json").write_text(
        json.dumps({"id": ROW["id"], "ground_truth": TRUTH})
    )
    (bfcl / "func_source_code" / "ticket_api.py").write_text(CODE)
    (bfcl / "func_source_code" / "long_context.py").write_text("EXTRA = [['filler', 0]]")
    names = ("create_ticket", "close_ticket", "count", "delete_ticket")
    (bfcl / "multi_turn_func_doc" / "ticket_api.json").write_text("\n".join(json.dumps(function(name)) for name in names))
    return tmp_path


def wrong(item: Item, *calls: dict[str, Any]) -> str:
    return str(BFCLMultiTurnConfig().judge(item, Output(calls=calls)).notes.get("wrong", ""))


def test_states_and_outputs_are_compared(data: Path) -> None:
    (item,) = BFCLMultiTurnConfig().items(data)
    assert (item.prompt.text, item.prompt.turns) == ("Message 0", ("Message 1", "Message 2"))
    assert [tool["name"] for tool in item.prompt.tools] == ["create_ticket", "close_ticket", "count"]
    assert wrong(item, *RIGHT) == ""
    assert wrong(item) == "message 0: no call"
    assert wrong(item, RIGHT[1] | {"turn": 0}) == "message 0: the state differs in TicketAPI.open"
    assert wrong(item, *RIGHT[:1]) == "message 2: no call"
    assert "no call returned '1'" in wrong(item, RIGHT[0], RIGHT[2])  # the state is right, but nothing was counted
    extra = {"turn": 1, "name": "count", "arguments": {}}  # private attributes and messages without reference do not count
    assert wrong(item, RIGHT[0], extra, *RIGHT[1:]) == ""


def test_tools_run_on_a_state_of_their_own(data: Path) -> None:
    (item,) = BFCLMultiTurnConfig().items(data)
    assert item.prompt.open_world is not None
    assert item.prompt.world is not None
    for _ in range(2):
        world = item.prompt.open_world(item.prompt.world)
        assert world.call("create_ticket", {"title": "a"}) == '{"id": 2}'
        assert world.call("create_ticket", {"name": "a"}).startswith("Error during execution")
        assert world.call("_load_scenario", {"scenario": {}}).startswith("Error during execution: name '_load")
        assert world.call("nothing", {}).startswith("Error during execution: name 'nothing'")
    long = Classes(data / "bfcl" / "func_source_code", {**item.prompt.world, "is_long": True})
    assert long.call("count", {}) == "2"
    assert "open_world" not in item.prompt.to_dict()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("func_source_code/ticket_api.py", "no data of BFCL's classes: .*func_source_code.* Apache-2.0"),
        ("multi_turn_func_doc/ticket_api.json", "no data of BFCL v4"),
        ("possible_answer/BFCL_v4_multi_turn_base.json", "no data of BFCL v4"),
    ],
)
def test_missing_files_are_named(data: Path, missing: str, message: str) -> None:
    (data / "bfcl" / missing).unlink()
    with pytest.raises(TaskDataError, match=message):
        list(BFCLMultiTurnConfig().items(data))


def test_wrong_files_are_refused(data: Path) -> None:
    path = data / "bfcl" / "BFCL_v4_multi_turn_base.json"
    path.write_text(json.dumps(ROW | {"involved_classes": ["WebSearchAPI"]}))
    with pytest.raises(TaskDataError, match="has the class WebSearchAPI"):
        list(BFCLMultiTurnConfig().items(data))
    path.write_text(json.dumps(ROW | {"question": []}))
    with pytest.raises(TaskDataError, match="0 messages and 3 lists of calls"):
        list(BFCLMultiTurnConfig().items(data))
    path.write_text(json.dumps(ROW))
    (data / "bfcl" / "func_source_code" / "ticket_api.py").write_text("import no_such_library")
    (item,) = BFCLMultiTurnConfig().items(data)
    with pytest.raises(TaskDataError, match="cannot be imported: No module named 'no_such_library'"):
        wrong(item)
    with pytest.raises(ValueError, match="not a call"):
        parse_call("a + b")
