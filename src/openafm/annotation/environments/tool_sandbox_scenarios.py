"""Scenarios of a user's copy of ToolSandbox-like tasks as a project. Each scenario names the state that it starts from."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.annotation.environments.project import ProjectError, Scenario, check_new_folder
from openafm.annotation.environments.task_copies import ProjectFiles, Rows, TaskImport, code_digest
from openafm.annotation.environments.tool_sandbox import CODE, MESSAGES, SandboxLibrary, sandbox_tools
from openafm.tokenizer.schema_text import compact_json

_KINDS = {
    "snapshot_similarity": "row",
    "addition_similarity": "row",
    "update_similarity": "row",
    "removal_similarity": "no row",
}
"""Similarities to a table that are expectations of the final state."""
_HELD_BACK = "INSUFFICIENT_INFORMATION"
_TOOLS = '''"""Tools of a copy of ToolSandbox-like tasks, written by `openafm annotate init --tasks`."""

from openafm.annotation.environments.tool_sandbox import sandbox_tools

TOOLS = sandbox_tools({folder!r}, digest={digest!r})
'''


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A scenario of the copy.

    Attributes:
        allowed: the tools that the agent of the copy has; None for all.
        unmapped: kinds of milestones that are not expectations of the final state.
    """

    scenario: Scenario
    system: str
    tables: Mapping[str, Rows]
    allowed: tuple[str, ...] | None
    is_begun: bool
    is_held_back: bool
    has_minefield: bool
    unmapped: tuple[str, ...]


def import_tool_sandbox(folder: Path, project: Path) -> TaskImport:
    """Write a project from the scenarios of a copy. Its initial database is the starting state of most scenarios.

    Raises:
        ProjectError: the copy has no tool or no scenario that can be played, or the project folder has files.
        ToolFileError: the copy cannot be imported.
    """
    folder = folder.resolve()
    check_new_folder(project)
    digest = code_digest(folder, CODE)
    tools = sandbox_tools(str(folder), digest)
    if not tools:
        raise ProjectError(f"{folder / 'tools'} has no function with @register_as_tool that can be a tool of a project")
    library = tools[0].library
    clock = datetime.datetime.now().replace(microsecond=0)  # times in the scenarios are relative to the import
    notes = [f"the tool {name} was left out: it {reason}" for name, reason in sorted(library.left_out.items())]
    tasks = _kept(_tasks(library), set(library.tools), notes)
    if not tasks:
        raise ProjectError(f"{folder / 'scenarios'} has no scenario that can be played; {'; '.join(notes)}")
    states = [state for state, _ in Counter(_state(task) for task in tasks).most_common()]
    first = {state: next(task.tables for task in tasks if _state(task) == state) for state in states}
    names = {state: f"start-{number}" if number > 1 else "" for number, state in enumerate(states, 1)}
    initial = first[states[0]]
    ProjectFiles(
        title=folder.name,
        tools=_TOOLS.format(folder=str(folder), digest=digest),
        policy=tasks[0].system,
        tables=_values(initial),
        scenarios=[dataclasses.replace(task.scenario, start=names[_state(task)]) for task in tasks],
        config=f'clock = "{clock.isoformat()}"\n',
        starts={names[state]: _values(_changed(first[state], initial)) for state in states[1:]},
    ).write(project)
    rows = {name: len(table) for name, table in initial.items()}
    return TaskImport(tools=len(tools), scenarios=len(tasks), rows=rows, notes=(*notes, *_notes(tasks)), starts=len(states))


