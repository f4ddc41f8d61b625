"""Policy-gradient objectives as data: how rewards become advantages, and the loss of each. Imports no tensor library.

Shapes: K samples of one prompt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from openafm.training.objectives.config import ObjectiveConfig, RoutingLossConfig

if TYPE_CHECKING:
    from openafm.training.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class PolicyObjectiveConfig(ObjectiveConfig, ABC):
    """Base of the objectives that train a policy on its own samples.

    Batches have the token fields of `policy.py`. A step's loss is the mean over its samples.

    Attributes:
        temperature: of the sampling. The objective computes log-probabilities under the same transform.
        kl_weight: weight of the KL divergence from the reference policy. It is part of the reward: of each sample,
            kl_weight * sum of (log pi_old - log pi_reference) over its tokens is subtracted. 0 needs no reference.
        num_tokens: only the first `num_tokens` rows of the vocabulary count; None for all. A run sets it to the size of the
            tokenizer.
    """

    temperature: float = 1.0
    kl_weight: float = 0.0
    num_tokens: int | None = None
    routing: RoutingLossConfig = field(default_factory=RoutingLossConfig)

    def __post_init__(self) -> None:
        self.require(0 < self.temperature < float("inf"), f"temperature must be positive, got {self.temperature}")
        self.require(self.kl_weight >= 0, f"kl_weight must be at least 0, got {self.kl_weight}")

    @abstractmethod
    def advantages(self, rewards_K: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the advantages of the samples of one prompt; zeros for a single sample."""


@dataclass(frozen=True, kw_only=True)
class RLOOConfig(PolicyObjectiveConfig):
    """REINFORCE leave-one-out (arXiv 2402.14740), the algorithm of report 5.2.

    The baseline of a sample is the mean reward of the other samples of its prompt. Advantages are not divided by their
    standard deviation. The loss of a sample is -advantage * log pi(sample).

    Attributes:
        truncation: the largest importance weight. Tokens that older or rounded weights sampled are weighted by
            min(pi / pi_old, truncation), without gradient; tokens of the present weights by 1. None: all by 1.
    """

    truncation: float | None = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.truncation is None or self.truncation >= 1, f"truncation must be at least 1 or null, got {self.truncation}"
        )

    def advantages(self, rewards_K: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return leave_one_out(rewards_K)

    def build(self) -> Objective:
        from openafm.training.objectives.policy import RLOO

        return RLOO(self)


@dataclass(frozen=True, kw_only=True)
class PPOClipConfig(PolicyObjectiveConfig):
    """The clipped surrogate of PPO (arXiv 1707.06347) per token, without a value function: leave-one-out advantages.

    The ratio of new to old probability counts within [1 - clip_low, 1 + clip_high].
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.clip_low < 1, f"clip_low must lie in (0, 1), got {self.clip_low}")
        self.require(self.clip_high > 0, f"clip_high must be above 0, got {self.clip_high}")

    def advantages(self, rewards_K: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return leave_one_out(rewards_K)

    def build(self) -> Objective:
        from openafm.training.objectives.policy import PPOClip

        return PPOClip(self)


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(PPOClipConfig):
    """Group relative policy optimization (arXiv 2402.03300): advantages in standard deviations, mean loss per token.

    The KL divergence is part of the reward, as in the other objectives.
    """

    def advantages(self, rewards_K: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return (rewards_K - rewards_K.mean()) / (rewards_K.std(ddof=1) + 1e-4) if len(rewards_K) > 1 else np.zeros(1)

    def build(self) -> Objective:
        from openafm.training.objectives.policy import GRPO

        return GRPO(self)


def leave_one_out(rewards_K: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return each reward minus the mean of the others; zeros for a single reward."""
    count = len(rewards_K)
    return (rewards_K - rewards_K.mean()) * (count / (count - 1)) if count > 1 else np.zeros(count)
