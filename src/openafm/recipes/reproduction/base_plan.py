"""The trainings of the report at its own scale, planned and never run: layout, days and chip-hours of each.

Tokens and chips are the report's where it states them. Imports no tensor library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openafm.core.errors import UsageError
from openafm.models.accounting import flops_per_token
from openafm.models.config import DecoderConfig
from openafm.models.initialization.upcycling_config import UpcyclingConfig, upcycled_config
from openafm.models.sizes import named_size
from openafm.training.config import ActivationCheckpointingConfig
from openafm.training.planning.chips import PlanError, named_chip
from openafm.training.planning.plan import Plan, Workload
from openafm.training.planning.search import Axes, make_plan
from openafm.training.planning.study import Assumptions, StudiedRun, studied_run

BASE = "base"
_RECOMPUTATIONS = (None, ActivationCheckpointingConfig(keep_attention=True), ActivationCheckpointingConfig())


class PlannedOnlyError(UsageError):
    """The size `base` was to be run."""

    def __init__(self) -> None:
        super().__init__(
            "the size 'base' is planned only: its trainings take millions of chip-hours and data of trillions of tokens; "
            "add --plan for layouts, days and cost, or run --size micro or nano"
        )


@dataclass(frozen=True, kw_only=True)
class BaseStage:
    """A training of the report.

    Attributes:
        build: returns the config of the model.
        is_stated: the report states the number of tokens; else it is assumed here.
        row_images: assumed, one for every 1,024 tokens.
        divides_weights: False for trainings that need whole weights on each device.
        teacher: returns the config of a model that also computes each token, forward.
    """

    section: str
    recipe: str
    model: str
    build: Callable[[], DecoderConfig]
    tokens: float
    is_stated: bool = True
    row_tokens: int = 4096
    rows_per_step: int
    row_images: int = 0
    devices: int = 2048
    slices: int = 1
    divides_weights: bool = True
    teacher: Callable[[], DecoderConfig] | None = None


def _named(size: str) -> Callable[[], DecoderConfig]:
    return lambda: named_size(size)


def _teacher() -> DecoderConfig:
    return upcycled_config(named_size("on_device.base"), UpcyclingConfig(num_experts=64))


def _stage(section: str, recipe: str, size: str, tokens: float, rows_per_step: int, **values: Any) -> BaseStage:
    """Return a stage; `size` names the model unless `build` is given."""
    found = {"build": _named(size), **values}
    return BaseStage(section=section, recipe=recipe, model=size, tokens=tokens, rows_per_step=rows_per_step, **found)


BASE_STAGES = (
    _stage("4.3", "on_device.trunk", "on_device.base", 12.6e12, 4096),
    _stage("4.3", "on_device.upcycle_teacher", "on_device.base, 64 experts", 1e12, 4096, build=_teacher),
    _stage("4.3", "on_device.distill", "on_device.base", 1.4e12, 4096, teacher=_teacher),
    _stage("4.3", "server.pretrain", "server.full", 13.4e12, 4096, devices=8192, slices=4),
    _stage("4.4", "on_device.text_continued", "on_device.base", 1e12, 4096, is_stated=False),
    _stage("4.4", "server.text_continued", "server.full", 1e12, 4096, is_stated=False, devices=8192, slices=4),
    _stage("4.4", "on_device.multimodal", "on_device.base_multimodal", 1.3e12, 2048, row_tokens=16_384, row_images=16),
    _stage(
        *("4.4", "server.multimodal", "server.full_multimodal", 420e9, 2048),
        row_tokens=8192,
        row_images=8,
        devices=8192,
        slices=4,
    ),
    _stage("4.4", "on_device.long_context", "on_device.base", 100e9, 256, is_stated=False, row_tokens=65_536, devices=256),
    _stage("4.4", "server.long_context", "server.full", 100e9, 256, is_stated=False, row_tokens=65_536),
    _stage("5.1", "on_device.sft", "on_device.base", 10e9, 512, is_stated=False, devices=256),
    _stage("5.1", "server.sft", "server.full", 10e9, 512, is_stated=False, devices=512),
    _stage("6.1", "on_device.qat", "on_device.base", 100e9, 512, is_stated=False, devices=256, divides_weights=False),
)


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """A training with the layout of the shortest step, or the reason why none fits."""

    stage: BaseStage
    run: StudiedRun | None = None
    reason: str = ""

    @property
    def settings(self) -> list[str]:
        """Return the options of `openafm train` for the layout."""
        if self.run is None:
            return []
        plan, recomputing = self.run.plan, self.run.plan.workload.activation_checkpointing
        sizes = {"slices": plan.shape.slices, **plan.shape.axes}
        values: dict[str, Any] = {
            f"parallel.{axis}": size for axis, size in sizes.items() if axis != "replicate" and size > 1
        }
        values |= {"data.rows_per_step": plan.rows_per_step, "data.row_tokens": self.stage.row_tokens}
        values["microbatch_rows"] = plan.microbatch_rows
        values["precision"] = json.dumps({"type": "BFloat16Config"})
        if recomputing is not None:
            values["activation_checkpointing"] = json.dumps({"keep_attention": recomputing.keep_attention})
        settings = [f"trainer.{key}={value}" for key, value in values.items()]
        return [f"--set '{setting}'" if "{" in setting else f"--set {setting}" for setting in settings]

    def to_dict(self) -> dict[str, Any]:
        stage = self.stage
        facts: dict[str, Any] = {
            "section": stage.section,
            "recipe": stage.recipe,
            "model": stage.model,
            "tokens": stage.tokens,
            "tokens_stated": stage.is_stated,
            "row_tokens": stage.row_tokens,
            "devices": stage.devices,
            "slices": stage.slices,
            "settings": self.settings,
        }
        return facts | ({"reason": self.reason} if self.run is None else self.run.to_dict())


def plan_base(chip: str, prices: dict[str, float], stages: tuple[BaseStage, ...] = BASE_STAGES) -> list[PlannedStage]:
    """Return the plans of the trainings on this kind of chip."""
    return [_planned(stage, chip, prices) for stage in stages]


def _planned(stage: BaseStage, chip: str, prices: dict[str, float]) -> PlannedStage:
    """Return the plan with the least recomputation that fits."""
    model, device, reason = stage.build(), named_chip(chip), ""
    axes = Axes() if stage.divides_weights else Axes(context=1, shard=1, expert=1, track=1)
    for recomputing in _RECOMPUTATIONS:
        workload = Workload(
            rows_per_step=stage.rows_per_step,
            row_tokens=stage.row_tokens,
            row_images=stage.row_images,
            activation_checkpointing=recomputing,
        )
        try:
            plan = make_plan(
                model, num_devices=stage.devices, chip=device, workload=workload, axes=axes, slices=stage.slices
            )
        except PlanError as error:
            reason = str(error)
            continue
        assumptions = Assumptions(tokens=stage.tokens * _teacher_factor(stage, plan), prices=prices)
        return PlannedStage(stage=stage, run=studied_run(plan, assumptions))
    return PlannedStage(stage=stage, reason=reason)


def _teacher_factor(stage: BaseStage, plan: Plan) -> float:
    """Return the operations of the training relative to those of the model alone."""
    if stage.teacher is None:
        return 1.0
    forward = flops_per_token(stage.teacher(), stage.row_tokens / 2)
    return 1 + forward * plan.tokens_per_step / plan.flops_per_step
