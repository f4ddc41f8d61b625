"""Reinforcement learning of the on-device model, after supervised fine-tuning (report 5.2)."""

from __future__ import annotations

from openafm.data.synthetic import SyntheticConfig
from openafm.data.synthetic.languages import LANGUAGES
from openafm.models.sizes import named_size
from openafm.rl.config import RLConfig, replay_data
from openafm.rl.environments.corpus import CorpusPromptsConfig
from openafm.rl.environments.texts import CopyEditConfig, FormatConfig
from openafm.rl.prompt_sources import PromptMixtureConfig, PromptSourceConfig
from openafm.rl.rewards.base import RewardConfig
from openafm.rl.rewards.exact import ExactMatchConfig
from openafm.rl.rewards.instructions import InstructionsConfig
from openafm.rl.rewards.structured import FieldsConfig, FinalStateConfig
from openafm.rl.rewards.sum import SumConfig, TermConfig
from openafm.training.budgets import StepBudget
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.objectives.policy_config import RLOOConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay

PROMPT_SEED = 1
"""The seed of the prompts from the built-in corpus; the SFT recipes use seed 0."""
MULTILINGUAL_SHARE = 0.2


def rlhf(size: str) -> RLConfig:
    """Train a fine-tuned bundle with RLOO on rewards that rules compute."""
    return {"micro": _micro, "nano": _nano}[size]()


def _micro() -> RLConfig:
    """Only extraction of English events: a policy of this size has no other skill."""
    events = SyntheticConfig(seed=PROMPT_SEED, tasks={"event": 1.0}, languages={"en": 1.0})
    return RLConfig(
        recipe="on_device.rlhf",
        prompts=CorpusPromptsConfig(corpus=events),
        reward=_reward(),
        trainer=_trainer("on_device.micro", samples=32, num_steps=100, learning_rate=2e-4),
        group_size=8,
        max_tokens=96,
        groups_per_task=2,
    )


def _nano() -> RLConfig:
    """Extraction, tool use, formats and copying with edits; English to other languages 80:20."""
    return RLConfig(
        recipe="on_device.rlhf",
        prompts=nano_prompts(),
        reward=_reward(),
        trainer=_trainer("on_device.nano", samples=64, num_steps=300, learning_rate=1e-4),
        group_size=8,
        max_tokens=128,
        groups_per_task=2,
    )


def nano_prompts() -> PromptSourceConfig:
    """Return the mixture of prompts."""
    tasks = {"event": 0.4, "form": 0.3, "label": 0.2, "arithmetic": 0.1}
    english = SyntheticConfig(seed=PROMPT_SEED, tasks=tasks, languages={"en": 1.0})
    others = {language: 1.0 for language in LANGUAGES if language != "en"}
    multilingual = SyntheticConfig(seed=PROMPT_SEED + 1, tasks=tasks, languages=others)
    english_share = 1 - MULTILINGUAL_SHARE
    return PromptMixtureConfig(
        sources=(
            CorpusPromptsConfig(corpus=english),
            CorpusPromptsConfig(corpus=multilingual),
            CopyEditConfig(),
            FormatConfig(),
        ),
        weights=(english_share - 0.2, MULTILINGUAL_SHARE, 0.1, 0.1),
    )


def _reward() -> RewardConfig:
    """Return the rewards by kind of prompt: correct fields, equal text, results of calculations, instructions."""
    return SumConfig(
        terms=(
            TermConfig(reward=FieldsConfig(kinds=("event", "form", "label", "tagging"))),
            TermConfig(reward=ExactMatchConfig(kinds=("copy_edit",), partial=True)),
            TermConfig(reward=FinalStateConfig(kinds=("arithmetic",))),
            TermConfig(reward=InstructionsConfig(kinds=("format",))),
        )
    )


def _trainer(model: str, *, samples: int, num_steps: int, learning_rate: float) -> TrainerConfig:
    return TrainerConfig(
        model=named_size(model),
        data=replay_data(samples, row_tokens=1024),
        budget=StepBudget(num_steps=num_steps),
        objective=RLOOConfig(kl_weight=0.01),
        optimizer=AdamWConfig(learning_rate=learning_rate, weight_decay=0.0),
        schedule=WarmupStableDecay(warmup_fraction=0.05, decay_fraction=0.2),
        checkpoint=CheckpointConfig(every_steps=20, every_seconds=None),
        num_threads=1,
    )
