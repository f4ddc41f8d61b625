"""A bundle of what a run has saved so far: its newest whole checkpoint, however many processes wrote it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from openafm.core.config import from_dict
from openafm.core.errors import UsageError
from openafm.recipes.config import RunConfig
from openafm.recipes.run import check_name, write_trained


class NoRunError(UsageError):
    """A folder that holds no run of a recipe."""


@dataclass(frozen=True, kw_only=True)
class Consolidated:
    """The bundle made, and at which step of the run its weights are."""

    bundle: str
    signature: str
    checkpoint: str
    step: int
    num_steps: int


def consolidate_run(folder: Path, name: str) -> Consolidated:
    """Write the bundle `name` from the newest whole checkpoint of the run in `folder`, which may go on meanwhile.

    Raises:
        NoRunError: the folder holds no run of a recipe.
        CheckpointError: the run has no whole checkpoint.
        StartBundleError: the run starts from the bundle called `name`.
    """
    from openafm.training.run import last_checkpoint, trained_model, training_result

    record = folder / "run.json"
    if not record.is_file():
        raise NoRunError(f"{folder} holds no run of a recipe: there is no run.json in it; `openafm train` makes one")
    config = from_dict(RunConfig, json.loads(record.read_text(encoding="utf-8")))
    check_name(config, name)
    found = last_checkpoint(folder)
    result = training_result(folder, found.record)
    bundle = write_trained(config, found.config, folder, name, trained_model(found), result)
    return Consolidated(
        bundle=str(bundle.path),
        signature=bundle.signature,
        checkpoint=str(found.path),
        step=result.step,
        num_steps=result.num_steps,
    )
