"""Policy-gradient objectives: RLOO, PPO-clip and GRPO.

A branch of the batch is one sample: the answer to the prompt that its document begins with. In a batch without branches a
document is one sample: a prompt and an answer. The loss mask covers the tokens that the policy chose. The token fields of a
batch are aligned with the targets:

    advantages          float32 [B, S], equal for all tokens of a sample
    behavior_log_probs  float32 [B, S], natural log of each target's probability when it was sampled
    is_off_policy       bool [B, S], True where other weights than the present ones sampled the target: older or rounded
    support             uint8 [B, S, V/8], bit mask of the tokens that the grammar allowed; absent if all were allowed

Shapes: B rows, S tokens of a row, N tokens that carry loss, C tokens of a chunk, D model dim, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from openafm.data.loading.batch import Batch
from openafm.models.decoder import Decoder
from openafm.training.objectives.base import Losses, TargetStates, target_states, zero_losses
from openafm.training.objectives.cross_entropy import CHUNK_ELEMENTS
from openafm.training.objectives.policy_config import GRPOConfig, PolicyObjectiveConfig, PPOClipConfig, RLOOConfig

LEAST_CHUNK = 256
"""Tokens of a chunk of logits, whatever the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class PolicyTokens:
    """The tokens of a batch that the policy chose, under the present weights.

    `log_probs_N` has a gradient, the other tensors have none. `entropy_N` is the entropy of the distribution of each choice,
    `sample_N` the number of each token's sample, of `num_samples`.
    """

    log_probs_N: Tensor
    entropy_N: Tensor
    advantages_N: Tensor
    behavior_log_probs_N: Tensor
    is_off_policy_N: Tensor
    sample_N: Tensor
    num_samples: int

    def mean_per_sample(self, values_N: Tensor) -> Tensor:
        """Return the sum over samples of the means over their tokens."""
        counts = torch.bincount(self.sample_N, minlength=self.num_samples).clamp(min=1)
        return (values_N / counts[self.sample_N]).sum()

    def effective_share(self, weights_N: Tensor) -> Tensor:
        """Return the sum over samples of (sum of weights)^2 / (tokens * sum of squared weights)."""
        sums, squares, counts = (
            torch.zeros(self.num_samples, device=weights_N.device).index_add_(0, self.sample_N, each_N)
            for each_N in (weights_N, weights_N.square(), torch.ones_like(weights_N))
        )
        return (sums.square() / (counts * squares).clamp(min=torch.finfo(sums.dtype).tiny)).sum()


class PolicyObjective(ABC):
    """Base of the objectives. `Losses.count` is the number of samples; the parts are means over the tokens of a sample.

    `log_ratio` is the mean of |log pi - log pi_old|; `effective_share` the effective sample size of a sample's importance
    weights as a share of its tokens, 1 if all weights are equal.
    """

    def __init__(self, config: PolicyObjectiveConfig) -> None:
        self._config = config

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        if batch.num_targets == 0:
            return zero_losses(model)
        states = target_states(model, batch, self._config.routing)
        tokens = policy_tokens(states, batch, self._config)
        total = self.loss(tokens) + states.routing.total
        with torch.no_grad():
            difference_N = tokens.behavior_log_probs_N - tokens.log_probs_N
            parts = {
                "entropy": tokens.mean_per_sample(tokens.entropy_N),
                "off_policy_kl": tokens.mean_per_sample(difference_N),
                "log_ratio": tokens.mean_per_sample(difference_N.abs()),
                "effective_share": tokens.effective_share(self.weights(tokens)),
                "off_policy_tokens": tokens.mean_per_sample(tokens.is_off_policy_N.float()),
                "clipped_tokens": tokens.mean_per_sample(self.is_clipped(tokens).float()),
            }
        return Losses(
            total=total,
            count=tokens.num_samples,
            parts=parts | dict(states.routing.parts),
            flops=states.flops,
            expert_tokens=states.routing.tokens_TE,
        )

    @abstractmethod
    def loss(self, tokens: PolicyTokens) -> Tensor:
        """Return the sum of the losses of the samples, a differentiable scalar."""

    @abstractmethod
    def weights(self, tokens: PolicyTokens) -> Tensor:
        """Return the importance weights of the tokens, without gradient [N]."""

    @abstractmethod
    def is_clipped(self, tokens: PolicyTokens) -> Tensor:
        """Return which tokens' weights are at their bound [N]."""


class RLOO(PolicyObjective):
    """-advantage * log pi(sample), with truncated importance weights for stale tokens."""

    def __init__(self, config: RLOOConfig) -> None:
        super().__init__(config)
        self._truncation = config.truncation

    def loss(self, tokens: PolicyTokens) -> Tensor:
        weights_N = self.weights(tokens)
        return -(tokens.advantages_N * weights_N * tokens.log_probs_N).sum()

    def is_clipped(self, tokens: PolicyTokens) -> Tensor:
        return self.weights(tokens) == self._truncation if self._truncation else torch.zeros_like(tokens.is_off_policy_N)

    def weights(self, tokens: PolicyTokens) -> Tensor:
        ones_N = torch.ones_like(tokens.advantages_N)
        if self._truncation is None:
            return ones_N
        ratios_N = (tokens.log_probs_N.detach() - tokens.behavior_log_probs_N).exp().clamp(max=self._truncation)
        return torch.where(tokens.is_off_policy_N, ratios_N, ones_N)


