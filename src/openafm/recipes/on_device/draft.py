"""Distillation of a draft model for speculative decoding."""

from __future__ import annotations

from dataclasses import replace

from openafm.data.loading.loader import SourceConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.on_device.pretrain import SMALL_OPTIMIZER
from openafm.recipes.on_device.sft import sft
from openafm.recipes.sources.mixtures import COPIES
from openafm.training.budgets import TokenBudget
from openafm.training.config import Float32Config, InductionStart
from openafm.training.objectives.config import DistillationConfig

BUDGETS = {"micro": TokenBudget(num_tokens=500_000), "nano": TokenBudget(num_tokens=5_000_000)}


@recipe("on_device.draft", sizes=("micro", "nano"), starts_from="on_device.recovery_adapter")
def draft(size: str) -> RunConfig:
    """Distill a draft model on the target's fine-tuning data.

    The student starts from fresh weights and has to learn copying too: half of the rows are copies.
    """
    run = sft(size)
    sources = (
        SourceConfig(name="built_in", path="built_in", weight=0.5),
        SourceConfig(name="copies", path="copies", weight=0.5),
    )
    trainer = replace(
        run.trainer,
        model=named_size(f"on_device.{size}_draft"),
        objective=DistillationConfig(),
        data=replace(run.trainer.data, sources=sources),
        budget=BUDGETS[size],
        optimizer=SMALL_OPTIMIZER,
        precision=Float32Config(),
        start=InductionStart(),
    )
    corpora = tuple(corpus for corpus in run.corpora if corpus.name != "copies")
    return replace(run, recipe="on_device.draft", corpora=(*corpora, COPIES), trainer=trainer)
