"""Write a bundle from the newest checkpoint of a run, however many processes wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openafm.recipes.run import check_name, read_run, write_trained


@dataclass(frozen=True, kw_only=True)
class Consolidated:
    """The written bundle, and the step of the run that its weights are from."""

    bundle: str
    signature: str
    checkpoint: str
    step: int
    num_steps: int


def consolidate_run(folder: Path, name: str) -> Consolidated:
    """Write the bundle `name` from the newest undamaged checkpoint of the run in `folder`. The run may be in progress.

    Raises:
        NoRunError: the folder holds no run of a recipe.
        CheckpointError: the run has no undamaged checkpoint.
        StartBundleError: the run starts from the bundle `name`.
    """
    from openafm.training.run import last_checkpoint, trained_model, training_result

    config = read_run(folder)
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
