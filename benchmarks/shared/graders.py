"""A world of simulated graders: answers with a known quality, labels with known noise, and reward models trained on them.

A prompt is a topic with some of its words and a word for the clarity of the request. An answer is six words; each word
has a value, and the quality of an answer is the mean value of its words, whatever the prompt. A grader prefers the better
answer except with the noise of the prompt, and grades answers from 1 to 5 by the quintile of their quality; with the same
probability the grade is a random one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.attention.context import PackedDocuments
from openafm.models.attention.spans import Span
from openafm.models.reward import RewardModel
from openafm.models.reward_config import RewardModelConfig
from openafm.models.sizes import shared_kv_decoder
from openafm.training.budgets import StepBudget
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.objectives.preference_config import PreferenceConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.run import load_trained, train
from openafm.training.schedules import WarmupStableDecay

NUM_GRADES = 5
NUM_TOPICS, TOPIC_WORDS, PROMPT_WORDS = 10, 8, 4
NUM_VALUE_WORDS, ANSWER_WORDS = 100, 6
CLEAR, VAGUE = range(1, 11), range(11, 21)
FIRST_TOPIC_WORD = 21
FIRST_VALUE_WORD = FIRST_TOPIC_WORD + NUM_TOPICS * TOPIC_WORDS
VOCAB_SIZE = 256
ROW_TOKENS = 192


@dataclass(frozen=True, kw_only=True)
class Line:
    """A prompt, two answers, the first of which is better, their qualities, and the labels of a grader."""

    prompt: tuple[int, ...]
    is_vague: bool
    answers: tuple[tuple[int, ...], tuple[int, ...]]
    is_flipped: bool
    grades: tuple[int, int]


class World:
    """Draws lines. `noise` is a grader's for clear and for vague prompts."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._values = self._rng.normal(size=NUM_VALUE_WORDS)
        qualities = [self._quality(self._answer()) for _ in range(2000)]
        self._bounds = np.quantile(qualities, [0.2, 0.4, 0.6, 0.8])

    def lines(self, count: int, *, clear_noise: float, vague_noise: float) -> list[Line]:
        return [self._line(clear_noise, vague_noise) for _ in range(count)]

    def _line(self, clear_noise: float, vague_noise: float) -> Line:
        rng = self._rng
        is_vague = bool(rng.random() < 0.5)
        topic = int(rng.integers(NUM_TOPICS))
        words = FIRST_TOPIC_WORD + topic * TOPIC_WORDS + rng.integers(TOPIC_WORDS, size=PROMPT_WORDS)
        clarity = rng.choice(VAGUE if is_vague else CLEAR)
        answers = sorted((self._answer() for _ in range(2)), key=self._quality, reverse=True)
        noise = vague_noise if is_vague else clear_noise
        return Line(
            prompt=(*words.tolist(), int(clarity)),
            is_vague=is_vague,
            answers=(tuple(answers[0].tolist()), tuple(answers[1].tolist())),
            is_flipped=bool(rng.random() < noise),
            grades=(self._grade(answers[0], noise), self._grade(answers[1], noise)),
        )

    def _answer(self) -> npt.NDArray[np.int64]:
        return FIRST_VALUE_WORD + self._rng.integers(NUM_VALUE_WORDS, size=ANSWER_WORDS)

    def _quality(self, answer: npt.NDArray[np.int64]) -> float:
        return float(self._values[answer - FIRST_VALUE_WORD].mean())

    def _grade(self, answer: npt.NDArray[np.int64], noise: float) -> int:
        if self._rng.random() < noise:
            return int(self._rng.integers(1, NUM_GRADES + 1))
        return 1 + int(np.searchsorted(self._bounds, self._quality(answer)))


def trained_model(lines: Sequence[Line], num_steps: int, seed: int, *, grade_weight: float, cohesion: bool) -> RewardModel:
    """Return a reward model trained on the labels of lines, through shards, loader and trainer."""
    decoder = shared_kv_decoder(
        vocab_size=VOCAB_SIZE,
        dim=48,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=12,
        hidden_dim=96,
        context_length=ROW_TOKENS,
    )
    with tempfile.TemporaryDirectory(prefix="openafm-graders-") as folder:
        path = Path(folder)
        with write_shards(path / "lines", tokenizer_digest="0" * 64, vocab_size=VOCAB_SIZE) as writer:
            for line in lines:
                order = (1, 0) if line.is_flipped else (0, 1)
                conversations = [[*line.prompt, *line.answers[index]] for index in order]
                tokens = [*conversations[0], *conversations[1], 1, *(line.grades[index] for index in order)]
                first = len(conversations[0])
                reads = (len(line.prompt), first, first + len(conversations[1]))
                writer.add(tokens, loss_mask=[position in reads for position in range(len(tokens))])
        source = SourceConfig(name="lines", path=str(path / "lines"))
        config = TrainerConfig(
            model=RewardModelConfig.of(decoder, num_grades=NUM_GRADES, has_cohesion=cohesion),
            data=LoaderConfig(sources=(source,), rows_per_step=4, row_tokens=ROW_TOKENS, seed=seed),
            objective=PreferenceConfig(grade_weight=grade_weight),
            budget=StepBudget(num_steps=num_steps),
            optimizer=AdamWConfig(learning_rate=3e-3, weight_decay=0.1),
            schedule=WarmupStableDecay(warmup_fraction=0.05, decay_fraction=0.3),
            checkpoint=CheckpointConfig(every_seconds=None, keep=1),
            watchdog=None,
            num_threads=1,
            seed=seed,
        )
        train(config, path / "run")
        model = load_trained(path / "run")
        assert isinstance(model, RewardModel)
        return model


def differences(model: RewardModel, lines: Sequence[Line]) -> npt.NDArray[np.float64]:
    """Return the reward of the better answer minus that of the worse one, for each line."""
    rewards = [_last_states(model, [(*line.prompt, *line.answers[side]) for line in lines]) for side in (0, 1)]
    with torch.no_grad():
        better, worse = (model.rewards(states) for states in rewards)
    return (better - worse).double().numpy()


def prompt_states(model: RewardModel, prompts: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the last state of each prompt; prompts have equal lengths."""
    with torch.no_grad():
        states_PSD = model.hidden(torch.tensor(prompts))
    return states_PSD.mean(1), states_PSD[:, -1]


def _last_states(model: RewardModel, conversations: Sequence[tuple[int, ...]]) -> torch.Tensor:
    length = len(conversations[0])
    row_1S = torch.tensor(conversations).reshape(1, -1)
    documents = [Span(0, start, start + length) for start in range(0, row_1S.shape[1], length)]
    context = PackedDocuments(documents, 1, row_1S.shape[1], row_1S.device)
    ends = torch.tensor([document.stop - 1 for document in documents])
    with torch.no_grad():
        return model.hidden_at(row_1S, context, ends)[0]
