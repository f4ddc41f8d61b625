"""Greedy generation of the engine, cached, equals transformers' `generate` on the same weights, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from peers import NUM_OWN_LAYERS, TOLERANCE, copy_to_peer, decoder, plain_layers, sharing_layers, tokens, transformers_pairs
from test_transformers import HALF, INTERLEAVED, WINDOW, qwen3, shared_keys_values, smollm3, three_to_one

from openafm.models.decoder import Decoder
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.torch_engine import TorchEngine

NUM_NEW = 24
PROMPT = tokens(num_rows=1, row_length=11)


@pytest.fixture(autouse=True)
def _one_thread_no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def their_answer(ours: Decoder, theirs: Any) -> list[int]:
    copy_to_peer(transformers_pairs(ours, theirs))
    mask = torch.ones_like(PROMPT)
    answer = theirs.generate(PROMPT, attention_mask=mask, max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=None)
    return answer[0, PROMPT.shape[1] :].tolist()


def our_answer(ours: Decoder) -> list[int]:
    engine = TorchEngine(ours)
    events = generate(
        engine,
        engine.new_sequence(),
        PROMPT[0].tolist(),
        sampling=GreedyConfig(),
        stop_tokens=[],
        max_tokens=NUM_NEW,
    )
    return [event.token for event in events]


@pytest.mark.parametrize("channels", [pytest.param(HALF, id="half"), pytest.param(INTERLEAVED, id="interleaved")])
def test_the_block_generates_what_qwen3_does(channels: dict[str, Any]) -> None:
    ours = decoder(plain_layers(**channels))
    expected = their_answer(ours, qwen3())
    assert len(set(expected)) > 3, "an answer of one repeated token proves little"
    assert our_answer(ours) == expected


def test_sharing_generates_what_qwen3_with_shared_keys_and_values_does() -> None:
    ours = decoder(sharing_layers(**HALF))
    with shared_keys_values(NUM_OWN_LAYERS - 1) as attention:
        expected = their_answer(ours, qwen3(attention))
    assert our_answer(ours) == expected
    assert their_answer(ours, qwen3()) != expected


def test_windows_generate_what_smollm3_does() -> None:
    """The answer is three windows long."""
    ours = decoder(three_to_one(WINDOW))
    expected = their_answer(ours, smollm3())
    assert len(set(expected)) > 3, "an answer of one repeated token proves little"
    assert our_answer(ours) == expected
    assert our_answer(with_weights_of(ours, three_to_one(WINDOW - 1))) != expected


def with_weights_of(ours: Decoder, layers: list[Any]) -> Decoder:
    other = decoder(layers)
    other.load_state_dict(ours.state_dict())
    return other


def test_logits_of_every_cached_step_equal_those_of_one_uncached_pass() -> None:
    ours = decoder(sharing_layers())
    tokens_BS = tokens(num_rows=2, row_length=20)
    expected_BSV = ours(tokens_BS).numpy()
    engine = TorchEngine(ours)
    sequences = [engine.new_sequence() for _ in tokens_BS]
    rows = tokens_BS.tolist()
    for start, stop in [(0, 7), (7, 8), (8, 9), (9, 20)]:
        batch = [(sequence, row[start:stop]) for sequence, row in zip(sequences, rows, strict=True)]
        for got_NV, expected_SV in zip(engine.step(batch, logits="all"), expected_BSV, strict=True):
            assert np.abs(got_NV - expected_SV[start:stop]).max() < TOLERANCE
