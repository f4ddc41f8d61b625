"""Which changes of its config a run may resume with. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openafm.core.config import Config, to_dict
from openafm.training.budgets import DeadlineBudget
from openafm.training.config import TrainerConfig


def resume_difference(found: TrainerConfig, config: TrainerConfig) -> str | None:
    """Return the first difference that keeps a run with the config `found` from resuming with `config`, or None.

    A run may resume with another number of steps, which `resume_notes` reports.
    """
    moved = [path for key, paths in config.IDENTIFIED.items() if _identity(config, key) is not None for path in paths]
    ignored = (*config.NEUTRAL, *config.ROUNDING, *config.LOCATIONS, *moved, "budget")
    return first_difference(found, config, ignored)


def _identity(config: TrainerConfig, key: str) -> str | None:
    owner, _, name = key.rpartition(".")
    identity: str | None = getattr(getattr(config, owner) if owner else config, name, None)
    return identity


def resume_notes(found: TrainerConfig, config: TrainerConfig, num_steps: int) -> list[str]:
    """Return the consequences of resuming a run of `num_steps` steps with a changed config, one line each."""
    notes = []
    for key in config.ROUNDING:
        before, now = getattr(found, key), getattr(config, key)
        if before != now:
            notes.append(f"{key} was {_brief(before)} and is now {_brief(now)}: results differ by rounding from here on")
    wanted = config.budget.steps(config.data)
    if isinstance(config.budget, DeadlineBudget):
        notes.append(f"the run ends {config.budget.seconds:,.0f} s after its start, less the time of the steps before")
    elif wanted is None:
        if found.budget != config.budget:
            notes.append(f"a time budget sets the number of steps when a run starts: it stays {num_steps:,}")
    elif wanted != num_steps:
        notes.append(
            f"the run had {num_steps:,} steps and now has {wanted:,}: the schedule continues as in a run "
            "of that length, so results differ from such a run from the start"
        )
    return notes


def first_difference(found: Config, expected: Config, ignored: Sequence[str] = ()) -> str | None:
    """Return the first dotted key at which two configs differ, as in `optimizer.eps is 1e-08, not 1e-06`.

    `ignored` are dotted keys to skip, with `*` for every item of a list. Returns None if there is no difference.
    """
    return _first_difference("", "", to_dict(found), to_dict(expected), frozenset(ignored))


def _first_difference(path: str, pattern: str, found: Any, expected: Any, ignored: frozenset[str]) -> str | None:
    if pattern.lstrip(".") in ignored:
        return None
    if isinstance(found, list) and isinstance(expected, list):
        if len(found) != len(expected):
            return f"{path.lstrip('.')} has {len(found)} items, not {len(expected)}"
        found, expected = ({f"[{i}]": item for i, item in enumerate(items)} for items in (found, expected))
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return None if found == expected else f"{path.lstrip('.')} is {_brief(found)}, not {_brief(expected)}"
    for key in found | expected:
        below, below_pattern = (path + key, f"{pattern}.*") if key.startswith("[") else (f"{path}.{key}", f"{pattern}.{key}")
        difference = _first_difference(below, below_pattern, found.get(key, "absent"), expected.get(key, "absent"), ignored)
        if difference is not None:
            return difference
    return None


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
