"""Exports: main stems for fine-tuning, sibling branches as preferences, whole trees as JSON.

An item is exported to fine-tuning and preferences if it is done and its main stem replays: in a fresh environment every call
gives the recorded result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openafm.annotation.environments.pool import ToolPool
from openafm.annotation.environments.project import Project, ProjectError, Scenario
from openafm.annotation.errors import writing_to
from openafm.annotation.trees.document import tree_document
from openafm.annotation.trees.nodes import Node, NodeKind
from openafm.annotation.trees.replay import replay_path
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tree import Tree, fold
from openafm.core.files import atomic_file
from openafm.tokenizer.conversation import Conversation

TASK = "tool_use"


@dataclass(kw_only=True)
class ExportReport:
    """What an export wrote, and why items were left out."""

    lines: int = 0
    skipped: list[dict[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"lines": self.lines, "skipped": self.skipped}


def export(store: TreeStore, project: Project, pool: ToolPool, to: str, path: Path) -> ExportReport:
    """Write all items to a JSONL file.

    Args:
        to: `sft`, `preferences` or `tree`.
    """
    report = ExportReport()
    with writing_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, "w") as file:
        for item in store.items():
            events = store.events(item["id"])
            tree = fold(events)
            if to == "tree":
                lines: list[dict[str, Any]] = [tree_document(item["id"], tree, events)]
            elif reason := _not_exported(tree, project, pool):
                report.skipped.append({"item": item["id"], "reason": reason})
                continue
            else:
                lines = [sft_line(item["id"], tree)] if to == "sft" else list(preference_lines(tree))
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            report.lines += len(lines)
    return report


def sft_line(item: str, tree: Tree) -> dict[str, Any]:
    """Return the main stem as chat JSONL (`tokenizer.conversation`)."""
    scenario = tree.opening["scenario"]
    extra = {"item": item, "scenario": scenario["id"]}
    return Conversation(turns=tree.turns(), task=TASK, language=scenario["language"], extra=extra).to_dict()


def preference_lines(tree: Tree) -> Iterator[dict[str, Any]]:
    """Yield a line of `data/preferences.py` for each abandoned sibling of a step or answer of the main stem.

    Both answers follow the same prompt, in the same state of the database. Attempts that were undone are left out: no person
    judged them. A rejected attempt with a flag has the strength 2, another one 1.
    """
    for chosen in tree.path():
        if chosen.kind is NodeKind.QUERY:
            continue
        seen = [chosen.content]
        for sibling in tree.children(chosen.parent):
            if sibling.kind is NodeKind.QUERY or sibling.content in seen or sibling.id not in tree.reasons:
                continue
            seen.append(sibling.content)
            reason = tree.reasons[sibling.id]
            yield {
                "prompt": Conversation(turns=tree.turns(chosen.parent)).to_dict()["messages"],
                "chosen": _message(chosen),
                "rejected": _message(sibling),
                "strength": 2 if tree.flags.get(sibling.id) else 1,
                "language": tree.opening["scenario"]["language"],
                "reason": {"kind": reason.kind, "text": reason.text, "flags": sorted(tree.flags.get(sibling.id, ()))},
            }


def _message(node: Node) -> dict[str, Any]:
    message: dict[str, Any] = Conversation(turns=node.turns[:1]).to_dict()["messages"][0]
    return message


def _not_exported(tree: Tree, project: Project, pool: ToolPool) -> str | None:
    """Return why an item is left out; None for one that is exported."""
    if not tree.is_done:
        return "not marked as done"
    path = tree.path()
    if not path or path[-1].kind is not NodeKind.ANSWER:
        return "the main stem does not end with an answer"
    try:
        start = project.start_image(Scenario.from_dict(tree.opening["scenario"]))
    except ProjectError as error:
        return f"its starting state cannot be used: {error}"
    return replay_path(pool, start, path)
