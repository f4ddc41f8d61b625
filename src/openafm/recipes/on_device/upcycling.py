"""Training with an upcycled teacher (report 4.3): the dense model becomes a mixture of experts, which teaches the last 10 %
of the dense model's training.

    on_device.pretrain ---> on_device.upcycle_teacher --+
    on_device.trunk (the first 90 %) -------------------+--> on_device.distill
"""

from __future__ import annotations

from dataclasses import replace

from openafm.core.config import ConfigError
from openafm.data.loading.loader import LoaderConfig
from openafm.models.initialization.upcycling_config import UpcyclingConfig, upcycled_config
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.on_device.pretrain import pretrain
from openafm.training.budgets import StepBudget
from openafm.training.config import PlainStart, TrainerConfig
from openafm.training.objectives.config import CachedDistillationConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import Constant, WarmupStableDecay

TRUNK_SHARE = 0.9
TEACHER_SHARE = 1 / 14  # the report trains the teacher on 1T tokens after 14T
# nano with the report's 64 experts has 172 M weights: 3 GB with gradients and moments. micro would have 26 M and send 32
# tokens of a step to each expert, too few to learn from, so it gets 8 experts.
NUM_EXPERTS = {"micro": 8, "nano": 64}


@recipe("on_device.trunk", sizes=("micro", "nano"))
def trunk(size: str) -> RunConfig:
    """Run the first 90 % of on_device.pretrain, before its learning rate decays; on_device.distill continues."""
    run = pretrain(size)
    return replace(run, recipe="on_device.trunk", trainer=first_part(run.trainer, TRUNK_SHARE))


@recipe("on_device.upcycle_teacher", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def upcycle_teacher(size: str) -> RunConfig:
    """Upcycle the dense model to experts in every second layer and train it for a fourteenth of its tokens."""
    run = pretrain(size)
    upcycling = UpcyclingConfig(num_experts=NUM_EXPERTS[size])
    trainer = replace(
        run.trainer,
        model=upcycled_config(run.trainer.model, upcycling),
        upcycle=upcycling,
        data=_reordered(run.trainer.data, 1),
        budget=StepBudget(num_steps=round(TEACHER_SHARE * _num_steps(run.trainer))),
        optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0),
        schedule=WarmupStableDecay(warmup_fraction=0.1, decay_fraction=0.5),
        start=PlainStart(),
    )
    return replace(run, recipe="on_device.upcycle_teacher", tokenizer=None, trainer=trainer)


@recipe(
    "on_device.distill",
    sizes=("micro", "nano"),
    starts_from="on_device.trunk",
    taught_by="on_device.upcycle_teacher",
)
def distill(size: str) -> RunConfig:
    """Train on the last 10 % of the dense model's tokens with the upcycled teacher's logits and the data."""
    run = pretrain(size)
    num_steps = _num_steps(run.trainer)
    trainer = replace(
        run.trainer,
        data=_reordered(run.trainer.data, 2),
        budget=StepBudget(num_steps=num_steps - round(TRUNK_SHARE * num_steps)),
        objective=CachedDistillationConfig(),
        schedule=WarmupStableDecay(warmup_fraction=0.1, decay_fraction=1.0),
        start=PlainStart(),
    )
    return replace(run, recipe="on_device.distill", tokenizer=None, trainer=trainer)


def first_part(trainer: TrainerConfig, share: float) -> TrainerConfig:
    """Return a run that ends after `share` of the steps and is bit-identical to the whole run until then.

    Raises:
        ConfigError: the learning rate decays within that share.
    """
    schedule, num_steps = trainer.schedule, _num_steps(trainer)
    trainer.require(
        isinstance(schedule, WarmupStableDecay) and schedule.decay_fraction <= 1 - share + 1e-9,
        f"the learning rate decays before {share:.0%} of the run, so its first part cannot be run alone",
    )
    num_warmup, num_first = round(schedule.warmup_fraction * num_steps), round(share * num_steps)
    return replace(
        trainer, budget=StepBudget(num_steps=num_first), schedule=Constant(warmup_fraction=num_warmup / num_first)
    )


def _num_steps(trainer: TrainerConfig) -> int:
    num_steps = trainer.budget.steps(trainer.data)
    if num_steps is None:
        raise ConfigError("a share of a run needs the number of steps in advance; set trainer.budget to a StepBudget")
    return num_steps


def _reordered(data: LoaderConfig, number: int) -> LoaderConfig:
    """Return the same data in another order: a run from a bundle reads from the first row again."""
    return replace(data, seed=data.seed + number)
