"""Instructions read from the lines of IFEval's data, and responses that follow them strictly or loosely."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any

from openafm.core.config import ConfigError, from_dict, nearest
from openafm.evaluation.instructions import content, form, length, style
from openafm.evaluation.instructions.base import InstructionConfig, InstructionError


def read_instructions(values: Mapping[str, Any]) -> tuple[InstructionConfig, ...]:
    """Return the instructions of a line with the keys `instruction_id_list` and `kwargs`, a list of objects.

    Arguments that are null are left out, as in IFEval's data.

    Raises:
        InstructionError: a key is missing, an instruction is unknown, or its arguments are wrong.
    """
    ids, arguments = values.get("instruction_id_list"), values.get("kwargs")
    if not isinstance(ids, list) or not isinstance(arguments, list) or len(ids) != len(arguments):
        raise InstructionError("expected lists of equal length under 'instruction_id_list' and 'kwargs'")
    return tuple(_instruction(name, given) for name, given in zip(ids, arguments, strict=True))


def follows_all(instructions: Sequence[InstructionConfig], response: str) -> list[bool]:
    """Return for each instruction whether a response follows it. An empty response follows none."""
    return [bool(response.strip()) and instruction.follows(response) for instruction in instructions]


def follows_loosely(instructions: Sequence[InstructionConfig], response: str) -> list[bool]:
    """Return for each instruction whether a variant of a response follows it.

    Variants lack the first line, the last line, asterisks, or several of these: chat models add introductions and Markdown.
    """
    variants = [
        _variant(response, kinds) for size in range(4) for kinds in combinations(("first", "last", "asterisks"), size)
    ]
    found = [follows_all(instructions, variant) for variant in variants]
    return [any(column) for column in zip(*found, strict=True)]


@cache
def instruction_ids() -> Mapping[str, type[InstructionConfig]]:
    """Return the built-in kinds of instructions by IFEval's names."""
    members = [
        member for module in (content, length, form, style) for _, member in inspect.getmembers(module, inspect.isclass)
    ]
    return {each.ID: each for each in members if issubclass(each, InstructionConfig) and not inspect.isabstract(each)}


def _instruction(name: Any, arguments: Any) -> InstructionConfig:
    known = instruction_ids()
    if name not in known:
        raise InstructionError(f"unknown instruction {name!r}{nearest(str(name), list(known))}")
    if not isinstance(arguments, Mapping):
        raise InstructionError(f"{name}: expected an object of arguments, got {arguments!r}")
    given = {key: value for key, value in arguments.items() if value is not None}
    whole = {key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in given.items()}
    try:
        return from_dict(known[name], whole)
    except ConfigError as error:
        raise InstructionError(f"{name}: {error}") from error


def _variant(response: str, kinds: Sequence[str]) -> str:
    lines = response.split("\n")
    lines = lines[1 if "first" in kinds else 0 : len(lines) - 1 if "last" in kinds else len(lines)]
    text = "\n".join(lines).strip()
    return text.replace("*", "") if "asterisks" in kinds else text
