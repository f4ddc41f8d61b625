"""Runs of a policy of some ten thousand parameters that is rewarded for letters."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tiny_bundles import write_tiny_bundle

from openafm.bundle import open_bundle
from openafm.rl.config import RLConfig, replay_data
from openafm.rl.prompt_sources import PromptFileConfig
from openafm.rl.rewards.base import Reward, RewardConfig
from openafm.rl.trajectories import Sample, Score
from openafm.training.budgets import StepBudget
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.objectives.policy_config import RLOOConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupCosine


@dataclass(frozen=True, kw_only=True)
class LetterShareConfig(RewardConfig):
    """The share of characters that are letters. The first call that sees the file `trap` removes it and hangs,
    or ends its process."""

    seconds: float = 0.0
    trap: str = ""
    dies: bool = False

    def build(self) -> Reward:
        def score(samples: Sequence[Sample]) -> list[Score]:
            if self.trap and Path(self.trap).exists():
                Path(self.trap).unlink()
                if self.dies:
                    os._exit(9)
                time.sleep(600)
            time.sleep(self.seconds)
            shares = [sum(map(str.isalpha, sample.text)) / max(len(sample.text), 1) for sample in samples]
            return [Score(reward=share, terms={"share": share}) for share in shares]

        return score


def write_prompts(path: Path, count: int = 6, **changes: object) -> Path:
    """Write prompts about cats."""
    lines = [
        {"messages": [{"role": "user", "content": f"the cat {number}"}], "kind": "word", "truth": {"answer": "the"}}
        | changes
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def tiny_policy_run(folder: Path, num_steps: int = 3, **changes: object) -> RLConfig:
    """Return a run of two prompts with four samples each; its bundle and prompts are written once into `folder`."""
    bundle, prompts = folder / "bundle", folder / "prompts.jsonl"
    if not bundle.is_dir():
        write_tiny_bundle(bundle)
        write_prompts(prompts)
    config = RLConfig(
        recipe="tiny",
        prompts=PromptFileConfig(path=str(prompts)),
        reward=LetterShareConfig(),
        trainer=TrainerConfig(
            model=open_bundle(bundle).config,
            data=replay_data(8, row_tokens=64),
            budget=StepBudget(num_steps=num_steps),
            objective=RLOOConfig(kl_weight=0.02),
            optimizer=AdamWConfig(learning_rate=3e-3, weight_decay=0.0),
            schedule=WarmupCosine(),
            checkpoint=CheckpointConfig(every_steps=2, every_seconds=None),
            num_threads=1,
            from_bundle=str(bundle),
        ),
        max_tokens=6,
        plugins=("tiny_policies",),
    )
    return replace(config, **changes)  # type: ignore[arg-type]
