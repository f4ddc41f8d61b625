"""The native engine chooses the tokens of the torch engine. For 1,000 prompts: benchmarks/native/agreement.py."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from native_bundles import compressed_bundle
from numpy.typing import NDArray
from tiny_engines import random_tokens

from openafm.bundle import Bundle, open_bundle, shipped_bundle
from openafm.data.synthetic.corpus import SyntheticConfig, example
from openafm.runtime.agreement import compare_choices
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import kernel_names, native_library
from openafm.tokenizer.template import opened

LARGEST_MARGIN = 0.25  # between two candidates of different choices, in logits
NUM_TEXTS, MOST_TOKENS = 6, 200


@cache
def shipped() -> Bundle:
    path = shipped_bundle()
    assert path is not None
    return open_bundle(path)


def texts(count: int = NUM_TEXTS) -> list[list[int]]:
    bundle = shipped()
    turns = (opened(example(SyntheticConfig(split="held_out"), index).turns) for index in range(count))
    return [list(bundle.template.encode(bundle.tokenizer, turn).tokens[:MOST_TOKENS]) for turn in turns]


def logits(engine: Engine, tokens: list[int], chunk: int) -> NDArray[np.float32]:
    sequence = engine.new_sequence()
    chunks = [tokens[start : start + chunk] for start in range(0, len(tokens), chunk)]
    found = np.concatenate([engine.step([(sequence, given)], "all")[0] for given in chunks])
    engine.close(sequence)
    return found


@pytest.mark.long
def test_choices_match_torch_on_the_shipped_model() -> None:
    torch.set_num_threads(1)
    found = compare_choices(TorchEngine.open(shipped()), NativeEngine(shipped(), num_threads=1), texts())
    assert found.num_positions > 700
    assert found.share > 0.998  # 0.99 if one engine computes in fp32 between roundings
    assert found.largest_margin < LARGEST_MARGIN


@pytest.mark.parametrize(("chunk", "count"), [(1, 20), (32, 50), (MOST_TOKENS, 100)])
def test_activations_are_rounded_to_the_same_integers(chunk: int, count: int) -> None:
    """A different integer moves the logits of its and all later tokens by a hundredth or more."""
    torch.set_num_threads(1)
    given = [tokens[:count] for tokens in texts(1 + count // MOST_TOKENS)]
    peer = TorchEngine.open(shipped())
    expected = [logits(peer, tokens, chunk) for tokens in given]
    for kernels in kernel_names(native_library()):
        engine = NativeEngine(shipped(), num_threads=1, kernels=kernels)
        found = [logits(engine, tokens, chunk) for tokens in given]
        off_N = np.concatenate([np.abs(a - b).max(-1) for a, b in zip(expected, found, strict=True)])
        assert len(off_N) >= count
        assert (off_N < 1e-3).mean() > 0.9  # at most half of them in fp32


def test_different_choices_are_counted_with_their_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (NativeEngine(compressed_bundle(), num_threads=1) for _ in range(2))
    texts = [random_tokens(40, seed) for seed in range(3)]
    same = compare_choices(one, other, texts)
    assert (len(same.lengths), same.num_identical, same.num_positions, same.share) == (3, 3, 120, 1.0)
    assert same.largest_margin == 0
    forward = NativeEngine.forward

    def swapped(engine: NativeEngine, *arguments: object) -> list[NDArray[np.float32]]:
        """Swap the two highest logits of the second engine at the first position of a step."""
        outputs = forward(engine, *arguments)
        if engine is other:
            second, first = outputs[0][0].argsort()[-2:]
            outputs[0][0, [first, second]] = outputs[0][0, [second, first]]
        return outputs

    monkeypatch.setattr(NativeEngine, "forward", swapped)
    found = compare_choices(one, other, texts)
    assert found.num_identical == 0
    assert [(difference.sequence, difference.position) for difference in found.differences] == [
        (sequence, position) for sequence in range(3) for position in (0, 32)
    ]
    assert min(difference.margin for difference in found.differences) > 0
    assert found.share == 1 - 6 / 120
    assert compare_choices(one, other, texts, chunk=100).num_positions == 120
    assert len(compare_choices(one, other, texts, chunk=100).differences) == 3
