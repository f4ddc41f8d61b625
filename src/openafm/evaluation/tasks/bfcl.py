"""BFCL v4, single turn: does the model call the right functions with the right arguments, or none if none fits.

The five categories with Python functions. `bfcl_multi_turn` has the conversations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, TaskDataError, Verdict
from openafm.evaluation.tasks.bfcl_checks import wrong_calls
from openafm.evaluation.tasks.files import Source, found, json_lines

BFCL = Source(
    name="BFCL v4",
    origin="https://github.com/ShishirPatil/gorilla (berkeley-function-call-leaderboard/bfcl_eval/data)",
    license="Apache-2.0",
)
CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


@dataclass(frozen=True, kw_only=True)
class BFCLConfig(TaskConfig):
    """The AST categories of BFCL. Groups are categories; the leaderboard's score is the mean of its groups.

    Dots in names become underscores for the model, since endpoints reject them.
    """

    categories: tuple[str, ...] = CATEGORIES
    max_tokens: int = 512

    def __post_init__(self) -> None:
        unknown = set(self.categories) - set(CATEGORIES)
        self.require(not unknown, f"unknown categories {sorted(unknown)}; known: {', '.join(CATEGORIES)}")

    def items(self, data: Path) -> Iterator[Item]:
        for category in self.categories:
            name = f"BFCL_v4_{category}.json"
            answers = {}
            if category != "irrelevance":
                path = found(BFCL, data, f"bfcl/possible_answer/{name}", f"possible_answer/{name}")
                answers = {row["id"]: row["ground_truth"] for row in json_lines(path, {"id": str, "ground_truth": list})}
            path = found(BFCL, data, f"bfcl/{name}", name)
            for row in json_lines(path, {"id": str, "question": list, "function": list}):
                if answers and row["id"] not in answers:
                    raise TaskDataError(f"{path}: no answer for {row['id']} in possible_answer/{name}")
                yield _item(row, answers.get(row["id"], []), category, self.max_tokens)

    def judge(self, item: Item, output: Output) -> Verdict:
        calls = [(str(call["name"]), call["arguments"]) for call in output.calls]
        accepted = item.reference["accepted"]
        wrong = wrong_calls(item.reference["functions"], calls, accepted)
        shown = "; ".join(
            f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls
        )
        return Verdict(
            scores={"accuracy": float(not wrong)},
            extraction=shown or "no call",
            expected=repr(accepted) if accepted else "no call",
            notes={"wrong": wrong} if wrong else {},
        )


def _item(row: Mapping[str, Any], accepted: list[Any], category: str, max_tokens: int) -> Item:
    messages = [message for turn in row["question"] for message in turn]
    system = "\n".join(message["content"] for message in messages if message["role"] == "system")
    asked = "\n".join(message["content"] for message in messages if message["role"] == "user")
    functions = [{**each, "name": _name(each["name"])} for each in row["function"]]
    return Item(
        id=row["id"],
        prompt=Prompt(
            text=asked,
            instructions=system,
            max_tokens=max_tokens,
            tools=tuple(
                {"name": each["name"], "description": each["description"], "parameters": json_schema(each["parameters"])}
                for each in functions
            ),
        ),
        reference={
            "functions": functions,
            "accepted": [{_name(name): values for name, values in each.items()} for each in accepted],
        },
        group=category,
    )


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema for a description in BFCL's dialect: dict, float, tuple and any are its own types."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type":
            if value != "any":
                result["type"] = _TYPES.get(value, value)
        elif key == "properties":
            result["properties"] = {name: json_schema(each) for name, each in value.items()}
        elif key == "items":
            result["items"] = json_schema(value)
        elif key in ("description", "enum", "required"):
            result[key] = value
    if result.get("type") == "array":
        result.setdefault("items", {"type": "string"})
    return result


def _name(name: str) -> str:
    return name.replace(".", "_")
