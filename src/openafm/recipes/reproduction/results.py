"""Outcomes of stages, and their file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from openafm.core.errors import UsageError
from openafm.core.files import OutOfSpaceError, write_json
from openafm.core.regular_files import read_document

RESULTS = "results.json"
_RESERVE, _RESERVED_BYTES = "reserve", 8 << 20


class StageState(StrEnum):
    """What became of a stage."""

    DONE = "done"
    KEPT = "kept"
    """Done by an earlier call."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """A stage that it needs, or an optional part of the installation, is missing."""


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The outcome of a stage.

    Attributes:
        figures: the JSON outputs of its commands by name.
        seconds: wall time of the call that did it.
        cpu_seconds: CPU time of its processes.
        reason: why it failed or was skipped, and what to do.
        notes: what was left out since an optional part of the installation is missing.
        command_seconds: wall time of its commands, by name.
    """

    name: str
    digest: str
    state: StageState
    figures: dict[str, Any]
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reason: str = ""
    notes: tuple[str, ...] = ()
    command_seconds: dict[str, float] = field(default_factory=dict)


def read_results(folder: Path) -> tuple[str, list[StageResult]]:
    """Return the size and the outcomes of the latest call in a folder.

    Raises:
        UsageError: there was none, or its file is damaged.
    """
    path = folder / RESULTS
    if not path.is_file():
        raise UsageError(f"{folder} holds no reproduction; run `openafm reproduce --out {folder}`")
    try:
        stored = json.loads(read_document(path))
        return stored["size"], [result_of(each) for each in stored["results"]]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is damaged; remove it and run `openafm reproduce --out {folder}` again") from error


def result_of(stored: dict[str, Any]) -> StageResult:
    """Return a result from its JSON."""
    return StageResult(**{**stored, "state": StageState(stored["state"]), "notes": tuple(stored.get("notes", ()))})


def reserve_space(folder: Path) -> None:
    """Keep some space of the disk, so that results and page can be written when the disk is full."""
    (folder / _RESERVE).write_bytes(b"\0" * _RESERVED_BYTES)


def release_space(folder: Path) -> None:
    """Give back the space of `reserve_space`, before the page is written."""
    (folder / _RESERVE).unlink(missing_ok=True)


def store_results(folder: Path, size: str, results: Sequence[StageResult]) -> None:
    """Write the outcomes. If the disk is full, the reserved space is used.

    Raises:
        OutOfSpaceError: it does not suffice.
    """
    stored = {"size": size, "results": [asdict(each) for each in results]}
    try:
        write_json(folder / RESULTS, stored)
    except OutOfSpaceError:
        release_space(folder)
        write_json(folder / RESULTS, stored)
