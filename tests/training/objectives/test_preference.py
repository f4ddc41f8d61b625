"""The loss of reward models against the plain computation, line by line; what it learns; batches that it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_runs import VOCAB_SIZE, tiny_model
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.accounting import num_parameters, training_flops
from openafm.models.reward import RewardModel, with_reward_head
from openafm.models.reward_config import RewardModelConfig
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.objectives.config import NextTokenConfig
from openafm.training.objectives.preference import PreferenceBatchError, comparisons_of
from openafm.training.objectives.preference_config import PreferenceConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.run import load_trained, train

CONFIG = RewardModelConfig.of(tiny_model(), num_grades=5, has_cohesion=True)
LINES: list[tuple[list[int], list[list[int]], list[int]]] = [  # prompt, answers, labels
    ([5, 6, 7], [[8, 9], [10]], [1, 4, 2]),
    ([20, 21], [[30, 31, 32], [33, 34]], [3, 0, 0]),
    ([40], [[41, 42]], [0, 5]),
]


def write_lines(
    folder: Path, lines: list[tuple[list[int], list[list[int]], list[int]]], row_tokens: int = 24
) -> LoaderConfig:
    with write_shards(folder, tokenizer_digest="0" * 64, vocab_size=VOCAB_SIZE) as writer:
        for prompt, answers, labels in lines:
            tokens = [token for answer in answers for token in (*prompt, *answer)] + labels
            ends = np.cumsum([len(prompt) + len(answer) for answer in answers]).tolist()
            writer.add(tokens, loss_mask=[i in (len(prompt), *ends) for i in range(len(tokens))])
    source = SourceConfig(name="p", path=str(folder))
    return LoaderConfig(sources=(source,), rows_per_step=2, row_tokens=row_tokens)


def model() -> RewardModel:
    decoder = CONFIG.build(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return decoder


def reward(decoder: RewardModel, tokens: list[int]) -> Tensor:
    return decoder.rewards(decoder.hidden(torch.tensor([tokens]))[:, -1])[0]


def plain_loss(decoder: RewardModel, config: PreferenceConfig) -> Tensor:
    total = torch.zeros(())
    for prompt, answers, labels in LINES:
        rewards = [reward(decoder, prompt + answer) for answer in answers]
        if len(answers) == 2:
            total = total - F.logsigmoid(rewards[0] - rewards[1] - config.margin * (labels[0] - 1))
        for value, grade in zip(rewards, labels[1:], strict=True):
            if grade:
                bounds = torch.cat([torch.tensor([-torch.inf]), decoder.thresholds, torch.tensor([torch.inf])])
                above = torch.sigmoid(value - bounds)
                total = total - config.grade_weight * torch.log(above[grade - 1] - above[grade])
    return total


def test_the_loss_is_that_of_each_line_by_itself(tmp_path: Path) -> None:
    decoder, config = model(), PreferenceConfig(margin=0.7, grade_weight=0.3, cohesion_weight=0)
    batch = write_lines(tmp_path / "p", LINES).build().batch(0)
    losses = config.build()(decoder, batch)
    expected = plain_loss(decoder, config)
    assert losses.count == len(LINES)
    lengths = [len(prompt) + len(answer) for prompt, answers, _ in LINES for answer in answers]
    assert losses.flops == training_flops(CONFIG, lengths, len(LINES) + len(lengths))
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-5)
    gradient, expected_gradient = (torch.autograd.grad(loss, decoder.embedding)[0] for loss in (losses.total, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-5)
    right = sum(bool(reward(decoder, p + a[0]) > reward(decoder, p + a[1])) for p, a, _ in LINES[:2])
    assert int(losses.parts["accuracy"]) == right


def test_cohesion_heads_learn_without_changing_the_rewards(tmp_path: Path) -> None:
    decoder = model()
    batch = write_lines(tmp_path / "p", LINES).build().batch(0)
    without = PreferenceConfig(cohesion_weight=0).build()(decoder, batch).total
    with_cohesion = PreferenceConfig(cohesion_weight=1).build()(decoder, batch).total
    assert decoder.cohesion_head is not None
    head, embedding = decoder.cohesion_head.weight, decoder.embedding
    assert with_cohesion > without
    (head_gradient, embedding_gradient) = torch.autograd.grad(with_cohesion - without, (head, embedding), allow_unused=True)
    assert head_gradient.abs().sum() > 0
    assert embedding_gradient.abs().max() < 1e-5


def test_cohesion_labels_come_from_the_predicted_grades(tmp_path: Path) -> None:
    """Labels: whether the expected grades agree with the pair, and whether the given grade is the likeliest."""
    decoder, weight = model(), 0.6
    batch = write_lines(tmp_path / "p", LINES).build().batch(0)
    without, with_cohesion = (
        PreferenceConfig(cohesion_weight=each).build()(decoder, batch).total.item() for each in (0, weight)
    )
    expected = 0.0
    for prompt, answers, labels in LINES:
        ranking, helpfulness = decoder.cohesion_logits(decoder.hidden(torch.tensor([prompt]))[:, -1])[0].sigmoid().tolist()
        rewards = torch.stack([reward(decoder, prompt + answer) for answer in answers])
        probabilities = decoder.grade_log_probs(rewards).exp().detach()
        if len(answers) == 2:
            first, second = (float(sum(g * p for g, p in enumerate(row, start=1))) for row in probabilities)
            expected -= np.log(ranking if first > second else 1 - ranking)
        for row, grade in zip(probabilities, labels[1:], strict=True):
            if grade:
                expected -= np.log(helpfulness if int(row.argmax()) + 1 == grade else 1 - helpfulness)
    assert with_cohesion - without == pytest.approx(weight * expected, rel=1e-4)


def test_thresholds_ascend_and_grades_have_probabilities() -> None:
    decoder = model()
    assert (decoder.thresholds.diff() > 0).all()
    log_probs = decoder.grade_log_probs(torch.linspace(-9, 9, 7))
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(7), rtol=1e-4, atol=1e-5)
    assert log_probs.argmax(1).diff().min() >= 0
    assert num_parameters(CONFIG) == sum(parameter.numel() for parameter in decoder.parameters())


def test_a_decoder_gets_a_head_and_keeps_its_weights() -> None:
    decoder = tiny_model().build(seed=3)
    decoder_with_head = with_reward_head(decoder, CONFIG, seed=4)
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(decoder_with_head(tokens), decoder(tokens))


def test_lines_that_are_divided_or_are_no_preferences_are_refused(tmp_path: Path) -> None:
    decoder, objective = model(), PreferenceConfig().build()
    divided = write_lines(tmp_path / "divided", [([5] * 20, [[8], [9]], [1, 0, 0])], row_tokens=24).build().batch(0)
    with pytest.raises(PreferenceBatchError, match="no whole preference"):
        objective(decoder, divided)
    with pytest.raises(PreferenceBatchError, match="grade of 6, the model has 5"):
        objective(decoder, write_lines(tmp_path / "grade", [([5], [[8]], [0, 6])]).build().batch(0))
    empty = Batch(
        tokens_BS=np.zeros((1, 4), np.int64),
        targets_BS=np.zeros((1, 4), np.int64),
        loss_mask_BS=np.zeros((1, 4), np.bool_),
        documents=(),
    )
    assert objective(decoder, empty).count == 0
    assert comparisons_of(empty).pairs == ()


def test_configs_need_a_reward_head(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "p", LINES)
    run = TrainerConfig(model=tiny_model(), data=data, budget=StepBudget(num_steps=1))
    with pytest.raises(ConfigError, match="needs a RewardModelConfig"):
        PreferenceConfig().check(run)
    with pytest.raises(ConfigError, match="margin and weights"):
        PreferenceConfig(margin=-1)
    with pytest.raises(ConfigError, match="num_grades"):
        RewardModelConfig.of(tiny_model(), num_grades=1)
    with pytest.raises(ConfigError, match="starts from a DecoderConfig"):
        RewardModelConfig.of(CONFIG)
    assert NextTokenConfig() != PreferenceConfig()


def test_checkpoints_of_reward_models_are_read_without_the_recipes() -> None:
    code = (
        "import openafm.training.config\n"
        "from openafm.core.config import from_dict\n"
        "from openafm.training.objectives.config import ObjectiveConfig\n"
        "print(from_dict(ObjectiveConfig, {'type': 'PreferenceConfig'}).margin)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "0.5\n"


@pytest.mark.long
def test_a_run_learns_which_answers_are_better(tmp_path: Path) -> None:
    """Answers with high tokens are better; grades follow. Held-out answers are ordered right."""
    rng = np.random.default_rng(0)

    def line() -> tuple[list[int], list[list[int]], list[int]]:
        worse, better = rng.integers(20, 55, 3).tolist(), rng.integers(55, 90, 3).tolist()
        return rng.integers(1, 20, 2).tolist(), [better, worse], [2, 5, 2]

    data = write_lines(tmp_path / "p", [line() for _ in range(150)], row_tokens=48)
    config = TrainerConfig(
        model=CONFIG,
        data=data,
        objective=PreferenceConfig(),
        budget=StepBudget(num_steps=60),
        optimizer=AdamWConfig(learning_rate=1e-2),
        num_threads=1,
        watchdog=None,
    )
    train(config, tmp_path / "run")
    decoder = load_trained(tmp_path / "run")
    assert isinstance(decoder, RewardModel)
    with torch.no_grad():
        found = []
        for _ in range(40):
            prompt, (better, worse), _ = line()
            found.append(bool(reward(decoder, prompt + better) > reward(decoder, prompt + worse)))
    assert sum(found) / len(found) > 0.9
