"""The economy of training the on-device model (report 4.3): a large teacher upcycled from the dense model, and the dense
model's last tenth again, with what the teacher says.

    on_device.pretrain ---> on_device.upcycle_teacher --+
    on_device.trunk, its first 90 % --------------------+--> on_device.distill
"""

from __future__ import annotations

from dataclasses import replace

from openafm.core.config import ConfigError
from openafm.data.loader import LoaderConfig
from openafm.models.upcycling_config import UpcyclingConfig, upcycled_config
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.on_device import pretrain
from openafm.training.config import AdamWConfig, PlainStart, StepBudget, TrainerConfig
from openafm.training.objectives.config import CachedDistillationConfig
from openafm.training.schedules import Constant, WarmupStableDecay

TRUNK_SHARE = 0.9
TEACHER_SHARE = 1 / 14  # 1T tokens of high quality after 14T
# The 64 experts of the report make 172 M weights of nano, 3 GB with gradients and moments. Of micro they would make 26 M and
# send 32 tokens of a step to each expert, too few to learn from: it gets 8.
NUM_EXPERTS = {"micro": 8, "nano": 64}


@recipe("on_device.trunk", sizes=("micro", "nano"))
def trunk(size: str) -> RunConfig:
    """The first 90 % of on_device.pretrain, to the bit, before its learning rate falls: where on_device.distill starts."""
    run = pretrain(size)
    return replace(run, recipe="on_device.trunk", trainer=first_part(run.trainer, TRUNK_SHARE))


@recipe("on_device.upcycle_teacher", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def upcycle_teacher(size: str) -> RunConfig:
    """A teacher upcycled from the dense model: experts in every second layer, trained for a fourteenth of its tokens."""
    run = pretrain(size)
    upcycling = UpcyclingConfig(num_experts=NUM_EXPERTS[size])
    trainer = replace(
        run.trainer,
        model=upcycled_config(run.trainer.model, upcycling),
        upcycle=upcycling,
        data=_in_order(run.trainer.data, 1),
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
    """The last 10 % of the dense model's tokens, learned from the upcycled teacher's logits and the data together."""
    run = pretrain(size)
    num_steps = _num_steps(run.trainer)
    trainer = replace(
        run.trainer,
        data=_in_order(run.trainer.data, 2),
        budget=StepBudget(num_steps=num_steps - round(TRUNK_SHARE * num_steps)),
        objective=CachedDistillationConfig(),
        schedule=WarmupStableDecay(warmup_fraction=0.1, decay_fraction=1.0),
        start=PlainStart(),
    )
    return replace(run, recipe="on_device.distill", tokenizer=None, trainer=trainer)


def first_part(trainer: TrainerConfig, share: float) -> TrainerConfig:
    """The same run stopped at a share of its steps, where its learning rate has not begun to fall."""
    schedule, num_steps = trainer.schedule, _num_steps(trainer)
    trainer.require(
        isinstance(schedule, WarmupStableDecay) and schedule.decay_fraction <= 1 - share + 1e-9,
        f"the learning rate falls before {share:.0%} of the run: what comes after would be another run",
    )
    num_warmup, num_first = round(schedule.warmup_fraction * num_steps), round(share * num_steps)
    return replace(
        trainer, budget=StepBudget(num_steps=num_first), schedule=Constant(warmup_fraction=num_warmup / num_first)
    )


def _num_steps(trainer: TrainerConfig) -> int:
    if not isinstance(trainer.budget, StepBudget):
        raise ConfigError("shares of a run need a StepBudget")
    return trainer.budget.num_steps


def _in_order(data: LoaderConfig, number: int) -> LoaderConfig:
    """The same data in another order, one for each run: one from a bundle reads from the first row on."""
    return replace(data, seed=data.seed + number)
