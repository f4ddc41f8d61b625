"""BFCL v4, multi-turn: conversations with stateful tools, whose state is compared after each message of the user.

The tools are the leaderboard's own classes, read from the user's copy and run in this process, as a plugin is. Rules of its
checker that are kept: all public attributes of all instances must equal those after the reference calls; the outputs of the
reference calls of a message must be among all outputs so far, in any order; a message with reference calls needs a call;
after a message without reference calls nothing is compared. `miss_func`, which adds tools in mid-conversation, is left out.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, TaskDataError, Verdict
from openafm.evaluation.tasks.bfcl import BFCL, json_schema
from openafm.evaluation.tasks.files import Source, found, json_lines

BFCL_CLASSES = Source(
    name="BFCL's classes",
    origin="https://github.com/ShishirPatil/gorilla (berkeley-function-call-leaderboard/bfcl_eval/eval_checker/"
    "multi_turn_eval/func_source_code)",
    license="Apache-2.0",
)
CATEGORIES = ("base", "miss_param", "long_context")
CLASSES: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""The file of each class; that of its functions' descriptions has the same name."""
MAX_ROUNDS = 20  # steps of the leaderboard before it ends a message
_PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"  # that the files import each other from
_OTHER_MODULES = ("long_context",)
_LOADING = threading.Lock()

Call = tuple[str, tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class BFCLMultiTurnConfig(TaskConfig):
    """Conversations of BFCL with stateful tools; needs the folder func_source_code of the leaderboard beside its data."""

    categories: tuple[str, ...] = ("base",)
    max_tokens: int = 512

    def __post_init__(self) -> None:
        unknown = set(self.categories) - set(CATEGORIES)
        self.require(not unknown, f"unknown categories {sorted(unknown)}; known: {', '.join(CATEGORIES)}")

    def items(self, data: Path) -> Iterator[Item]:
        for category in self.categories:
            name = f"BFCL_v4_multi_turn_{category}.json"
            answers = found(BFCL, data, f"bfcl/possible_answer/{name}", f"possible_answer/{name}")
            truth = {row["id"]: row["ground_truth"] for row in json_lines(answers, {"id": str, "ground_truth": list})}
            path = found(BFCL, data, f"bfcl/{name}", name)
            columns = {"id": str, "question": list, "initial_config": dict, "involved_classes": list}
            for row in json_lines(path, columns):
                if row["id"] not in truth:
                    raise TaskDataError(f"{path}: no answer for {row['id']} in possible_answer/{name}")
                yield _item(row, truth[row["id"]], category, data, self.max_tokens)

    def judge(self, item: Item, output: Output) -> Verdict:
        wrong = _wrong(item, output)
        return Verdict(
            scores={"accuracy": float(not wrong)},
            extraction="\n".join(
                f"{call.get('turn', 0)}: {call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})"
                for call in output.calls
            )
            or "no call",
            expected="\n".join(
                f"{number}: {', '.join(calls)}" for number, calls in enumerate(item.reference["calls"]) if calls
            ),
            notes={"wrong": wrong} if wrong else {},
        )


class Classes:
    """Instances of the leaderboard's classes in one state. Calls that fail return an error text.

    Args:
        source: the folder `func_source_code`.
        state: `classes` (names), `config` (initial state by class) and `is_long`.
    """

    def __init__(self, source: Path, state: Mapping[str, Any]) -> None:
        self.instances: dict[str, Any] = {}
        for name in state["classes"]:
            instance = getattr(_module(source, CLASSES[name]), name)()
            if hasattr(instance, "_load_scenario"):
                instance._load_scenario(copy.deepcopy(state["config"].get(name, {})), long_context=state["is_long"])
            self.instances[name] = instance

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self.run((name, (), arguments))

    def run(self, call: Call) -> str:
        """Run one call and return its output as the leaderboard shows it to the model."""
        name, places, arguments = call
        method = None if name.startswith("_") else self._method(name)
        if method is None:
            return f"Error during execution: name '{name}' is not defined"
        try:
            return _shown(method(*places, **arguments))
        except Exception as error:  # the classes raise errors of any kind for wrong arguments
            return f"Error during execution: {error}"

    def differences(self, other: Classes) -> list[str]:
        """Return the names of public attributes that differ."""
        return [
            f"{name}.{attribute}"
            for name, instance in self.instances.items()
            for attribute, value in vars(instance).items()
            if not attribute.startswith("_") and getattr(other.instances[name], attribute) != value
        ]

    def _method(self, name: str) -> Any:
        methods = [getattr(instance, name, None) for instance in self.instances.values()]
        return next((method for method in reversed(methods) if callable(method)), None)


def _shown(result: Any) -> str:
    with contextlib.suppress(TypeError, ValueError):
        if isinstance(result, dict):
            return json.dumps(result)
    return str(result)


def parse_call(text: str) -> Call:
    """Return name and arguments of a reference call such as `mv('a', destination='b')`.

    Raises:
        ValueError: the text is not a call with literals.
    """
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a call: {text}") from error
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"not a call: {text}")
    places = tuple(ast.literal_eval(each) for each in node.args)
    return node.func.id, places, {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}


