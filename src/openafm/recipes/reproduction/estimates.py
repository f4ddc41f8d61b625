"""How long stages take on this machine: operations of trainings at the calibrated speed, plus what each stage adds.

An estimate is right within a factor of about two. A stage that this folder has finished before counts with its own time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from openafm.core.regular_files import read_document
from openafm.recipes.reproduction.calibration import Calibration
from openafm.recipes.reproduction.sizes import BUDGET, SIZES
from openafm.recipes.reproduction.stages.stage import Command, Stage

REFERENCE_FLOPS = 27e9
"""Speed of the core on which `_OTHER_SECONDS` were measured: micro models, one thread."""
_DEFAULT_SECONDS = (20, 30, 60)
_OTHER_SECONDS: Mapping[str, tuple[int, int, int]] = {
    "models": (4, 4, 4),
    "web": (20, 40, 40),
    "images": (10, 150, 1500),
    "tokenizer": (12, 40, 300),
    "captions": (60, 100, 400),
    "vision": (350, 350, 2400),
    "continued": (140, 180, 2400),
    "fine_tuning": (125, 180, 2400),
    "rlhf": (60, 400, 7200),
    "two_bits": (65, 100, 600),
    "astc": (78, 100, 900),
    "evaluation": (60, 120, 1200),
    "adapter": (55, 120, 1200),
    "annotation": (19, 19, 60),
    "responsible_ai": (230, 230, 260),
    "framework": (3, 3, 5),
    "apple_sdk": (1, 1, 1),
    "taxonomy": (1, 1, 1),
}
"""CPU seconds of a stage at each size beside its training steps: data, evaluation, starts of processes."""
_COST: Mapping[str, float] = {"on_device.distill": 2.0, "on_device.qat": 1.3, "on_device.draft": 4.0, "vision.joint": 4.0}
"""Operations of a training beside those of its model: a teacher's, rounding, a target's, an encoder's."""


def estimated_seconds(stages: Sequence[Stage], size: str, calibration: Calibration, folder: Path) -> dict[str, float]:
    """Return the expected seconds of each stage by name."""
    return {stage.name: _earlier(folder / stage.name) or _estimate(stage, size, calibration) for stage in stages}


def _earlier(folder: Path) -> float | None:
    """Return the time that the stage took in this folder, whatever its commands were."""
    try:
        return float(json.loads(read_document(folder / "done.json"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _estimate(stage: Stage, size: str, calibration: Calibration) -> float:
    other = _OTHER_SECONDS.get(stage.name, _DEFAULT_SECONDS)[SIZES.index(size)]
    speed = calibration.flops_per_second
    return other * REFERENCE_FLOPS / speed + sum(map(training_flops, stage.commands)) / speed


def training_flops(command: Command) -> float:
    """Return the operations of a training's steps; 0 for other commands."""
    from openafm.core.config import override
    from openafm.models.accounting import flops_per_token
    from openafm.recipes.catalog import build_run

    words = command.words
    if words[0] != "train":
        return 0.0
    config = build_run(words[1], words[words.index("--size") + 1])
    changes = (words[number + 1].partition("=") for number, word in enumerate(words) if word == "--set")
    config = override(config, {key: value for key, _, value in changes if key == BUDGET})
    trainer = config.trainer
    num_steps = trainer.budget.steps(trainer.data)
    tokens = (num_steps or 0) * trainer.data.rows_per_step * trainer.data.row_tokens
    return _COST.get(words[1], 1.0) * 3 * flops_per_token(trainer.model, trainer.data.row_tokens / 2) * tokens
