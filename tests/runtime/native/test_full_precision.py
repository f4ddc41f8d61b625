"""The native engine on bundles in full precision: the logits of torch, and new weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from native_bundles import compressed_bundle
from test_kernels import Kernels, every_kernel
from tiny_engines import CONFIGS, assert_close, decoder, random_tokens
from tiny_tokenizer import TOKENIZER

from openafm.bundle import Bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.runtime.engines.base import Engine, WeightUpdateError
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.decoding import rounded_to
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import kernel_names, native_library
from openafm.tokenizer.chat_template import ChatTemplate

TOKENS = random_tokens(150)


def write(path: Path, kind: str) -> Bundle:
    vocab_size = max(CONFIGS[kind].vocab_size, TOKENIZER.vocab_size)
    config = dataclasses.replace(CONFIGS[kind], vocab_size=vocab_size, context_length=200)
    model = config.build(seed=5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(6))
        model.embedding.normal_(std=0.1, generator=torch.Generator().manual_seed(7))
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return write_bundle(path, config=config, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=tensors)


def logits(engine: Engine, chunk: int = len(TOKENS)) -> np.ndarray:
    sequence = engine.new_sequence()
    parts = [TOKENS[start : start + chunk] for start in range(0, len(TOKENS), chunk)]
    return np.concatenate([engine.step([(sequence, part)], "all")[0] for part in parts])


@pytest.mark.parametrize("kind", ["shared", "windows", "nothing shared"])
def test_the_logits_are_those_of_torch_and_do_not_depend_on_the_step(tmp_path: Path, kind: str) -> None:
    bundle = write(tmp_path / "b", kind)
    with torch.inference_mode():
        expected = load_decoder(bundle)(torch.tensor([TOKENS]))[0].numpy()
    for kernels in kernel_names(native_library()):
        engine = NativeEngine(bundle, num_threads=2, kernels=kernels)
        found = logits(engine)
        assert_close(found, expected)
        for chunk in (1, 7):
            np.testing.assert_array_equal(logits(engine, chunk), found)


def test_rows_of_a_batch_and_forks_have_the_bits_of_one_sequence(tmp_path: Path) -> None:
    engine = NativeEngine(write(tmp_path / "b", "shared"), num_threads=1)
    alone = logits(engine)
    origin = engine.new_sequence()
    engine.step([(origin, TOKENS[:70])])
    sequences = [engine.fork(origin, length) for length in (3, 64, 65, 70)]
    found = engine.step([(sequence, [TOKENS[sequence.length]]) for sequence in sequences])
    for length, row in zip((3, 64, 65, 70), found, strict=True):
        np.testing.assert_array_equal(row, alone[length])


@every_kernel
@pytest.mark.parametrize("head_dim", [4, 20, 64, 100])
def test_attention_in_fp32(name: str, head_dim: int) -> None:
    draw = np.random.default_rng(head_dim)
    q, k, v = (draw.standard_normal((count, head_dim)).astype(np.float32) for count in (7, 130, 130))
    q[1] *= 100
    scores = q.astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(head_dim)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    kernels = Kernels(name, float_cache=True)
    found = kernels.attend(q, k, v)
    assert np.abs(np.delete(found - expected, 1, axis=0)).max() < 2e-6
    assert np.abs(found - expected).max() < 2e-4
    np.testing.assert_array_equal(np.concatenate([kernels.attend(q[n : n + 1], k, v) for n in range(7)]), found)


def test_new_weights_replace_those_of_this_engine_only(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", "nothing shared")
    engine, other = (NativeEngine(bundle, num_threads=1) for _ in range(2))
    before, peer = logits(engine), TorchEngine.open(bundle)
    sequence = engine.new_sequence()
    engine.step([(sequence, TOKENS[:9])])
    generator = torch.Generator().manual_seed(1)
    changed = {
        name: tensor + 0.01 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in peer.decoder.state_dict().items()
    }
    peer.update_weights(changed, 4)
    engine.update_weights({name: torch.nn.Parameter(tensor) for name, tensor in changed.items()}, 4)
    assert (engine.weights_version, other.weights_version) == (4, 0)
    assert "weights 4" in engine.signature
    expected = logits(peer)
    assert np.abs(logits(engine) - expected).max() < 1e-4
    assert np.abs(before - expected).max() > 0.05
    np.testing.assert_array_equal(logits(other), before)
    row = engine.step([(sequence, [TOKENS[9]])])[0]  # keys and values are recomputed
    assert np.abs(row - expected[9]).max() < 1e-4


def test_new_weights_of_a_bfloat16_matrix_are_rounded_as_torch_rounds() -> None:
    values = np.random.default_rng(0).standard_normal((33, 50)).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(rounded_to("bfloat16", values), expected)


def test_weights_that_do_not_fit_raise_and_change_nothing(tmp_path: Path) -> None:
    engine = NativeEngine(write(tmp_path / "b", "shared"), num_threads=1)
    before = logits(engine)
    good = decoder("shared").norm.weight.detach()
    for tensors, version, message in (
        ({"norm.weigth": good}, 1, "norm.weight"),
        ({"norm.weight": good[:3]}, 1, "shape"),
        ({"norm.weight": good}, 0, "version 0"),
    ):
        with pytest.raises(WeightUpdateError, match=message):
            engine.update_weights(tensors, version)
    np.testing.assert_array_equal(logits(engine), before)
    with pytest.raises(WeightUpdateError, match="cannot change"):
        NativeEngine(compressed_bundle(), num_threads=1).update_weights({}, 1)
