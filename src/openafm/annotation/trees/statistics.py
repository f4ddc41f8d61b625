"""Statistics of a project's items: corrections, kinds of errors, time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from openafm.annotation.trees.nodes import NodeKind
from openafm.annotation.trees.tree import Event, fold

PAUSE_SECONDS = 300.0
"""A longer gap between two changes is a pause and does not count as work."""


def statistics(logs: Mapping[str, Sequence[Event]]) -> dict[str, Any]:
    """Return the statistics of items by their logs."""
    corrections: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    steps = branches = done = 0
    items = {}
    people: dict[str, Counter[str]] = {}
    for id, events in logs.items():
        tree = fold(events)
        seconds = 0.0
        for before, after in itertools.pairwise(events):
            worked = worked_seconds(before, after)
            seconds += worked
            person = people.setdefault(after.person or "", Counter())
            person["changes"] += 1
            person["seconds"] += round(worked)
        corrections.update(reason.kind for reason in tree.reasons.values())
        errors.update(flag for flags in tree.flags.values() for flag in flags)
        path = tree.path()
        items[id] = {
            "steps": len(path),
            "corrections": len(tree.reasons),
            "seconds": round(seconds, 1),
            "done": tree.is_done,
        }
        steps += sum(node.kind is NodeKind.STEP for node in path)
        branches += len(tree.reasons)
        done += tree.is_done
    return {
        "items": len(logs),
        "done": done,
        "steps_with_calls": steps,
        "abandoned_branches": branches,
        "corrections": dict(corrections),
        "errors": dict(errors),
        "seconds_per_item": round(sum(each["seconds"] for each in items.values()) / len(items), 1) if items else 0.0,
        "people": {person: dict(counts) for person, counts in people.items()},
        "by_item": items,
    }


def worked_seconds(before: Event, after: Event) -> float:
    """Return the time between two changes; 0 for a pause."""
    gap = after.time - before.time
    return gap if 0 <= gap <= PAUSE_SECONDS else 0.0
