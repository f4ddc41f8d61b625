"""The simulation against an independent form of the report's formula, and against the deployed model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from torch import Tensor

from openafm.bundle import open_bundle, write_bundle
from openafm.compression.config import AbsmaxClip, BalancedLevels, LevelSetConfig, QATConfig, UnbalancedLevels
from openafm.compression.deploy import build_decoder, packed_tensors
from openafm.compression.errors import CompressionError
from openafm.compression.low_bit import layer_linears
from openafm.compression.packing import pack_codes, unpack_codes
from openafm.compression.qat import FakeQuantLinear, install
from openafm.core.config import ConfigError
from openafm.models.decoder import Decoder
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.chat_template import ChatTemplate

PLAIN = QATConfig(embedding="float32", activations="float32", kv="float32")
WHOLE = QATConfig(activations_from=0.0)
CONFIGS = {
    "plain": PLAIN,
    "row": replace(PLAIN, granularity="row"),
    "unbalanced": replace(PLAIN, levels=UnbalancedLevels()),
    "embedding": replace(PLAIN, embedding="int4_group32"),
    "activations": replace(WHOLE, embedding="float32", kv="float32"),
    "kv": replace(PLAIN, kv="int8_per_token_head"),
    "whole": WHOLE,
    "whole, rows": replace(WHOLE, granularity="row"),
    "whole, absmax": replace(WHOLE, clip=AbsmaxClip()),
}


def simulated(config: QATConfig, seed: int = 0) -> Decoder:
    decoder = tiny_models.decoder(seed)
    install(decoder, config).advance(1.0)
    return decoder


def report_formula(weight: Tensor, clip: Tensor, levels: LevelSetConfig) -> Tensor:
    """W~ = s (clamp(round(W / s + z), qmin, qmax) - z), in numpy and double."""
    w, f = weight.detach().numpy().astype(np.float64), clip.detach().numpy().astype(np.float64)
    zero, lowest, largest = (0.5, -1, 1.5) if isinstance(levels, BalancedLevels) else (0.0, -2, 2.0)
    top = np.abs(w).max(axis=1, keepdims=True) if f.ndim else np.abs(w).max()
    s = f.reshape(-1, 1) * top / largest if f.ndim else f * top / largest
    return torch.from_numpy(s * (np.clip(np.round(w / s + zero), lowest, lowest + 3) - zero)).float()


@pytest.mark.parametrize("name", ["plain", "row", "unbalanced"])
def test_a_simulated_linear_computes_the_reports_formula(name: str) -> None:
    decoder, x = simulated(CONFIGS[name]), torch.randn(5, 32, generator=torch.Generator().manual_seed(3))
    for module in decoder.modules():
        if isinstance(module, FakeQuantLinear) and module.in_dim == 32:
            expected = x @ report_formula(module.weight, module.clip, CONFIGS[name].levels).T
            assert torch.allclose(module(x), expected, atol=1e-5)
            assert not torch.allclose(x @ module.weight.T, expected, atol=1e-2)


def test_gradients_are_straight_through_and_reach_the_clip() -> None:
    """Against autograd of the same formula with the rounding held constant."""
    decoder, x = simulated(PLAIN), torch.randn(5, 32, generator=torch.Generator().manual_seed(3))
    linear = decoder.get_submodule("layers.0.feed_forward.gate")
    assert isinstance(linear, FakeQuantLinear)
    with torch.no_grad():
        linear.clip.mul_(0.7)  # so that some weights are clamped
    linear(x).square().sum().backward()
    weight, clip = linear.weight.detach().requires_grad_(), linear.clip.detach().requires_grad_()
    scale = clip * weight.detach().abs().amax() / 1.5
    ratio = weight / scale + 0.5
    rounded = ratio + (ratio.round() - ratio).detach()
    levels = rounded.clamp(-1, 2) - 0.5
    (x @ (scale * levels).T).square().sum().backward()
    assert torch.allclose(linear.weight.grad, weight.grad, atol=1e-4)
    assert bool((linear.weight.grad == 0).any())
    assert torch.allclose(linear.clip.grad, clip.grad / linear.weight.numel() ** 0.5, rtol=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_packed_model_equals_the_simulation(name: str) -> None:
    """Bit-identical for integer activations; else up to the order of summation."""
    is_exact = CONFIGS[name].activations == "int8_per_token"
    config = CONFIGS[name]
    decoder, tokens_BS = simulated(config), tiny_models.tokens()
    deployed = build_decoder(tiny_models.CONFIG, config.numerics, packed_tensors(decoder))
    with torch.inference_mode():
        expected, found = decoder(tokens_BS), deployed(tokens_BS)
    assert torch.equal(expected, found) if is_exact else torch.allclose(expected, found, atol=1e-5)
    plain = tiny_models.decoder()
    assert not torch.allclose(plain(tokens_BS), found, atol=1e-2)


@pytest.mark.parametrize("name", ["whole, rows", "unbalanced"])
def test_the_engine_generates_what_the_simulation_computes(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    decoder = simulated(config)
    write_bundle(
        tmp_path / "packed",
        config=tiny_models.CONFIG,
        tokenizer=tiny_models.tokenizer(),
        template=ChatTemplate(),
        tensors=packed_tensors(decoder),
        numerics=config.numerics,
    )
    engine = TorchEngine.open(open_bundle(tmp_path / "packed"))
    sequence = engine.new_sequence()
    tokens = tiny_models.tokens(8)[0].tolist()
    (logits,) = engine.step([(sequence, tokens)])
    for _ in range(40):
        tokens.append(int(logits.argmax()))
        with torch.inference_mode():
            expected = decoder(torch.tensor([tokens]))[0, -1]
        (logits,) = engine.step([(sequence, tokens[-1:])])
        assert int(expected.argmax()) == int(logits.argmax())
        assert np.allclose(expected.numpy(), logits, atol=1e-4)


def test_storage_is_two_bits_per_weight_and_five_per_embedding_entry() -> None:
    tensors = packed_tensors(simulated(WHOLE))
    linear = tiny_models.decoder().get_submodule("layers.0.feed_forward.gate").weight
    assert tensors["layers.0.feed_forward.gate.weight"].nbytes * 8 == 2 * linear.numel()
    assert tensors["layers.0.feed_forward.gate.weight.scale"].shape == ()
    embedding = sum(array.nbytes for name, array in tensors.items() if name.startswith("embedding"))
    assert embedding * 8 == 5 * tiny_models.CONFIG.vocab_size * tiny_models.CONFIG.dim
    assert not any("clip" in name or "parametrizations" in name for name in tensors)


def test_activations_are_rounded_after_the_configured_fraction_of_the_run() -> None:
    decoder, tokens_BS = tiny_models.decoder(), tiny_models.tokens()
    awareness = install(decoder, replace(PLAIN, activations="int8_per_token", activations_from=0.5))
    with torch.inference_mode():
        before = decoder(tokens_BS)
        awareness.advance(0.49)
        assert torch.equal(decoder(tokens_BS), before)
        awareness.advance(0.5)
        assert not torch.equal(decoder(tokens_BS), before)


@pytest.mark.long
def test_training_lowers_the_loss() -> None:
    for config in (WHOLE, CONFIGS["whole, rows"]):
        decoder, tokens_BS = simulated(config), tiny_models.tokens(32)
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3, weight_decay=0.0)
        losses = []
        for _ in range(40):
            logits = decoder(tokens_BS[:, :-1])[0]
            loss = torch.nn.functional.cross_entropy(logits, tokens_BS[0, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0]
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in decoder.parameters())


def test_the_bf16_simulation_keeps_integers_and_levels_exact() -> None:
    exact, rounded = simulated(WHOLE), simulated(WHOLE)
    rounded.compute_dtype = torch.bfloat16
    with torch.inference_mode():
        a, b = exact(tiny_models.tokens()), rounded(tiny_models.tokens()).float()
    assert (a - b).abs().max() < 0.1 * a.abs().max()


def test_a_broken_matrix_is_named() -> None:
    decoder = tiny_models.decoder()
    with torch.no_grad():
        decoder.get_submodule("layers.1.attention.query").weight.zero_()
    with pytest.raises(CompressionError, match=r"layers\.1\.attention\.query .*is all zero"):
        install(decoder, WHOLE)


@pytest.mark.parametrize("change", [{"activations_from": 1.5}, {"activations": "bfloat16"}, {"embedding": "bfloat16"}])
def test_configs_that_cannot_be_deployed_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(WHOLE, **change)


def test_missing_and_misshapen_tensors_are_named() -> None:
    tensors = packed_tensors(simulated(WHOLE))
    for broken, message in (
        ({k: v for k, v in tensors.items() if k != "norm.weight"}, "norm.weight"),
        ({k: v for k, v in tensors.items() if k != "layers.0.attention.query.weight.scale"}, "query.weight.scale"),
        (tensors | {"layers.0.attention.query.weight": np.zeros((3, 8), np.uint8)}, "query holds codes"),
        (tensors | {"layers.0.attention.query.weight": np.zeros((32, 8), np.float32)}, "query holds codes float32"),
        (tensors | {"unknown": np.zeros(3, np.float32)}, "unknown"),
    ):
        with pytest.raises(RuntimeError, match=message):
            build_decoder(tiny_models.CONFIG, WHOLE.numerics, broken)


def test_codes_are_packed_low_bits_first() -> None:
    assert pack_codes(np.array([[1, 2, 3, 0, 3, 3, 0, 1]], np.uint8)).tolist() == [[0b00111001, 0b01001111]]
    codes = np.random.default_rng(0).integers(4, size=(7, 24), dtype=np.uint8)
    assert np.array_equal(unpack_codes(pack_codes(codes)), codes)
    with pytest.raises(CompressionError, match="gate has 6 inputs"):
        pack_codes(np.zeros((2, 6), np.uint8), "gate")


def test_every_linear_of_the_layers_and_no_other_is_simulated() -> None:
    decoder = tiny_models.decoder()
    names = set(layer_linears(decoder))
    assert len(names) == 3 * 3 + 2 * 4 + 1 * 2
    install(decoder, WHOLE)
    assert {name for name, module in decoder.named_modules() if isinstance(module, FakeQuantLinear)} == names