def _item(row: Mapping[str, Any], calls: Sequence[Sequence[str]], category: str, data: Path, max_tokens: int) -> Item:
    unknown = [name for name in row["involved_classes"] if name not in CLASSES]
    if unknown or len(calls) != len(row["question"]):
        raise TaskDataError(
            f"{row['id']} has the class {unknown[0]}; known: {', '.join(CLASSES)}"
            if unknown
            else f"{row['id']} has {len(row['question'])} messages and {len(calls)} lists of calls; they must be equal"
        )
    source = found(BFCL_CLASSES, data, *_places("func_source_code", f"{CLASSES[row['involved_classes'][0]]}.py")).parent
    docs = [found(BFCL, data, *_places("multi_turn_func_doc", f"{CLASSES[name]}.json")) for name in row["involved_classes"]]
    functions = [
        function
        for path in docs
        for function in json_lines(path, {"name": str, "description": str, "parameters": dict})
        if function["name"] not in row.get("excluded_function", ())
    ]
    messages = ["\n".join(str(message["content"]) for message in turn) for turn in row["question"]]
    state = {"classes": row["involved_classes"], "config": row["initial_config"], "is_long": category == "long_context"}
    prompt = Prompt(
        text=messages[0],
        turns=tuple(messages[1:]),
        tools=tuple(
            {"name": each["name"], "description": each["description"], "parameters": json_schema(each["parameters"])}
            for each in functions
        ),
        world=state,
        open_world=partial(Classes, source),
        rounds=MAX_ROUNDS,
        max_tokens=max_tokens,
    )
    return Item(id=row["id"], prompt=prompt, reference={"calls": calls, "source": str(source)}, group=category)


def _places(folder: str, name: str) -> tuple[str, str]:
    return f"bfcl/{folder}/{name}", f"{folder}/{name}"


def _wrong(item: Item, output: Output) -> str:
    """Return why the calls of a conversation are wrong; empty if they are right."""
    assert item.prompt.world is not None
    source = Path(item.reference["source"])
    model, reference = Classes(source, item.prompt.world), Classes(source, item.prompt.world)
    outputs: list[str] = []
    for number, wanted in enumerate(item.reference["calls"]):
        calls = [call for call in output.calls if call.get("turn", 0) == number]
        outputs += [model.call(str(call["name"]), call["arguments"]) for call in calls]
        expected = [reference.run(parse_call(text)) for text in wanted]
        if not wanted:
            continue
        if not calls:
            return f"message {number}: no call"
        if differing := reference.differences(model):
            return f"message {number}: the state differs in {', '.join(differing)}"
        left = list(outputs)
        for text in expected:
            if text not in left:
                return f"message {number}: no call returned {text[:200]!r}"
            left.remove(text)
    return ""


def _module(source: Path, name: str) -> ModuleType:
    """Return a module of the user's copy. The files import `long_context` by the name of the leaderboard's package.

    Raises:
        TaskDataError: the file is missing, or its imports are.
    """
    with _LOADING:
        for number in range(1, _PACKAGE.count(".") + 2):
            package = ".".join(_PACKAGE.split(".")[:number])
            sys.modules.setdefault(package, ModuleType(package))
        for other in _OTHER_MODULES:
            if f"{_PACKAGE}.{other}" not in sys.modules and (source / f"{other}.py").exists():
                _loaded(source, other)
        return _loaded(source, name)


@cache
def _loaded(source: Path, name: str) -> ModuleType:
    full, path = f"{_PACKAGE}.{name}", source / f"{name}.py"
    spec = importlib.util.spec_from_file_location(full, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    try:
        spec.loader.exec_module(module)
    except (OSError, ImportError, SyntaxError) as error:
        del sys.modules[full]
        raise TaskDataError(f"{path} cannot be imported: {error}; get it from {BFCL_CLASSES.origin}") from error
    return module
