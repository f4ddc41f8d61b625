"""The loss of reward models: preferences between pairs, absolute grades, and cohesion heads (report 5.2.2).

Shapes: N answers, P pairs, D model dim, G grades.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.accounting import training_flops
from openafm.models.attention.context import PackedDocuments
from openafm.models.attention.spans import Span
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts import observed_routing
from openafm.models.reward import RewardModel
from openafm.training.objectives.base import Losses, zero_losses
from openafm.training.objectives.preference_config import PreferenceConfig
from openafm.training.objectives.routing import routing_losses


class PreferenceBatchError(UsageError):
    """A document of the batch is not a whole line of preferences."""


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """The lines of a batch.

    Attributes:
        conversations: where each answer with its prompt lies in the batch.
        prompt_ends: positions of the flattened batch, one per line.
        answer_ends: positions of the flattened batch, one per answer.
        line_of: the line of each answer.
        grades: the grade of each answer, 0 for none.
        pairs: the indices of the preferred and of the other answer of each pair.
        strengths: the strength of each pair.
    """

    conversations: tuple[Span, ...]
    prompt_ends: tuple[int, ...]
    answer_ends: tuple[int, ...]
    line_of: tuple[int, ...]
    grades: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    strengths: tuple[int, ...]


def comparisons_of(batch: Batch) -> Comparisons:
    """Return the lines of a batch of `data.preferences`.

    Raises:
        PreferenceBatchError: a document is divided over rows, or is not a preference.
    """
    row_length = batch.tokens_BS.shape[1]
    conversations: list[Span] = []
    prompt_ends: list[int] = []
    answer_ends: list[int] = []
    line_of: list[int] = []
    grades: list[int] = []
    strengths: list[int] = []
    pairs: list[tuple[int, int]] = []
    for line, document in enumerate(batch.documents):
        row, start, stop = document
        reads = (start + np.flatnonzero(batch.loss_mask_BS[row, start:stop])).tolist()
        labels = batch.tokens_BS[row, reads[-1] + 1 : stop].tolist() if reads else []
        if len(reads) not in (2, 3) or len(labels) != len(reads):
            raise PreferenceBatchError(
                f"the document at {document} is no whole preference; pack the data with `pack_preferences`, and use rows "
                "that hold its longest line"
            )
        first = len(answer_ends)
        prompt_ends.append(row * row_length + reads[0])
        for end in reads[1:]:
            conversations.append(Span(row, start, end + 1))
            answer_ends.append(row * row_length + end)
            line_of.append(line)
            start = end + 1
        grades += labels[1:]
        if len(reads) == 3:
            pairs.append((first, first + 1))
            strengths.append(labels[0])
    return Comparisons(
        conversations=tuple(conversations),
        prompt_ends=tuple(prompt_ends),
        answer_ends=tuple(answer_ends),
        line_of=tuple(line_of),
        grades=tuple(grades),
        pairs=tuple(pairs),
        strengths=tuple(strengths),
    )


class Preference:
    """See `PreferenceConfig`. `Losses.count` is the number of lines; `accuracy` counts pairs with the right order."""

    def __init__(self, config: PreferenceConfig) -> None:
        self._config = config

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        if batch.num_targets == 0:
            return zero_losses(model)
        reward_model, lines = cast("RewardModel", model), comparisons_of(batch)
        # Attention reads positions in ascending order.
        indices_N, order_N = torch.tensor([*lines.prompt_ends, *lines.answer_ends], device=model.device).sort()
        num_rows, row_length = batch.tokens_BS.shape
        context = PackedDocuments(lines.conversations, num_rows, row_length, model.device)
        with observed_routing(model) as seen:
            tokens_BS = torch.from_numpy(batch.tokens_BS).to(model.device)
            x_ND = model.hidden_at(tokens_BS, context, indices_N)[0][order_N.argsort()]
        prompt_ND, last_ND = x_ND.split([len(lines.prompt_ends), len(lines.answer_ends)])
        rewards_N = reward_model.rewards(last_ND)
        routing = routing_losses(self._config.routing, model.config, seen, batch, indices_N, model.sum_over_tracks)
        pair_loss, correct = self._pairs(rewards_N, lines)
        grade_loss, grade_correct_N = self._grades(reward_model, rewards_N, lines)
        cohesion_loss = self._cohesion(reward_model, prompt_ND.detach(), rewards_N.detach(), grade_correct_N, lines)
        total = pair_loss + grade_loss + cohesion_loss + routing.total
        # Heads without a label in this batch get zero gradients, not none: ranks must agree on what they reduce.
        total = total + 0 * (rewards_N.sum() + reward_model.raw_thresholds.sum())
        lengths = [span.stop - span.start for span in lines.conversations]
        return Losses(
            total=total,
            count=len(lines.prompt_ends),
            parts={"accuracy": correct, "pair_loss": pair_loss.detach(), "grade_loss": grade_loss.detach()}
            | dict(routing.parts),
            flops=training_flops(model.config, lengths, len(indices_N)),
            expert_tokens=routing.tokens_TE,
        )

    def _pairs(self, rewards_N: Tensor, lines: Comparisons) -> tuple[Tensor, Tensor]:
        """Return the sum of the pairs' losses and the number of pairs in the right order."""
        if not lines.pairs:
            return rewards_N.new_zeros(()), rewards_N.new_zeros(())
        chosen_P, rejected_P = torch.tensor(lines.pairs, device=rewards_N.device).unbind(1)
        margins_P = self._config.margin * (rewards_N.new_tensor(lines.strengths) - 1)
        difference_P = rewards_N[chosen_P] - rewards_N[rejected_P]
        return -F.logsigmoid(difference_P - margins_P).sum(), (difference_P > 0).float().sum().detach()

    def _grades(self, model: RewardModel, rewards_N: Tensor, lines: Comparisons) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the grades' losses, and whether each answer's grade is the most likely one."""
        grades_N = torch.tensor(lines.grades, device=rewards_N.device)
        if int(grades_N.max()) > model.config.num_grades:
            raise PreferenceBatchError(
                f"the data has a grade of {int(grades_N.max())}, the model has {model.config.num_grades} grades; raise its "
                "num_grades"
            )
        log_probs_NG = model.grade_log_probs(rewards_N)
        is_graded_N = grades_N > 0
        costs_N = -log_probs_NG.gather(1, (grades_N - 1).clamp(min=0)[:, None])[:, 0]
        return self._config.grade_weight * costs_N[is_graded_N].sum(), log_probs_NG.argmax(1) + 1 == grades_N

    def _cohesion(
        self, model: RewardModel, prompt_ND: Tensor, rewards_N: Tensor, grade_correct_N: Tensor, lines: Comparisons
    ) -> Tensor:
        """Return the weighted sum of the cohesion heads' losses, with labels from the model's own predictions."""
        if model.cohesion_head is None:
            return rewards_N.new_zeros(())
        logits_N2 = model.cohesion_logits(prompt_ND)
        loss = rewards_N.new_zeros(())
        if lines.pairs:
            chosen_P, rejected_P = torch.tensor(lines.pairs, device=rewards_N.device).unbind(1)
            expected_N = model.grade_log_probs(rewards_N).exp() @ torch.arange(
                1.0, model.config.num_grades + 1, device=rewards_N.device
            )
            agrees_P = (expected_N[chosen_P] > expected_N[rejected_P]).float()
            line_P = torch.tensor(lines.line_of, device=rewards_N.device)[chosen_P]
            loss = loss + F.binary_cross_entropy_with_logits(logits_N2[line_P, 0], agrees_P, reduction="sum")
        is_graded_N = torch.tensor(lines.grades, device=rewards_N.device) > 0
        if is_graded_N.any():
            line_N = torch.tensor(lines.line_of, device=rewards_N.device)[is_graded_N]
            labels_N = grade_correct_N[is_graded_N].float()
            loss = loss + F.binary_cross_entropy_with_logits(logits_N2[line_N, 1], labels_N, reduction="sum")
        return self._config.cohesion_weight * (loss + 0 * logits_N2.sum())
