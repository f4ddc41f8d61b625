"""Trajectories: sampled answers with what the policy updater needs to train on them.

Shape suffixes: N tokens of the answer, the stop token included; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from openafm.rl.prompts import RLPrompt
from openafm.tokenizer.conversation import AssistantTurn, ToolTurn
from openafm.tokenizer.template import ImageSpan

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What rewards see of a trajectory.

    Attributes:
        turns: what the policy answered and, with tools, what the environment returned; the last turn is the final answer.
        text: the text of the final answer.
        finish_reason: "length" if the token limit or the context window truncated the answer.
        num_tokens: tokens that the policy generated.
        state: what the environment was left in, JSON values; empty without an environment.
    """

    prompt: RLPrompt
    turns: tuple[AssistantTurn | ToolTurn, ...]
    text: str
    finish_reason: FinishReason
    num_tokens: int
    state: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The reward of a sample.

    Attributes:
        reward: the sum that training uses; finite.
        terms: the parts of the sum by name, before their weights, for metrics.
        error: why the sample has no reward; such samples leave their group. Empty if it was scored.
    """

    reward: float
    terms: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A sample with its tokens.

    Attributes:
        group: identifies the samples of one draw of a prompt; their rewards are compared with each other.
        index: number of the sample in its group.
        prompt_tokens: tokens before the answer.
        tokens_N: tokens after the prompt. With tools, those of the environment are among them.
        loss_mask_N: True for tokens that the policy chose.
        log_probs_N: natural log of each token's probability when it was sampled, under the sampling transform.
        versions_N: version of the weights that chose each token.
        reference_log_probs_N: the same under the reference policy; None if the run has no reference.
        images: positions of the images of the prompt among `prompt_tokens`.
        support_NV: bit mask [N, V/8] of the tokens that the grammar allowed, least significant bit first; None without a
            grammar.
    """

    sample: Sample
    score: Score
    group: int
    index: int
    prompt_tokens: tuple[int, ...]
    tokens_N: npt.NDArray[np.int32]
    loss_mask_N: npt.NDArray[np.bool_]
    log_probs_N: npt.NDArray[np.float32]
    versions_N: npt.NDArray[np.int32]
    reference_log_probs_N: npt.NDArray[np.float32] | None = None
    support_NV: npt.NDArray[np.uint8] | None = None
    images: tuple[ImageSpan, ...] = ()

    @property
    def kl(self) -> float:
        """Return the sum over the policy's tokens of log pi_old - log pi_reference; 0 without a reference."""
        if self.reference_log_probs_N is None:
            return 0.0
        return float((self.log_probs_N - self.reference_log_probs_N)[self.loss_mask_N].sum(dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Group:
    """All samples of one draw of a prompt.

    Attributes:
        number: draws are numbered from 0; an optimizer step trains on consecutive numbers.
        trajectories: empty if no sample could be generated.
        error: why there are none.
        tokenizer: digest of the tokenizer whose ids the trajectories hold.
    """

    number: int
    trajectories: tuple[Trajectory, ...]
    tokenizer: str
    error: str = ""
