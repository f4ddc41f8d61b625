"""The stages of a reproduction: the report from top to bottom, each stage a list of `openafm` commands and no code."""

from __future__ import annotations

from openafm.recipes.reproduction.stages.data import caption_stages, data_stages, model_stages
from openafm.recipes.reproduction.stages.evaluation import evaluation_stages, safety_stages
from openafm.recipes.reproduction.stages.stage import Stage
from openafm.recipes.reproduction.stages.training import post_training_stages, pretraining_stages
from openafm.recipes.reproduction.stages.use import framework_stages, optimization_stages


def report_stages(size: str) -> tuple[Stage, ...]:
    """Return the stages in the order of the report, as far as their needs allow: our model writes captions when it sees."""
    return (
        *model_stages(),
        *data_stages(size),
        *pretraining_stages(size),
        *post_training_stages(size),
        *caption_stages(size),
        *optimization_stages(size),
        *framework_stages(size),
        *evaluation_stages(size),
        *safety_stages(size),
    )
