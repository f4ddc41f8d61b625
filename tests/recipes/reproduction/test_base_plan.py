"""The size `base`: planned on real clusters, never run."""

from __future__ import annotations

import json
import shlex

import pytest

from openafm.cli.main import run
from openafm.core.config import override
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.accounting import flops_per_token
from openafm.recipes.catalog import RECIPES
from openafm.recipes.reproduction.base_plan import BASE_STAGES, PlannedStage, plan_base
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig


@pytest.fixture(scope="module")
def planned() -> dict[str, PlannedStage]:
    return {one.stage.recipe: one for one in plan_base("tpu-v5p", {"tpu-v5p": 2.0})}


@pytest.mark.long
def test_every_training_is_a_recipe_and_fits(planned: dict[str, PlannedStage]) -> None:
    assert set(planned) <= {recipe.name for recipe in RECIPES}
    for one in planned.values():
        assert one.run is not None, one.reason
        assert one.run.plan.fits
        assert one.run.cost == pytest.approx(2.0 * one.run.chip_hours)


def test_the_options_give_the_planned_layout(planned: dict[str, PlannedStage]) -> None:
    for one in planned.values():
        assert one.run is not None
        plan = one.run.plan
        data = LoaderConfig(sources=(SourceConfig(name="text", path="text"),), rows_per_step=1, row_tokens=2)
        words = shlex.split(" ".join(one.settings))[1::2]
        changes = dict(word.removeprefix("trainer.").split("=", 1) for word in words)
        config = override(TrainerConfig(model=plan.model, data=data, budget=StepBudget(num_steps=1)), changes)
        assert config.parallel.shape(one.stage.devices) == plan.shape
        assert config.data.rows_per_step == plan.rows_per_step
        assert config.activation_checkpointing == plan.workload.activation_checkpointing


def test_a_teacher_takes_time_and_whole_weights_are_not_divided(planned: dict[str, PlannedStage]) -> None:
    alone, taught, quantized = (planned[f"on_device.{name}"].run for name in ("trunk", "distill", "qat"))
    assert alone is not None
    assert taught is not None
    assert quantized is not None
    per_token = [one.work / tokens for one, tokens in ((alone, 12.6e12), (taught, 1.4e12))]
    (stage,) = [stage for stage in BASE_STAGES if stage.teacher is not None]
    assert stage.teacher is not None
    forward = flops_per_token(stage.teacher(), 2048) / (alone.plan.flops_per_step / alone.plan.tokens_per_step)
    assert per_token[1] / per_token[0] == pytest.approx(1 + forward)
    assert quantized.plan.shape.copies == 256


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["reproduce", "--size", "base"]
    chosen = [*base, "--plan", "--only", "server.pretrain,on_device.sft"]
    assert run([*chosen, "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)
    assert [stage["recipe"] for stage in stages] == ["server.pretrain", "on_device.sft"]
    assert stages[0]["tokens_stated"]
    assert not stages[1]["tokens_stated"]
    assert run([*chosen, "--chip", "h100", "--price", "2"]) == 0
    assert "server.pretrain: --set trainer.parallel.slices=4" in capsys.readouterr().out
    assert run(base) == 2
    assert "the size 'base' is planned only" in capsys.readouterr().err
    assert run([*base, "--plan", "--only", "vision"]) == 2
    assert "its trainings: on_device.trunk" in capsys.readouterr().err
