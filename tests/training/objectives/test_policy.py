"""Policy-gradient objectives against plain computations and TRL."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_runs import tiny_model
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import Span
from openafm.models.decoder import Decoder
from openafm.training.objectives.policy import PolicyTokens
from openafm.training.objectives.policy_config import (
    GRPOConfig,
    PolicyObjectiveConfig,
    PPOClipConfig,
    RLOOConfig,
    leave_one_out,
)

NUM_TOKENS = 90  # of the 97 rows of the tiny model
PROMPT, ANSWERS = 5, (4, 7, 2, 6)
REWARDS = np.array([1.0, 0.0, 0.5, 0.0])


def sampled_batch(advantages: np.ndarray, log_ratio: float = 0.0, is_off_policy: bool = False) -> Batch:
    """Return four samples of one prompt, two to a row, with behavior log-probabilities of the tiny model plus noise."""
    rng = np.random.default_rng(3)
    shape = (2, 24)
    tokens, mask = rng.integers(1, NUM_TOKENS, shape), np.zeros(shape, bool)
    documents, fields = [], {name: np.zeros(shape, np.float32) for name in ("advantages", "behavior_log_probs")}
    for number, length in enumerate(ANSWERS):
        row, start = number // 2, 0 if number % 2 == 0 else PROMPT + ANSWERS[number - 1]
        stop = start + PROMPT + length
        documents.append(Span(row, start, stop))
        mask[row, start + PROMPT - 1 : stop - 1] = True
        fields["advantages"][row, start:stop] = advantages[number]
    batch = Batch(
        tokens_BS=tokens,
        targets_BS=np.roll(tokens, -1, 1),
        loss_mask_BS=mask,
        documents=tuple(documents),
        token_fields={**fields, "is_off_policy": np.full(shape, is_off_policy)},
    )
    behavior = log_probs(model(), batch).detach().numpy() - log_ratio
    return replace(batch, token_fields={**batch.token_fields, "behavior_log_probs": behavior.astype(np.float32)})


def model() -> Decoder:
    decoder = tiny_model().build(seed=1)
    with torch.no_grad():
        decoder.embedding.mul_(5)  # distributions that are not uniform
    return decoder


def log_probs(decoder: Decoder, batch: Batch, temperature: float = 1.0, allowed: Tensor | None = None) -> Tensor:
    """Return the log-probability of every target of the batch [B, S], document by document; 0 outside of documents."""
    rows = torch.zeros(batch.tokens_BS.shape)
    for span in batch.documents:
        tokens = torch.from_numpy(batch.tokens_BS[span.row, span.start : span.stop])
        targets = torch.from_numpy(batch.targets_BS[span.row, span.start : span.stop])
        logits = decoder(tokens[None])[0, :, :NUM_TOKENS] / temperature
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -1e4)
        in_row = F.pad(
            logits.log_softmax(-1).gather(1, targets.clamp(max=NUM_TOKENS - 1)[:, None])[:, 0],
            (span.start, rows.shape[1] - span.stop),
        )
        rows = rows + F.one_hot(torch.tensor(span.row), len(rows))[:, None] * in_row
    return rows


def reference_rloo(decoder: Decoder, batch: Batch, rewards: np.ndarray, temperature: float = 1.0) -> Tensor:
    """Return the mean over samples of -(reward - mean of the other rewards) * log pi(sample)."""
    per_token = log_probs(decoder, batch, temperature) * torch.from_numpy(batch.loss_mask_BS)
    losses = []
    for number, span in enumerate(batch.documents):
        others = [reward for index, reward in enumerate(rewards) if index != number]
        advantage = rewards[number] - sum(others) / len(others)
        losses.append(-advantage * per_token[span.row, span.start : span.stop].sum())
    return torch.stack(losses).mean()


def loss_and_gradient(config: PolicyObjectiveConfig, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the mean loss of a batch and the gradient of the embedding."""
    decoder = model()
    losses = replace(config, num_tokens=NUM_TOKENS).build()(decoder, batch)
    loss = losses.total / losses.count
    loss.backward()
    assert decoder.embedding.grad is not None
    return loss.detach(), decoder.embedding.grad


