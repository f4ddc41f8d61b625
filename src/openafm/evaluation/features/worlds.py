"""Tool use in a stateful environment: scenarios on a phone, with milestones.

A run is judged by replaying its calls: milestones are states or
calls that must occur in their order, and forbidden ones must never occur.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from openafm.evaluation.features.base import FeatureConfig
from openafm.evaluation.features.phone import TOOLS, Phone
from openafm.evaluation.features.texts import own_set
from openafm.evaluation.guesses import guess
from openafm.evaluation.harness.task import Item, Output, Prompt, Verdict

_WORD = re.compile(r"\w+")
INSTRUCTIONS = "You control a phone with tools. Do what the user asks with as few calls as needed, then say what you did."


@dataclass(frozen=True, kw_only=True)
class ToolWorldConfig(FeatureConfig):
    """Scenarios on a phone with tools, of `sets/scenarios.jsonl`.

    `success`: all milestones are reached in order and nothing forbidden happens; `milestones`: the share of those reached.
    """

    METRIC: ClassVar[str] = "success"

    max_tokens: int = 256

    def items(self, data: Path) -> Iterator[Item]:
        for row in own_set("scenarios.jsonl"):
            yield Item(
                id=row["id"],
                prompt=Prompt(
                    text=row["prompt"],
                    instructions=f"{INSTRUCTIONS} It is {row['now']}.",
                    tools=TOOLS,
                    world=row["state"],
                    max_tokens=self.max_tokens,
                ),
                reference=row,
                language=row["language"],
                group=row["kind"],
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        row = item.reference
        reached, broken = replay(row["state"], output.calls, row["milestones"], row.get("forbidden", []))
        share = reached / len(row["milestones"])
        scores = {"success": float(share == 1 and not broken), "milestones": 0.0 if broken else share}
        calls = "\n".join(f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in output.calls)
        return Verdict(
            scores=scores,
            extraction=calls or "no call",
            expected=json.dumps(row["milestones"], ensure_ascii=False),
            notes={"forbidden": broken} if broken else {},
        )

    def constant(self, item: Item) -> Output:
        return Output(text="Done.")

    def pattern(self, item: Item) -> Output:
        """Call the tool whose name shares most words with the request, with arguments from its words and numbers."""
        asked = set(_WORD.findall(item.prompt.text.casefold()))
        tool = max(item.prompt.tools, key=lambda each: len(asked & set(each["name"].split("_"))))
        return Output(calls=({"name": tool["name"], "arguments": guess(dict(tool["parameters"]), item.prompt.text)},))


def replay(
    state: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]],
    milestones: Sequence[Mapping[str, Any]],
    forbidden: Sequence[Mapping[str, Any]],
) -> tuple[int, list[Mapping[str, Any]]]:
    """Return how many milestones are reached in their order, and the forbidden conditions that held at some time."""
    phone, reached = Phone(state), 0
    broken = [each for each in forbidden if _holds(each, phone.state, None)]
    steps: list[Mapping[str, Any] | None] = [None, *calls]
    for call in steps:
        if call is not None:
            phone.call(call["name"], call["arguments"])
        while reached < len(milestones) and _holds(milestones[reached], phone.state, call):
            reached += 1
        broken += [each for each in forbidden if each not in broken and _holds(each, phone.state, call)]
    return reached, broken


def _holds(condition: Mapping[str, Any], state: Mapping[str, Any], call: Mapping[str, Any] | None) -> bool:
    """Check `{"tool": ..., "arguments": {...}}` against a call, or `{"state": part, "has" | "lacks" | "is": ...}`."""
    if "tool" in condition:
        given = condition.get("arguments", {})
        return call is not None and call["name"] == condition["tool"] and _matches(given, call["arguments"])
    part = state[condition["state"]]
    checks: Mapping[str, Callable[[Any], bool]] = {
        "is": lambda wanted: bool(part == wanted),
        "has": lambda wanted: any(_matches(wanted, each) for each in part),
        "lacks": lambda wanted: not any(_matches(wanted, each) for each in part),
        "matches": lambda wanted: _matches(wanted, part),
    }
    return all(check(condition[name]) for name, check in checks.items() if name in condition)


def _matches(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether all wanted values are given; a text must be contained, in any case."""
    for name, value in wanted.items():
        found = given.get(name)
        if isinstance(value, str) and isinstance(found, str):
            if value.casefold() not in found.casefold():
                return False
        elif found != value:
            return False
    return True