def _changed(tables: Mapping[str, Rows], initial: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return the tables with other rows, or the same rows in another order."""
    return {name: rows for name, rows in tables.items() if list(rows.items()) != list(initial[name].items())}


def _values(tables: Mapping[str, Rows]) -> dict[str, list[tuple[str, Any]]]:
    return {name: [(id, json.loads(text)) for id, text in rows.items()] for name, rows in tables.items()}


def _tasks(library: SandboxLibrary) -> list[_Task]:
    found = library.scenarios()
    with library.package.active():
        return [_task(name, each, library) for name, each in found.items()]


def _task(name: str, found: Any, library: SandboxLibrary) -> _Task:
    context = found.starting_context
    messages = context.get_database(namespace=library.messages, get_all_history_snapshots=True).to_dicts()
    texts: dict[tuple[str, str], list[str]] = {}
    for each in messages:
        if each.get("visible_to") is None or "AGENT" in map(_name, each["visible_to"]) or _name(each["recipient"]) == "USER":
            texts.setdefault((_name(each["sender"]), _name(each["recipient"])), []).append(each["content"] or "")
    expected, unmapped = _expectations(found.evaluation.milestone_matcher.milestones)
    instruction = (texts.get(("SYSTEM", "USER")) or [""])[-1]
    allowed = context.tool_allow_list
    return _Task(
        scenario=Scenario(
            id=name,
            query=(texts.get(("USER", "AGENT")) or [""])[-1],
            goal="\n".join([*map(_said, expected), "Play the user of this instruction: " + instruction]),
            extra={"expect": expected} if expected else {},
        ),
        system="\n".join(texts.get(("SYSTEM", "AGENT"), [])),
        tables=library.tables(context),
        allowed=None if allowed is None else tuple(allowed),
        is_begun=len(texts.get(("USER", "AGENT"), [])) > 1 or ("AGENT", "EXECUTION_ENVIRONMENT") in texts,
        is_held_back=_HELD_BACK in {_name(each) for each in getattr(found, "categories", ())},
        has_minefield=bool(found.evaluation.minefield_matcher.milestones),
        unmapped=unmapped,
    )


def _expectations(milestones: Iterable[Any]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return rows that the final state has or does not have, and the kinds of constraints that are not such."""
    expected: list[dict[str, Any]] = []
    unmapped: set[str] = set()
    for constraint in (each for milestone in milestones for each in milestone.snapshot_constraints):
        kind = getattr(constraint.snapshot_constraint, "__name__", "tool_trace_dependant_similarity")
        table = _name(constraint.database_namespace)
        if kind not in _KINDS or table == MESSAGES:
            unmapped.add("replies and tool calls" if table == MESSAGES else kind)
            continue
        for row in constraint.target_dataframe.to_dicts():
            expectation = {"table": table.lower(), "has": _KINDS[kind], "values": json.loads(json.dumps(row, default=str))}
            if kind == "snapshot_similarity":  # a later snapshot replaces an earlier one of the same columns
                same = (expectation["table"], "row", row.keys())
                expected = [each for each in expected if (each["table"], each["has"], each["values"].keys()) != same]
            expected.append(expectation)
    return expected, tuple(sorted(unmapped))


def _kept(tasks: list[_Task], tools: set[str], notes: list[str]) -> list[_Task]:
    """Return the tasks that can be played, one for those that differ only in the tools that are offered."""
    by_text: dict[tuple[str, str, str], list[_Task]] = {}
    for task in tasks:
        by_text.setdefault((task.scenario.query, task.scenario.goal, _state(task)), []).append(task)
    single = [min(same, key=lambda task: len(task.allowed or tools)) for same in by_text.values()]
    reasons: Counter[str] = Counter()
    if len(tasks) > len(single):
        reasons["differ from another one only in the tools that are offered or described"] = len(tasks) - len(single)
    kept = []
    for task in single:
        missing = set(task.allowed or ()) - tools - {"end_conversation"}
        if not task.scenario.query:
            reasons["have no message of the user to the agent"] += 1
        elif task.is_begun:
            reasons["begin with several turns"] += 1
        elif task.is_held_back:
            reasons["hold back tools, but a project offers all of them"] += 1
        elif missing:
            reasons["need a tool that was left out"] += 1
        else:
            kept.append(task)
    notes += [f"{count} scenarios were left out: they {reason}" for reason, count in reasons.items()]
    return kept


def _notes(tasks: list[_Task]) -> list[str]:
    notes = ["the simulated user is not run: an annotator plays the user, whose instruction is in the goal of a scenario"]
    notes.append("there are no reference calls; rows that milestones expect at the end are in the goal and in 'expect'")
    unmapped = Counter(kind for task in tasks for kind in task.unmapped)
    notes += [f"{count} scenarios have milestones of {kind}, which are not checked" for kind, count in unmapped.items()]
    if mines := sum(task.has_minefield for task in tasks):
        notes.append(f"{mines} scenarios have minefields, which are not checked")
    if len({task.system for task in tasks}) > 1:
        notes.append("the scenarios have several system messages; the policy is the first")
    return notes


def _state(task: _Task) -> str:
    return compact_json({name: list(rows.values()) for name, rows in task.tables.items()})


def _name(value: Any) -> str:
    """Return the name of a member of an enumeration, which a table may hold as text."""
    return str(getattr(value, "name", value)).rsplit(".", 1)[-1].upper()


def _said(expectation: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} = {compact_json(value)}" for name, value in expectation["values"].items())
    return f"At the end, {expectation['table']} has {'a' if expectation['has'] == 'row' else 'no'} row with {values}."