def test_leave_one_out_matches_the_worked_example() -> None:
    advantages = leave_one_out(np.array([1.0, 1, 1, 0, 0, 0, 0, 0]))
    assert advantages.tolist() == pytest.approx([5 / 7] * 3 + [-3 / 7] * 5)
    assert advantages.sum() == pytest.approx(0)
    assert leave_one_out(np.array([0.7])).tolist() == [0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rloo_equals_the_reference(temperature: float) -> None:
    batch, decoder = sampled_batch(leave_one_out(REWARDS)), model()
    expected = reference_rloo(decoder, batch, REWARDS, temperature)
    expected.backward()
    loss, gradient = loss_and_gradient(RLOOConfig(temperature=temperature), batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(gradient, decoder.embedding.grad, atol=1e-6, rtol=1e-5)


def branched(batch: Batch) -> Batch:
    """Return the samples of a batch, which have equal prompts, as branches of one document."""
    prompt, ends = [7] * (PROMPT - 1), [slice(span.start + PROMPT - 1, span.stop - 1) for span in batch.documents]
    rows = [span.row for span in batch.documents]

    def row(values_BS: np.ndarray) -> np.ndarray:
        answers = [values_BS[number, end] for number, end in zip(rows, ends, strict=True)]
        return np.concatenate([np.zeros_like(values_BS[0, : PROMPT - 1]), *answers])[None]

    stops = np.cumsum([PROMPT - 1, *ANSWERS]).tolist()
    tokens_BS = row(batch.tokens_BS)
    tokens_BS[0, : PROMPT - 1] = prompt
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=row(batch.targets_BS),
        loss_mask_BS=row(batch.loss_mask_BS),
        documents=(Span(0, 0, stops[-1]),),
        token_fields={name: row(values) for name, values in batch.token_fields.items()},
        branches=tuple(Span(0, start, stop) for start, stop in itertools.pairwise(stops)),
    )


@pytest.mark.parametrize("config", [RLOOConfig(), PPOClipConfig(), GRPOConfig()])
def test_branches_of_one_prompt_have_the_loss_and_gradient_of_whole_samples(config: PolicyObjectiveConfig) -> None:
    plain = sampled_batch(leave_one_out(REWARDS), log_ratio=0.1, is_off_policy=True)
    tokens_BS = plain.tokens_BS.copy()
    for span in plain.documents:
        tokens_BS[span.row, span.start : span.start + PROMPT - 1] = 7
    plain = replace(plain, tokens_BS=tokens_BS)
    loss, gradient = loss_and_gradient(config, branched(plain))
    expected, expected_gradient = loss_and_gradient(config, plain)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-4)


def test_chunks_and_microbatches_add_up_to_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = sampled_batch(leave_one_out(REWARDS))
    loss, gradient = loss_and_gradient(RLOOConfig(), batch)
    decoder, objective = model(), RLOOConfig(num_tokens=NUM_TOKENS).build()
    monkeypatch.setattr("openafm.training.objectives.policy.CHUNK_ELEMENTS", 0)
    monkeypatch.setattr("openafm.training.objectives.policy.LEAST_CHUNK", 3)
    parts = [objective(decoder, part) for part in batch.microbatches(1)]
    total = torch.stack([part.total for part in parts]).sum() / sum(part.count for part in parts)
    total.backward()
    assert total.item() == pytest.approx(loss.item(), abs=1e-6)
    torch.testing.assert_close(decoder.embedding.grad, gradient, atol=1e-6, rtol=1e-5)


def test_importance_weights_apply_to_stale_tokens_and_are_truncated() -> None:
    advantages = leave_one_out(REWARDS)
    fresh, _ = loss_and_gradient(RLOOConfig(), sampled_batch(advantages, log_ratio=0.5))
    stale, _ = loss_and_gradient(RLOOConfig(truncation=100.0), sampled_batch(advantages, log_ratio=0.5, is_off_policy=True))
    truncated, _ = loss_and_gradient(
        RLOOConfig(truncation=1.25), sampled_batch(advantages, log_ratio=0.5, is_off_policy=True)
    )
    assert stale.item() == pytest.approx(fresh.item() * np.exp(0.5), rel=1e-5)
    assert truncated.item() == pytest.approx(fresh.item() * 1.25, rel=1e-5)


def test_the_effective_share_of_a_sample_falls_with_the_spread_of_its_weights() -> None:
    weights, ones = torch.tensor([1.0, 1.0, 1.0, 3.0]), torch.ones(4)
    tokens = PolicyTokens(
        log_probs_N=ones,
        entropy_N=ones,
        advantages_N=ones,
        behavior_log_probs_N=ones,
        is_off_policy_N=ones.bool(),
        sample_N=torch.tensor([0, 0, 1, 1]),
        num_samples=2,
    )
    assert tokens.effective_share(weights).item() == pytest.approx(1 + 16 / (2 * 10))


def test_figures_of_importance_weights_are_logged() -> None:
    batch = sampled_batch(leave_one_out(REWARDS), log_ratio=0.5, is_off_policy=True)
    parts = RLOOConfig(num_tokens=NUM_TOKENS).build()(model(), batch).parts
    assert parts["log_ratio"].item() == pytest.approx(0.5 * len(ANSWERS), rel=1e-4)
    assert parts["effective_share"].item() == pytest.approx(len(ANSWERS))
    assert parts["off_policy_tokens"].item() == len(ANSWERS)


