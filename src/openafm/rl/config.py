"""A reinforcement-learning run as one typed config. Imports no tensor library."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Literal

from openafm.core.config import Config, dump, to_tagged_dict
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.rl.environments import corpus as corpus  # their kinds of prompts are read from files
from openafm.rl.environments import texts as texts
from openafm.rl.prompt_sources import PromptSourceConfig
from openafm.rl.rewards import catalog as catalog  # its kinds of rewards are read from files
from openafm.rl.rewards.base import RewardConfig
from openafm.training.config import TrainerConfig
from openafm.training.objectives.policy_config import PolicyObjectiveConfig

CONFIG, SAMPLES = "rl.json", "samples.jsonl"
"""Files of a run: its config, which generators read, and samples of each step."""
MAX_ROWS = 32
"""Samples that a generator decodes together by default."""


def replay_data(samples_per_step: int, row_tokens: int) -> LoaderConfig:
    """Return the data of the trainer of a run: samples from the replay buffer, packed into rows."""
    source = SourceConfig(name="replay_buffer", path="buffer")
    return LoaderConfig(sources=(source,), rows_per_step=samples_per_step, row_tokens=row_tokens)


@dataclass(frozen=True, kw_only=True)
class RLConfig(Config):
    """A run. At lag 0, equal configs give bit-identical weights on one machine for any number of generators.

    Attributes:
        prompts: the prompts of the run.
        reward: scores samples, in the generators.
        trainer: the policy updater. `from_bundle` is the start and the reference; `data` is `replay_data`, whose rows of a
            step are the samples of a step.
        group_size: samples of a prompt.
        max_tokens: most tokens of a sample, those of tools included.
        max_turns: most turns of the policy in a sample, where the prompt has tools.
        lag: by how many optimizer updates the weights that sampled a token may be older than those that train on it. 0 is
            synchronous training.
        swap: where generators load new weights: between the samples of tasks, or also between tokens.
        groups_per_task: prompts that one task of a generator samples together; a divisor of the prompts of a step. At lag 0
            weights depend on it by rounding.
        max_rows: samples that a generator decodes together.
        engine: `fastest` samples with the native engine where it can take new weights of the policy, else with torch; its
            log-probabilities differ from those of the trainer by rounding (about 1e-5). `torch` always samples with torch.
        generator_weights: `full` samples with the policy. `int8` and `int4` round its matrices to groups of 8 or 4 bits on
            the native engine, again at each version, with 8-bit activations, keys and values; the recorded log-probabilities
            are those of the rounded policy, and every token has an importance weight.
        task_seconds: wall time of a task after which its generator counts as hung and is replaced.
        max_attempts: a task that fails as often is dropped, with its prompts.
        samples_logged: samples of each step in the log.
    """

    NEUTRAL: ClassVar[tuple[str, ...]] = (
        "trainer",  # compared by the checkpoint
        "lag",
        "swap",
        "groups_per_task",
        "max_rows",
        "engine",
        "task_seconds",
        "max_attempts",
        "samples_logged",
        "plugins",
    )
    """Keys that a run may be resumed with other values of."""

    recipe: str
    prompts: PromptSourceConfig
    reward: RewardConfig
    trainer: TrainerConfig
    group_size: int = 4
    max_tokens: int = 128
    max_turns: int = 4
    lag: int = 0
    swap: Literal["samples", "tokens"] = "samples"
    groups_per_task: int = 1
    max_rows: int = MAX_ROWS
    engine: Literal["fastest", "torch"] = "fastest"
    generator_weights: Literal["full", "int8", "int4"] = "full"
    task_seconds: float = 600.0
    max_attempts: int = 3
    samples_logged: int = 2
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_turns", "groups_per_task", "max_rows", "max_attempts"):
            self.require(getattr(self, name) > 0, f"{name} must be at least 1, got {getattr(self, name)}")
        self.require(self.group_size > 1, f"group_size must be at least 2, got {self.group_size}")
        self.require(self.lag >= 0, f"lag must be 0 (synchronous) or more optimizer updates, got {self.lag}")
        self.require(self.task_seconds > 0, f"task_seconds must be above 0, got {self.task_seconds}")
        objective = self.trainer.objective
        self.require(
            isinstance(objective, PolicyObjectiveConfig),
            f"trainer.objective must be a policy objective such as RLOOConfig, got {type(objective).__name__}",
        )
        self.require(
            self.generator_weights == "full" or self.engine == "fastest",
            f"generator_weights {self.generator_weights} needs the native engine; use engine fastest, got {self.engine}",
        )
        self.require(
            self.generator_weights == "full" or getattr(objective, "truncation", 1.0) is not None,
            f"generator_weights {self.generator_weights} needs importance weights: set trainer.objective.truncation",
        )
        samples = self.trainer.data.rows_per_step
        self.require(
            samples % self.group_size == 0,
            f"trainer.data.rows_per_step must be a multiple of group_size {self.group_size}, got {samples}",
        )
        self.require(
            self.prompts_per_step % self.groups_per_task == 0,
            f"groups_per_task must divide the {self.prompts_per_step} prompts of a step"
            f" (rows_per_step {samples} / group_size {self.group_size}), got {self.groups_per_task}; set it to a divisor",
        )

    @property
    def objective(self) -> PolicyObjectiveConfig:
        assert isinstance(self.trainer.objective, PolicyObjectiveConfig)
        return self.trainer.objective

    @property
    def prompts_per_step(self) -> int:
        """Return the prompts that one optimizer step trains on."""
        return self.trainer.data.rows_per_step // self.group_size

    @property
    def data_digest(self) -> str:
        """Identify the samples of a run: prompts, rewards and how samples are drawn."""
        parts = [
            dump(self.prompts),
            self.prompts.digest,
            str(to_tagged_dict(self.reward, RewardConfig)),
            f"{self.group_size} {self.max_tokens} {self.max_turns}",
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
