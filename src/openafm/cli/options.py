"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from openafm.core.errors import UsageError
from openafm.core.registry import load_plugins


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """The arguments of this command, and the function that runs a command line; worker processes repeat it."""

    arguments: tuple[str, ...]
    run: Callable[[Sequence[str]], int]


def _load(plugins: list[str] | None) -> list[str]:
    load_plugins(plugins or ())
    return plugins or []


PluginsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugins",
        metavar="MODULE",
        help="Import a module or ./file.py that defines kinds (layers, objectives, corpora, ...). May be repeated.",
        callback=_load,
        is_eager=True,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of the config by its key, as in trainer.log_every=5. May be repeated.",
    ),
]


def parse_changes(changes: list[str] | None) -> dict[str, str]:
    """Return the values of --set by dotted key.

    Raises:
        UsageError: a change is not KEY=VALUE.
    """
    parsed = {}
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set {change} is not KEY=VALUE, such as trainer.optimizer.learning_rate=3e-4")
        parsed[key] = value
    return parsed
