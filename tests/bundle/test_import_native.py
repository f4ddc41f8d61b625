"""Imported open-weight models run natively in every weight format, and choose the tokens of the torch engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch
from native_bundles import write_random_adapter

from openafm.bundle import Bundle
from openafm.bundle.hugging_face import Conversion, import_hugging_face, writing
from openafm.compression.native_numerics import Weights
from openafm.compression.numerics import MatrixNumerics, Numerics, WeightNumerics
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
)
from openafm.runtime.agreement import compare_choices
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import kernel_names, native_library
from openafm.runtime.native.support import unsupported

# With integer products all bits are equal. Sums of bfloat16 products differ in their last bits, which may decide a tie.
LEAST_SHARES, LARGEST_MARGIN = {"int4": 0.999, "int8": 0.999, "bf16": 0.998}, 0.01
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 32}),
    "qwen2, biases and windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1}),
    "llama, llama3 rotary": ("llama", {}),
    "llama, linear rotary and biases": (
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        },
    ),
    "qwen2, yarn rotary": ("qwen2", {"rope_parameters": checkpoints.YARN_SCALING}),
    "smollm3, without positions in a layer": ("smollm3", {}),
}


def imported(folder: Path, variant: str, weights: Weights) -> Bundle:
    family, changes = VARIANTS[variant]
    checkpoints.save(folder / "model", family, **changes)
    return import_hugging_face(folder / "model", folder / "bundle", conversion=Conversion(weights=weights)).bundle


def texts(bundle: Bundle, count: int, length: int) -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [draw.integers(0, bundle.config.vocab_size, length).tolist() for _ in range(count)]


@pytest.mark.parametrize("weights", ["int4", "int8", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_choices_match_torch_on_imported_models(variant: str, weights: Weights, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    bundle = imported(tmp_path, variant, weights)
    assert unsupported(bundle) is None
    found = compare_choices(TorchEngine.open(bundle), NativeEngine(bundle, num_threads=1), texts(bundle, 3, 200))
    assert found.num_positions == 600
    assert found.share >= LEAST_SHARES[weights]
    assert found.largest_margin < LARGEST_MARGIN


@pytest.mark.parametrize("variant", ["qwen2, biases and windows", "smollm3, without positions in a layer"])
def test_a_token_of_an_imported_model_does_not_depend_on_its_step(variant: str, tmp_path: Path) -> None:
    """Also across pages and the starts of windows, with every kernel set."""
    bundle = imported(tmp_path, variant, "int4")
    (tokens,) = texts(bundle, 1, 150)
    for kernels in kernel_names(native_library()):
        engine = NativeEngine(bundle, num_threads=1, kernels=kernels)
        whole, alone = engine.new_sequence(), engine.new_sequence()
        (expected,) = engine.step([(whole, tokens)], "all")
        found = np.concatenate([engine.step([(alone, [token])])[0].reshape(1, -1) for token in tokens])
        np.testing.assert_array_equal(found, expected)


def test_an_adapter_on_a_4_bit_base_computes_the_same_in_both_engines(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    bundle = imported(tmp_path, "qwen2, biases and windows", "int4")
    adapter = write_random_adapter(tmp_path / "a.fmadapter", bundle, seed=1)
    (tokens,) = texts(bundle, 1, 60)
    without, native, peer = (
        engine.step([(engine.new_sequence(), tokens)], "all")[0]
        for engine in (
            NativeEngine(bundle, num_threads=1),
            NativeEngine(bundle, adapter, num_threads=1),
            TorchEngine.open(bundle, adapter),
        )
    )
    assert np.abs(native - without).max() > 0.1
    assert np.abs(native - peer).max() < 1e-3


# Between integer products, a last bit of a bfloat16 sum may decide a rounding, and this a choice that is nearly a tie.
@pytest.mark.parametrize(("attention", "least_share"), [("int4_symmetric_group64", 0.999), ("bfloat16", 0.98)])
def test_each_matrix_may_have_its_own_format(
    attention: WeightNumerics, least_share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    formats: dict[str, WeightNumerics] = {
        "layers.0.": "int8_per_row",
        "layers.1.attention.": attention,
        "layers.1.": "int4_symmetric_group32",
        "layers.2.feed_forward.down": "int8_group32",
    }
    exceptions = tuple(MatrixNumerics(prefix=prefix, weights=weights) for prefix, weights in formats.items())
    mixed = replace(NATIVE, embedding="int8_per_row", exceptions=exceptions)
    monkeypatch.setattr(writing, "numerics_of", lambda *_: mixed)
    bundle = imported(tmp_path, "llama, llama3 rotary", "int4")
    expected = "BF16" if attention == "bfloat16" else "U8"
    assert bundle.stored_tensors["layers.1.attention.query.weight"].dtype == expected
    assert bundle.stored_tensors["layers.0.attention.query.weight"].dtype == "I8"
    found = compare_choices(TorchEngine.open(bundle), NativeEngine(bundle, num_threads=1), texts(bundle, 2, 200))
    assert found.share >= least_share
    assert found.largest_margin < 2 * LARGEST_MARGIN


def test_codes_of_keys_alone_multiply_rounded_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    keys = MatrixNumerics(prefix="layers.0.attention.keys_values.key", weights="int8_per_row")
    mixed = replace(NATIVE, weights="bfloat16", embedding="bfloat16", exceptions=(keys,))
    monkeypatch.setattr(writing, "numerics_of", lambda *_: mixed)
    bundle = imported(tmp_path, "llama, llama3 rotary", "int4")
    found = compare_choices(TorchEngine.open(bundle), NativeEngine(bundle, num_threads=1), texts(bundle, 1, 50))
    assert found.share >= 0.98


LAYER = LayerConfig(
    attention=AttentionConfig(
        num_heads=2, head_dim=16, keys_values=OwnKeysValuesConfig(num_heads=1), position=RotaryConfig(), qk_norm=None
    ),
    feed_forward=DenseFeedForwardConfig(hidden_dim=64),
)
GELU = replace(LAYER, feed_forward=DenseFeedForwardConfig(hidden_dim=64, activation="gelu"))
OTHER_HEADS = replace(LAYER, attention=replace(LAYER.attention, num_heads=4))
LONG_ROWS = replace(LAYER, feed_forward=DenseFeedForwardConfig(hidden_dim=50_016))
NATIVE = Numerics(weights="int4_group32", embedding="int4_group32", activations="int8_per_token", kv="int8_per_token_head")


@pytest.mark.parametrize(
    ("layers", "numerics", "reason"),
    [
        ((LAYER, LAYER), NATIVE, None),
        ((LONG_ROWS,), NATIVE, None),
        ((LONG_ROWS,), replace(NATIVE, weights="int2_balanced"), "has 50016 inputs, not a multiple of 32 up to 44,032"),
        ((LAYER,), replace(NATIVE, weights="int4_group64"), "has 32 inputs, not a multiple of 64"),
        ((GELU,), NATIVE, "is gelu, not silu"),
        ((LAYER, OTHER_HEADS), NATIVE, "differ in the shape of their heads"),
        ((LAYER,), replace(NATIVE, kv="float32"), "keys and values are float32"),
        ((LAYER,), replace(NATIVE, weights="astc_6x6"), "weights are astc_6x6"),
        ((LAYER,), replace(NATIVE, weights="bfloat16", embedding="bfloat16"), "it computes in int8_per_token"),
    ],
)
def test_what_cannot_run_natively_has_a_reason(
    layers: tuple[LayerConfig, ...], numerics: Numerics, reason: str | None
) -> None:
    config = DecoderConfig(vocab_size=64, dim=32, layers=layers)
    found = unsupported(SimpleNamespace(config=config, numerics=numerics))  # type: ignore[arg-type]
    assert found is None if reason is None else reason in (found or "")
