"""Reward models (report 5.2.2): of answers, and of prompts for their selection."""

from __future__ import annotations

from dataclasses import replace

from openafm.data.loading.loader import SourceConfig
from openafm.data.pack import HELD_OUT
from openafm.data.synthetic import SyntheticConfig
from openafm.models.reward_config import RewardModelConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.mixtures import one_source
from openafm.recipes.sources.preferences import SimulatedPreferencesCorpusConfig
from openafm.training.budgets import TokenBudget
from openafm.training.config import EvaluationConfig, TrainerConfig
from openafm.training.objectives.preference_config import PreferenceConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay

TASKS = {"event": 0.5, "form": 0.25, "label": 0.25}
LANGUAGES = {"en": 0.8, "de": 0.05, "fr": 0.05, "es": 0.05, "it": 0.05}  # English to others 80:20 (report 5.4)
BUDGETS = {"micro": TokenBudget(num_tokens=500_000), "nano": TokenBudget(num_tokens=6_000_000)}
NUM_EXAMPLES = {"micro": 4_000, "nano": 40_000}
ROW_TOKENS = 1024


@recipe("on_device.reward_model", sizes=("micro", "nano"), starts_from="on_device.sft")
def reward_model(size: str) -> RunConfig:
    """Train a reward model on preferences and absolute grades."""
    corpus = SimulatedPreferencesCorpusConfig(
        name="preferences",
        synthetic=SyntheticConfig(tasks=TASKS, languages=LANGUAGES),
        num_examples=NUM_EXAMPLES[size],
        max_tokens=ROW_TOKENS,
    )
    data = one_source("preferences", rows_per_step=4, row_tokens=ROW_TOKENS)
    held_out = replace(data, sources=(SourceConfig(name="preferences", path=f"preferences/{HELD_OUT}"),))
    return RunConfig(
        recipe="on_device.reward_model",
        corpora=(corpus,),
        tokenizer=None,
        trainer=TrainerConfig(
            model=RewardModelConfig.of(named_size(f"on_device.{size}")),
            data=data,
            objective=PreferenceConfig(),
            budget=BUDGETS[size],
            optimizer=AdamWConfig(learning_rate=5e-4, weight_decay=0.01),
            num_threads=1,
            schedule=WarmupStableDecay(warmup_fraction=0.05, decay_fraction=0.3),
            evaluation=EvaluationConfig(data=held_out, every_steps=200, num_batches=4),
        ),
    )


@recipe("on_device.selection_model", sizes=("micro", "nano"), starts_from="on_device.sft")
def selection_model(size: str) -> RunConfig:
    """Train a reward model with cohesion heads, which selects prompts (openafm rl select-prompts)."""
    run = reward_model(size)
    model = RewardModelConfig.of(named_size(f"on_device.{size}"), has_cohesion=True)
    return replace(run, recipe="on_device.selection_model", trainer=replace(run.trainer, model=model))
