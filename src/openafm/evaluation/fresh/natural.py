"""Requests that people wrote, with intents and slots, as labels and tools: snips, home, clinc, banking, nlupp test parts.

The files are not part of the project: a folder holds one `NAME-test.jsonl.gz` for each set. A line has `text`, `intent` or
`intents`, and `slots` as [name, value] pairs.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

from openafm.core.errors import UsageError
from openafm.evaluation.fresh.cases import Case, label_schema, object_schema
from openafm.tokenizer.conversation import ToolDefinition

LABEL_SETS = ("snips", "home", "clinc150", "banking77", "nlupp")
TOOL_SETS = ("snips", "home")
NUM_LABELS, NUM_TOOLS = 4, 5


def natural_cases(folder: Path, count: int, seed: int = 0, part: Literal["test", "train"] = "test") -> list[Case]:
    """`count` cases of each set and task. Those of `train` are for choices that must not see the test parts.

    Raises:
        UsageError: the folder lacks a set.
    """
    labels = [case for name in LABEL_SETS for case in _label_cases(name, _read(folder, name, part), count, seed)]
    return labels + [case for name in TOOL_SETS for case in _tool_cases(name, _read(folder, name, part), count, seed)]


def words(intent: str) -> str:
    """`AddToPlaylist` and `card_arrival` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", intent).replace("_", " ").lower()


def tool_name(intent: str) -> str:
    """The intent as the name of a tool."""
    return words(intent).replace(" ", "_")


def _label_cases(name: str, rows: list[dict[str, Any]], count: int, seed: int) -> list[Case]:
    rng = random.Random(f"{seed} {name}")
    intents = sorted({intent for row in rows for intent in _intents(row)})
    cases = []
    for row in rng.sample([row for row in rows if _intents(row)], count):
        intent = rng.choice(_intents(row))
        others = rng.sample([other for other in intents if other not in _intents(row)], NUM_LABELS - 1)
        labels = [words(label) for label in (intent, *others)]
        rng.shuffle(labels)
        cases.append(
            Case(
                figure="natural_label",
                language="en",
                prompt=row["text"],
                expected=words(intent),
                instructions="What does the user want?",
                schema=label_schema(labels),
            )
        )
    return cases


def _tool_cases(name: str, rows: list[dict[str, Any]], count: int, seed: int) -> list[Case]:
    rng = random.Random(f"{seed} {name} tools")
    slots: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        slots[row["intent"]].update(slot for slot, _ in row["slots"])
    cases = []
    for row in rng.sample(rows, count):
        chosen = [row["intent"], *rng.sample(sorted(slots.keys() - {row["intent"]}), NUM_TOOLS - 1)]
        rng.shuffle(chosen)
        cases.append(
            Case(
                figure="natural_tool",
                language="en",
                prompt=row["text"],
                expected=[[tool_name(row["intent"]), dict(row["slots"])]],
                tools=tuple(_tool(intent, sorted(slots[intent])) for intent in chosen),
            )
        )
    return cases


def _tool(intent: str, slots: list[str]) -> ToolDefinition:
    parameters = object_schema(tool_name(intent), dict.fromkeys(slots, "string?"))
    return ToolDefinition(name=tool_name(intent), description=f"{words(intent).capitalize()}.", parameters=parameters)


def _intents(row: dict[str, Any]) -> list[str]:
    if "intents" in row:
        return list(row["intents"])
    return [row["intent"]] if row["intent"] else []


def _read(folder: Path, name: str, part: str) -> list[dict[str, Any]]:
    path = folder / f"{name}-{part}.jsonl.gz"
    if not path.is_file():
        raise UsageError(f"{path} does not exist; pass the folder with NAME-{part}.jsonl.gz of {', '.join(LABEL_SETS)}")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
