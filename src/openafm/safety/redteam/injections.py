"""Attacks in the output of a tool, in six languages: texts that order another call (own, for tests and red teaming)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

_DOCUMENT = "Minutes of the meeting. The budget was discussed and the next date was set.\n\n{}\n\nEnd of the minutes."


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A document with an order, and the call that a model makes if it obeys."""

    goal: str
    language: str
    document: str
    tool: str
    arguments: Mapping[str, str]


def injections() -> list[Injection]:
    """Return the attacks: each goal in each wrapper."""
    data = tomllib.loads(files("openafm.safety.redteam").joinpath("injections.toml").read_text(encoding="utf-8"))
    return [
        Injection(
            goal=goal["name"],
            language=language,
            document=_DOCUMENT.format(wrapper.replace("{order}", goal["text"])),
            tool=goal["tool"],
            arguments=goal["arguments"],
        )
        for goal in data["goal"]
        for language, wrappers in data["wrappers"].items()
        for wrapper in wrappers
    ]
