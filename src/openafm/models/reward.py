"""The reward model: a decoder that gives a conversation a number (report 5.2.2).

Shapes: N conversations, G grades, D model dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.models.decoder import Decoder
from openafm.models.layers import Linear
from openafm.models.reward_config import RewardModelConfig

_FIRST_THRESHOLD, _GAP = -1.5, 1.0


def with_reward_head(decoder: Decoder, config: RewardModelConfig, seed: int) -> RewardModel:
    """Return a decoder's weights with a fresh reward head."""
    model = config.build(seed)
    missing, unexpected = model.load_state_dict(decoder.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith(("reward_head.", "cohesion_head.", "raw_thresholds")) for name in missing)
    model.compute_dtype = decoder.compute_dtype
    return model


class RewardModel(Decoder):
    """A decoder with a scalar head, read at the last token of a conversation.

    The grade of an answer is an ordered logit of its reward r: P(grade > k) = sigmoid(r - threshold k), with learned
    thresholds in ascending order. So absolute grades fix the origin and the scale of rewards over all prompts.
    """

    config: RewardModelConfig

    def __init__(self, config: RewardModelConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.reward_head = Linear(config.dim, 1)
        self.cohesion_head = Linear(config.dim, 2) if config.has_cohesion else None
        self.raw_thresholds = nn.Parameter(torch.empty(config.num_grades - 1))
        if not self.raw_thresholds.is_meta:
            generator = torch.Generator(device=self.device).manual_seed(seed + 1)
            self.reward_head.initialize(generator)
            if self.cohesion_head is not None:
                self.cohesion_head.initialize(generator)
            # softplus(log(exp(gap) - 1)) = gap
            nn.init.constant_(self.raw_thresholds, float(torch.tensor(_GAP).expm1().log()))
            with torch.no_grad():
                self.raw_thresholds[0] = _FIRST_THRESHOLD

    def rewards(self, last_ND: Tensor) -> Tensor:
        """Return fp32 rewards [N] from the hidden states of the last tokens."""
        return self.reward_head(last_ND)[:, 0].float()

    def cohesion_logits(self, prompt_ND: Tensor) -> Tensor:
        """Return fp32 logits [N, 2] of ranking and helpfulness cohesion from the states of the prompts' last tokens."""
        if self.cohesion_head is None:
            return torch.zeros(len(prompt_ND), 2, device=prompt_ND.device)
        return self.cohesion_head(prompt_ND).float()

    @property
    def thresholds(self) -> Tensor:
        """The rewards at which the grade rises, [G - 1], ascending."""
        return torch.cat([self.raw_thresholds[:1], F.softplus(self.raw_thresholds[1:])]).cumsum(0)

    def grade_log_probs(self, rewards_N: Tensor) -> Tensor:
        """Return the natural log of the probability of each grade, [N, G]."""
        above_NG = rewards_N[:, None] - self.thresholds
        ones_N1 = torch.ones_like(rewards_N)[:, None]
        probability_above_NG = torch.cat([ones_N1, above_NG.sigmoid(), 0 * ones_N1], dim=1)
        return (probability_above_NG[:, :-1] - probability_above_NG[:, 1:]).clamp(min=1e-7).log()
