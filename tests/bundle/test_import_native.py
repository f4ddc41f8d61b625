"""Imported open-weight models run natively in every weight format, and choose the tokens of the torch engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch

from openafm.bundle import Bundle
from openafm.bundle.hugging_face import import_hugging_face
from openafm.compression.native_numerics import Weights
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
    "smollm3, without positions in a layer": ("smollm3", {}),
}


def imported(folder: Path, variant: str, weights: Weights) -> Bundle:
    family, changes = VARIANTS[variant]
    checkpoints.save(folder / "model", family, **changes)
    return import_hugging_face(folder / "model", folder / "bundle", weights=weights).bundle


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
