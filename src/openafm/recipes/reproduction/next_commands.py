"""Commands to try with what a reproduction has made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from openafm.recipes.reproduction.results import StageResult, StageState
from openafm.recipes.reproduction.sizes import bundle_of

_MOST = 3
_COMMANDS = (
    ("framework", 'respond "Lunch with Ben at noon" --model {compressed} --schema {run}/framework/event.json'),
    ("two_bits", "inspect {compressed}"),
    ("images", "data report {run}/images/drawn"),
    ("rlhf", "rl report {run}/rlhf/run"),
    ("pretraining", "list"),
)
"""Commands by the stage that makes what they use."""


def next_commands(run: Path, size: str, results: Sequence[StageResult]) -> list[str]:
    """Return up to three command lines that use the outputs of finished stages."""
    done = {result.name for result in results if result.state in (StageState.DONE, StageState.KEPT)}
    places = {"run": shlex.quote(str(run.resolve())), "compressed": bundle_of("on_device.qat", size)}
    home = shlex.quote(str(run.resolve() / "home"))
    found = (words for stage, words in _COMMANDS if stage in done)
    return [f"OPENAFM_HOME={home} openafm {words.format(**places)}" for words in found][:_MOST]
