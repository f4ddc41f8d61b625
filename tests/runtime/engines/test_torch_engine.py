"""The torch engine: numerics of a bundle, failures inside a step, and lazy import."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engines import CONFIGS, assert_close, decoder, full_logits, random_tokens
from tiny_tokenizer import TOKENIZER
from torch import Tensor, nn

from openafm.bundle import Bundle, BundleError, Numerics, open_bundle, shipped_bundle, write_bundle
from openafm.compression.keys_values import IntPerTokenHead, RoundedToBfloat16
from openafm.models.attention.grouped_query import KeysValues
from openafm.models.decoder import FEW_TOKENS
from openafm.runtime.engines.selection import open_engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.chat_template import ChatTemplate

VOCAB_SIZE = TOKENIZER.vocab_size


def bundle(path: Path, numerics: Numerics) -> Bundle:
    config = dataclasses.replace(CONFIGS["shared"], vocab_size=VOCAB_SIZE)
    tensors = {name: tensor.numpy() for name, tensor in config.build(seed=5).state_dict().items()}
    return write_bundle(
        path, config=config, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=tensors, numerics=numerics
    )


def last_logits(engine: TorchEngine, tokens: list[int]) -> np.ndarray:
    return engine.step([(engine.new_sequence(), tokens)])[0]


def test_an_engine_computes_the_logits_of_its_decoder(tmp_path: Path) -> None:
    opened = bundle(tmp_path / "b", Numerics())
    engine = open_engine(opened)
    tokens = random_tokens(30)
    with torch.no_grad():
        expected = opened.config.build(seed=5)(torch.tensor([tokens]))[0, -1].numpy()
    assert_close(last_logits(engine, tokens), expected)
    assert opened.signature in engine.signature


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_one_token_of_each_of_several_sequences_equals_the_decoder(name: str) -> None:
    """They attend in one call, padded to the longest; layers with a window see the end of it."""
    engine = TorchEngine(decoder(name))
    texts = [random_tokens(count, seed=count) for count in (1, 2, 40, 7, 40, 23)]
    sequences = [engine.new_sequence() for _ in texts]
    for sequence, tokens in zip(sequences, texts, strict=True):
        if tokens[:-1]:
            engine.step([(sequence, tokens[:-1])])
    found = engine.step([(sequence, tokens[-1:]) for sequence, tokens in zip(sequences, texts, strict=True)])
    for logits_V, tokens in zip(found, texts, strict=True):
        assert_close(logits_V, full_logits(name, tokens)[-1])


def test_bfloat16_activations(tmp_path: Path) -> None:
    opened = bundle(tmp_path / "b", Numerics(activations="bfloat16", kv="bfloat16"))
    engine = open_engine(opened)
    tokens = random_tokens(30)
    reference = opened.config.build(seed=5)
    reference.compute_dtype = torch.bfloat16
    with torch.no_grad():
        expected = reference(torch.tensor([tokens]))[0, -1].float().numpy()
    actual = last_logits(engine, tokens)
    assert actual.dtype == np.float32
    assert np.abs(actual - expected).max() < 2**-6 * np.abs(expected).max()
    sequence = engine.new_sequence()
    engine.step([(sequence, tokens[:-1])])
    restored = engine.restore(engine.snapshot(sequence))
    assert np.array_equal(engine.step([(restored, tokens[-1:])])[0], engine.step([(sequence, tokens[-1:])])[0])


def test_quantized_keys_and_values_change_logits_a_little(tmp_path: Path) -> None:
    tokens = random_tokens(30)
    plain = last_logits(open_engine(bundle(tmp_path / "plain", Numerics())), tokens)
    rounded = {
        kv: np.abs(last_logits(open_engine(bundle(tmp_path / kv, Numerics(kv=kv))), tokens) - plain).max()
        for kv in ("bfloat16", "int8_per_token_head")
    }
    assert 0 < rounded["bfloat16"] < rounded["int8_per_token_head"] < 0.05 * np.abs(plain).max()


@settings(deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=8, max_size=8), st.sampled_from([1e-8, 1e-3, 1.0]))
def test_int8_errors_are_at_most_half_a_step(values: list[float], unit: float) -> None:
    x_BSKC = torch.tensor(values).mul(unit).view(1, 1, 2, 4)
    error = (IntPerTokenHead()(x_BSKC) - x_BSKC).abs()
    step_BSK1 = x_BSKC.abs().amax(-1, keepdim=True) / 127
    # The scale itself is rounded to fp16: 2^-11 of it, and 2^-25 near zero.
    assert (error <= 0.5 * step_BSK1 + 127 * (step_BSK1 * 2**-11 + 2**-24)).all()
    assert IntPerTokenHead()(torch.zeros(1, 1, 2, 4)).count_nonzero() == 0


def test_bfloat16_keeps_eight_bits() -> None:
    x_BSKC = torch.randn(1, 3, 2, 4)
    assert torch.equal(RoundedToBfloat16()(x_BSKC), x_BSKC.bfloat16().float())


def test_weights_that_do_not_fit_the_config_raise(tmp_path: Path) -> None:
    opened = bundle(tmp_path / "b", Numerics())
    opened.config = dataclasses.replace(opened.config, dim=16)
    with pytest.raises(BundleError, match="do not fit"):
        open_engine(opened)


class Faulty(nn.Module):
    """Fails in the second layer, after the first has stored keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def forward(self, x_BSKC: Tensor) -> Tensor:
        if self.fails:
            raise MemoryError
        return x_BSKC


def test_a_step_that_fails_half_way_changes_no_sequence() -> None:
    model = CONFIGS["shared"].build(seed=0)
    model.load_state_dict(decoder("shared").state_dict())
    faulty = Faulty()
    next(module for name, module in model.named_modules() if isinstance(module, KeysValues) and "1" in name).slot = faulty
    engine = TorchEngine(model)
    a, b = engine.new_sequence(), engine.new_sequence()
    tokens = random_tokens(70)
    engine.step([(a, tokens[:60]), (b, tokens[:5])])
    faulty.fails = True
    with pytest.raises(MemoryError):
        engine.step([(a, [1] * 10), (b, [2])])
    faulty.fails = False
    assert (a.length, b.length) == (60, 5)
    (logits_NV,) = engine.step([(a, tokens[60:])], "all")
    assert_close(logits_NV, full_logits("shared", tokens)[60:])


def test_only_opening_an_engine_imports_torch() -> None:
    code = (
        "import sys, openafm.runtime.engines.selection, openafm.runtime.decoding.generation;"
        "import openafm.runtime.decoding.grammar, openafm.runtime.decoding.sampling;"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
def test_few_tokens_at_once_are_bit_identical_to_one_by_one() -> None:
    """In the numerics of the shipped model, whose roundings would amplify a difference in the last bit."""
    path = shipped_bundle()
    assert path is not None
    bundle = open_bundle(path)
    engine = TorchEngine.open(bundle)
    tokens = (bundle.tokenizer.encode("Dinner with Anna at 7 pm on Friday, then the late train home. ") * 8)[:40]
    sequence = engine.new_sequence()
    one_by_one = [engine.step([(sequence, [token])])[0] for token in tokens]
    for count in (2, 5, FEW_TOKENS):
        sequence, logits = engine.new_sequence(), []
        for start in range(0, len(tokens), count):
            logits += engine.step([(sequence, tokens[start : start + count])], logits="all")
        assert np.array_equal(np.concatenate(logits), one_by_one)
