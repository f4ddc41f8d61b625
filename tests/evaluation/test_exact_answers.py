"""Exact answers by one forward pass: equal to greedy decoding token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from openafm.core.errors import UsageError
from openafm.data.shards.writer import write_shards
from openafm.evaluation.exact_answers import exact_answers
from openafm.models.decoder import Decoder
from openafm.models.sizes import shared_kv_decoder

VOCAB_SIZE, PROMPT, ANSWER = 40, 6, 3
CONFIG = shared_kv_decoder(
    vocab_size=VOCAB_SIZE,
    dim=16,
    num_own_layers=2,
    num_shared_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    hidden_dim=24,
    context_length=64,
)


@torch.no_grad()
def greedy(model: Decoder, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(ANSWER):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture
def model() -> Decoder:
    model = CONFIG.build(seed=3)
    with torch.no_grad():
        model.embedding.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return model


def write(folder: Path, documents: list[tuple[list[int], list[int]]]) -> Path:
    with write_shards(folder, tokenizer_digest="0" * 64, vocab_size=VOCAB_SIZE) as writer:
        for prompt, answer in documents:
            writer.add(prompt + answer, loss_mask=[False] * len(prompt) + [True] * len(answer))
    return folder


def test_an_answer_is_exact_if_greedy_decoding_gives_it(model: Decoder, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = []
    for number in range(12):
        prompt = rng.integers(1, VOCAB_SIZE, PROMPT).tolist()
        answer = greedy(model, prompt)
        if number % 4 == 0:
            answer[1] = answer[1] % (VOCAB_SIZE - 1) + 1
        documents.append((prompt, answer))
    scores = exact_answers(model, write(tmp_path / "a", documents), row_tokens=32)
    assert (scores.num_answers, scores.exact) == (12, 0.75)
    first = exact_answers(model, tmp_path / "a", row_tokens=32, max_rows=1)
    assert first.num_answers == 32 // (PROMPT + ANSWER)
    assert 0 < first.loss < 10


def test_shards_without_answers_are_refused(model: Decoder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="carries loss; pack questions"):
        exact_answers(model, write(tmp_path / "a", [([1, 2, 3], [])]), row_tokens=8)
