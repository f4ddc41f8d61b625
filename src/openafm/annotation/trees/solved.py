"""Check whether finished items solve their scenarios: the state at the end of the main stem, and the texts of its answers.

What a scenario expects, where it is machine-readable:

- `expect`: rows that tables have or do not have at the end (written by the import of ToolSandbox-like tasks, or by hand)
- else `calls`: the state at the end equals the one after the reference calls, as in τ-bench-like tasks
- `outputs`, else `answer`: texts that the answers contain
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from openafm.annotation.environments.host import Problem
from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project, ProjectError, Scenario
from openafm.annotation.trees.nodes import Content, Node, NodeKind
from openafm.annotation.trees.replay import Replay
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tree import Tree, fold

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


class Outcome(StrEnum):
    """Whether an item solves its scenario."""

    SOLVED = "solved"
    NOT_SOLVED = "not_solved"
    NOT_CHECKABLE = "not_checkable"


@dataclass(frozen=True, kw_only=True)
class CheckedItem:
    """The outcome of an item. `reason` names what is missing, or why the item cannot be checked."""

    item: str
    scenario: str
    outcome: Outcome
    reason: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"item": self.item, "scenario": self.scenario, "outcome": self.outcome.value, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class SolvedReport:
    """The outcomes of the items that are marked as done, and the number of the others."""

    items: tuple[CheckedItem, ...]
    open: int

    def count(self, outcome: Outcome) -> int:
        """Return the number of items with an outcome."""
        return sum(each.outcome is outcome for each in self.items)

    def to_dict(self) -> dict[str, Any]:
        counts = {outcome.value: self.count(outcome) for outcome in Outcome}
        return counts | {"open": self.open, "items": [each.to_dict() for each in self.items]}


class _NotCheckableError(Exception):
    """Why an item cannot be checked."""


def check_items(store: TreeStore, project: Project, pool: ToolPool) -> SolvedReport:
    """Replay the items that are marked as done in a fresh environment and compare their ends with their scenarios."""
    checked, num_open = [], 0
    for id, events in store.logs().items():
        tree = fold(events)
        if not tree.is_done:
            num_open += 1
            continue
        scenario = Scenario.from_dict(tree.opening["scenario"])
        try:
            reason = next(_missing(tree, scenario, project, pool), "")
            outcome = Outcome.NOT_SOLVED if reason else Outcome.SOLVED
        except _NotCheckableError as error:
            outcome, reason = Outcome.NOT_CHECKABLE, str(error)
        checked.append(CheckedItem(item=id, scenario=scenario.id, outcome=outcome, reason=reason))
    return SolvedReport(items=tuple(checked), open=num_open)


def _missing(tree: Tree, scenario: Scenario, project: Project, pool: ToolPool) -> Iterator[str]:
    """Yield what a scenario expects and the main stem does not have."""
    expected, texts = scenario.extra.get("expect"), _texts(scenario)
    if not (expected or scenario.calls or texts):
        raise _NotCheckableError("the scenario has no 'expect', no reference calls and no required text")
    path = tree.path()
    try:
        start = project.start_image(scenario)
    except ProjectError as error:
        raise _NotCheckableError(f"its starting state cannot be used: {error}") from error
    tables = _tables(pool, start, path)
    if expected:
        yield from _missing_rows(expected, tables)
    elif scenario.calls:
        yield from _differences(_reference(pool, start, scenario), tables)
    said = [_plain(node.content.text) for node in path if node.kind is NodeKind.ANSWER]
    yield from (f"no answer contains {text!r}" for text in texts if not any(_plain(text) in each for each in said))


def _texts(scenario: Scenario) -> list[str]:
    outputs = scenario.extra.get("outputs")
    if isinstance(outputs, list) and outputs:
        return [str(each) for each in outputs]
    return [scenario.answer] if scenario.answer else []


def _plain(text: str) -> str:
    """Return a text without case and without the commas of numbers."""
    return text.casefold().replace(",", "")


def _tables(pool: ToolPool, start: bytes, path: Sequence[Node]) -> Tables:
    """Return the rows after a trajectory from a starting state."""
    replay, num_calls = Replay(pool, start), 0
    for node in path:
        problem = replay.run(node, num_calls)
        if problem is not None:
            raise _NotCheckableError(f"the item does not replay: {problem}")
        num_calls += len(node.content.calls)
    return replay.tables(path[-1].id if path else 0)


def _reference(pool: ToolPool, start: bytes, scenario: Scenario) -> Tables:
    """Return the rows after the reference calls of a scenario."""
    replay = Replay(pool, start)
    content = Content(kind=NodeKind.STEP, calls=scenario.calls)
    replay.run(Node(id=1, parent=0, content=content, results=({},) * len(scenario.calls), state="", num_calls=0), 0)
    for call, result in zip(scenario.calls, replay.results[1], strict=True):
        if result["problem"] not in ("", Problem.REFUSED, Problem.MUTATED_ARGUMENTS):  # a refusal may be what is right
            raise _NotCheckableError(f"the reference call {call.name} fails: {result['text']:.200}")
    return replay.tables(1)


def _missing_rows(expected: Sequence[Mapping[str, Any]], tables: Tables) -> Iterator[str]:
    for each in expected:
        if each["table"] not in tables:
            raise _NotCheckableError(f"'expect' names the table {each['table']!r:.100}, which the project does not have")
        found = any(_has(row, each["values"]) for row in tables[each["table"]])
        if found != (each["has"] == "row"):
            wanted = "no row" if each["has"] == "row" else "a row"
            yield f"{each['table']} has {wanted} with {json.dumps(each['values'], ensure_ascii=False):.300}"


def _has(row: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return True if a row has all the values; texts are equal without case and outer spaces."""
    fields = _fields(row)
    return all(name in fields and _comparable(fields[name]) == _comparable(value) for name, value in values.items())


def _fields(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of a row. Imported tasks keep theirs as JSON in the column `data` (`task_copies`)."""
    if row.keys() != {"id", "data"}:
        return row
    try:
        data = json.loads(row["data"])
    except (TypeError, ValueError):
        return row
    return {**row, **data} if isinstance(data, dict) else row


def _comparable(value: Any) -> Any:
    return value.strip().casefold() if isinstance(value, str) else value


def _differences(wanted: Tables, found: Tables) -> Iterator[str]:
    """Yield how the rows of tables differ; their order does not count."""
    for table in sorted(wanted.keys() | found.keys()):
        rows = [
            Counter(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in tables.get(table, ()))
            for tables in (wanted, found)
        ]
        missing, unexpected = rows[0] - rows[1], rows[1] - rows[0]
        if missing:
            yield f"{table}: the row {next(iter(missing)):.300} of the reference calls is missing"
        if unexpected:
            yield f"{table}: the row {next(iter(unexpected)):.300} is not there after the reference calls"