class PPOClip(PolicyObjective):
    """-min(ratio * advantage, clipped ratio * advantage) of every token, summed over a sample."""

    def __init__(self, config: PPOClipConfig) -> None:
        super().__init__(config)
        self._low, self._high = 1 - config.clip_low, 1 + config.clip_high

    def loss(self, tokens: PolicyTokens) -> Tensor:
        return self._token_losses(tokens).sum()

    def weights(self, tokens: PolicyTokens) -> Tensor:
        return self._ratios(tokens).detach().clamp(self._low, self._high)

    def is_clipped(self, tokens: PolicyTokens) -> Tensor:
        ratios_N = self._ratios(tokens)
        is_up_N = tokens.advantages_N > 0
        return torch.where(is_up_N, ratios_N > self._high, ratios_N < self._low) & (tokens.advantages_N != 0)

    def _token_losses(self, tokens: PolicyTokens) -> Tensor:
        ratios_N = self._ratios(tokens)
        clipped_N = ratios_N.clamp(self._low, self._high)
        return -torch.minimum(ratios_N * tokens.advantages_N, clipped_N * tokens.advantages_N)

    def _ratios(self, tokens: PolicyTokens) -> Tensor:
        return (tokens.log_probs_N - tokens.behavior_log_probs_N).exp()


class GRPO(PPOClip):
    """The clipped surrogate as a mean over the tokens of a sample."""

    def __init__(self, config: GRPOConfig) -> None:
        super().__init__(config)

    def loss(self, tokens: PolicyTokens) -> Tensor:
        return tokens.mean_per_sample(self._token_losses(tokens))


def policy_tokens(states: TargetStates, batch: Batch, config: PolicyObjectiveConfig) -> PolicyTokens:
    """Return the tokens of a batch with their log-probabilities under the sampling transform."""
    device = states.x_ND.device
    log_probs_N, entropy_N = target_log_probs(states, _support(batch, states), config.temperature, config.num_tokens)
    sample_BS = np.zeros(batch.tokens_BS.shape, np.int64)
    samples = batch.branches or batch.documents
    for number, span in enumerate(samples):
        sample_BS[span.row, span.start : span.stop] = number

    def field(name: str, dtype: torch.dtype) -> Tensor:
        values = batch.token_fields.get(name)
        if values is None:  # the dummy batch of a rank without rows; its gradients are multiplied by 0
            return torch.zeros(len(log_probs_N), dtype=dtype, device=device)
        return torch.from_numpy(values).flatten()[states.indices_N.cpu()].to(device, dtype)

    return PolicyTokens(
        log_probs_N=log_probs_N,
        entropy_N=entropy_N,
        advantages_N=field("advantages", torch.float32),
        behavior_log_probs_N=field("behavior_log_probs", torch.float32),
        is_off_policy_N=field("is_off_policy", torch.bool),
        sample_N=torch.from_numpy(sample_BS).flatten()[states.indices_N.cpu()].to(device),
        num_samples=len(samples),
    )


@torch.no_grad()
def batch_log_probs(model: Decoder, batch: Batch, config: PolicyObjectiveConfig) -> Tensor:
    """Return the log-probabilities of the targets of a batch under a model [N], such as the reference policy."""
    states = target_states(model, batch, config.routing)
    return target_log_probs(states, _support(batch, states), config.temperature, config.num_tokens)[0]


def target_log_probs(
    states: TargetStates, support_NV: Tensor | None, temperature: float, num_tokens: int | None
) -> tuple[Tensor, Tensor]:
    """Return the targets' natural log-probabilities and the entropies [N] in nats, in fp32.

    Logits are computed in chunks and again in the backward pass, so that no tensor of size [N, V] is stored.
    """
    weight_VD = states.head_weight_VD[:num_tokens]
    chunk = max(LEAST_CHUNK, CHUNK_ELEMENTS // len(weight_VD))
    compute = partial(_chunk_log_probs, temperature=temperature)
    if len(states.x_ND) > chunk:
        compute = partial(checkpoint, compute, use_reentrant=False)
    log_probs, entropies = [], []
    for start in range(0, len(states.x_ND), chunk):
        part = slice(start, start + chunk)
        support_CV = None if support_NV is None else support_NV[part]
        log_probs_C, entropy_C = compute(states.x_ND[part], weight_VD, states.targets_N[part], support_CV)
        log_probs.append(log_probs_C)
        entropies.append(entropy_C)
    return torch.cat(log_probs), torch.cat(entropies)


def _chunk_log_probs(
    x_CD: Tensor, weight_VD: Tensor, targets_C: Tensor, support_CV: Tensor | None, *, temperature: float
) -> tuple[Tensor, Tensor]:
    logits_CV = (x_CD @ weight_VD.to(x_CD.dtype).T).float() / temperature
    if support_CV is not None:
        logits_CV = logits_CV.masked_fill(~_unpacked(support_CV, logits_CV.shape[1]), -torch.inf)
    log_probs_CV = logits_CV.log_softmax(-1)
    with torch.no_grad():
        # Finite logarithms, because 0 * -inf is not a number. They cost less than the logarithms of the probabilities.
        finite_CV = log_probs_CV.clamp(min=torch.finfo(log_probs_CV.dtype).min)
        entropy_C = -(finite_CV.exp() * finite_CV).sum(-1)
    return log_probs_CV.gather(1, targets_C[:, None])[:, 0], entropy_C


def _support(batch: Batch, states: TargetStates) -> Tensor | None:
    support: np.ndarray[Any, Any] | None = batch.token_fields.get("support")
    if support is None:
        return None
    packed = torch.from_numpy(support).flatten(0, 1)[states.indices_N.cpu()]
    return packed.to(states.x_ND.device)


def _unpacked(bits: Tensor, count: int) -> Tensor:
    """Return the first `count` bits of each row, least significant first, as booleans."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[..., None] >> shifts) & 1).flatten(-2)[..., :count].bool()