def test_all_objectives_have_the_gradient_of_the_policy_on_fresh_samples() -> None:
    batch = sampled_batch(leave_one_out(REWARDS))
    _, expected = loss_and_gradient(RLOOConfig(), batch)
    _, gradient = loss_and_gradient(PPOClipConfig(), batch)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_ppo_clips_the_ratio() -> None:
    advantages = np.array([1.0, 1.0, 1.0, 1.0])
    _, gradient = loss_and_gradient(PPOClipConfig(), sampled_batch(advantages, log_ratio=0.5))
    assert gradient.abs().max() == 0
    _, gradient = loss_and_gradient(PPOClipConfig(clip_high=0.9), sampled_batch(advantages, log_ratio=0.5))
    assert gradient.abs().max() > 0


def test_grpo_is_a_mean_per_token_of_normalized_advantages() -> None:
    config = GRPOConfig()
    advantages = config.advantages(REWARDS)
    assert advantages.std(ddof=1) == pytest.approx(1, rel=1e-3)
    loss, _ = loss_and_gradient(config, sampled_batch(advantages))
    assert loss.item() == pytest.approx(-advantages.mean(), abs=1e-5)  # all ratios are 1


def test_the_support_of_the_grammar_restricts_the_distribution() -> None:
    batch = sampled_batch(leave_one_out(REWARDS))
    allowed = np.zeros(NUM_TOKENS, bool)
    allowed[:80] = True
    allowed[batch.targets_BS[batch.loss_mask_BS]] = True
    packed = np.broadcast_to(np.packbits(allowed, bitorder="little"), (*batch.tokens_BS.shape, 12))
    restricted = replace(batch, token_fields={**batch.token_fields, "support": packed.copy()})
    loss, _ = loss_and_gradient(RLOOConfig(), restricted)
    per_token = log_probs(model(), batch, allowed=torch.from_numpy(allowed))
    per_token = torch.where(torch.from_numpy(batch.loss_mask_BS), per_token, 0.0)
    expected = -(per_token * torch.from_numpy(batch.token_fields["advantages"])).sum() / 4
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_settings_out_of_range_are_errors() -> None:
    with pytest.raises(ConfigError, match="kl_weight must be at least 0"):
        RLOOConfig(kl_weight=-0.1)
    with pytest.raises(ConfigError, match="truncation must be at least 1"):
        RLOOConfig(truncation=0.5)


def test_the_loss_equals_that_of_trl() -> None:
    """TRL needs datasets and accelerate. Set PYTHONPATH to a folder with them; no extra of openafm installs TRL."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    batch, decoder = sampled_batch(leave_one_out(REWARDS)), model()
    per_token = log_probs(decoder, batch) * torch.from_numpy(batch.loss_mask_BS)
    longest = max(ANSWERS)
    rows = [
        F.pad(per_token[span.row, span.start + PROMPT - 1 : span.stop - 1], (0, longest - length))
        for span, length in zip(batch.documents, ANSWERS, strict=True)
    ]
    mask = torch.tensor([[position < length for position in range(longest)] for length in ANSWERS]).long()
    inputs = {
        "prompt_ids": torch.zeros(4, 1).long(),
        "prompt_mask": torch.ones(4, 1).long(),
        "completion_ids": torch.zeros(4, longest).long(),
        "completion_mask": mask,
        "old_logps": (torch.stack(rows).detach() * mask).sum(-1),
        "advantages": torch.from_numpy(leave_one_out(REWARDS)).float(),
    }
    trl.RLOOTrainer._compute_loss(_TrlState(torch.stack(rows)), torch.nn.Identity(), inputs).backward()
    _, gradient = loss_and_gradient(RLOOConfig(), batch)
    torch.testing.assert_close(gradient, decoder.embedding.grad, atol=1e-6, rtol=1e-4)


class _TrlState:
    """The part of TRL's trainer that its loss reads, with given log-probabilities."""

    aux_loss_enabled, epsilon_low, epsilon_high = False, 0.2, 0.2
    model = torch.nn.Identity()

    def __init__(self, per_token: Tensor) -> None:
        self._per_token = per_token
        self._metrics: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.accelerator = SimpleNamespace(reduce=lambda value, reduction: value, gather=lambda value: value)

    def _get_per_token_logps_and_entropies(self, *_: object, **__: object) -> tuple[Tensor, Tensor, None]:
        return self._per_token, torch.zeros_like(self._per_token), None
