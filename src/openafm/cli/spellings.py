"""One rule for models and projects on all command lines: an argument and an option mean the same.

`openafm doctor NAME` and `openafm doctor --model NAME` are equal; so are `openafm chat NAME` and `openafm chat -m NAME`, and
`openafm grade report PROJECT` and `--project PROJECT`. A verb declares one form; the other one is rewritten here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Kind:
    """Flags of an option, and the arguments that mean the same: by name, or by name and verb."""

    flags: tuple[str, ...]
    arguments: tuple[str, ...]
    verbs: tuple[str, ...] = ()


# `openafm compress NAME` is its subcommand BUNDLE.
_KINDS = (
    _Kind(("--model", "-m"), ("model",)),
    _Kind(("--model", "-m"), ("name", "bundle"), ("show", "inspect", "use", "export", "BUNDLE", "resign")),
    _Kind(("--project",), ("project",)),
)


def accept_spellings(command: Any) -> None:
    """Make the verbs below a command accept both forms."""
    for child in getattr(command, "commands", {}).values():
        accept_spellings(child)
    if not hasattr(command, "commands"):
        parse = command.parse_args
        command.parse_args = lambda context, args: parse(context, rewritten(command, args))


def rewritten(command: Any, args: Sequence[str]) -> list[str]:
    """Return a verb's arguments in the form that it declares."""
    found = list(args)
    options = {flag: each for each in command.params if each.param_type_name == "option" for flag in each.opts}
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    for kind in _KINDS:
        is_declared = any(flag in options for flag in kind.flags)
        if is_declared and not arguments and found and not found[0].startswith("-"):
            return [next(flag for flag in kind.flags if flag in options), *found]
        is_meant = arguments and arguments[0].name in kind.arguments and (not kind.verbs or command.name in kind.verbs)
        if is_meant and not is_declared:
            found = _as_argument(found, kind.flags)
    return found


def _as_argument(args: list[str], flags: tuple[str, ...]) -> list[str]:
    """Return arguments with the value of an option at the front."""
    for place, argument in enumerate(args):
        if argument == "--":
            break
        name, equals, value = argument.partition("=")
        if argument in flags and place + 1 < len(args):
            return [args[place + 1], *args[:place], *args[place + 2 :]]
        if equals and name in flags:
            return [value, *args[:place], *args[place + 1 :]]
    return args
