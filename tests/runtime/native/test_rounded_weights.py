"""Engines that round the weights of a full-precision bundle in memory, at their start and at every update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_bundles import write_wide_bundle

from openafm.bundle import Bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.grouped import FORMATS
from openafm.compression.native_numerics import Weights, native_numerics
from openafm.compression.numerics import Numerics
from openafm.runtime.native.engine import NativeEngine

TOKENS = [300, 17, 42, 8, 250, 99, 3]
PER_ROW = Numerics(weights="int8_per_row", embedding="int8_group32", activations="int8_per_token", kv="int8_per_token_head")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_wide_bundle(tmp_path_factory.mktemp("bundles") / "wide")


def logits(engine: NativeEngine) -> np.ndarray:
    return engine.step([(engine.new_sequence(), TOKENS)], "all")[0]


def compressed(path: Path, bundle: Bundle, numerics: Numerics, tensors: dict[str, np.ndarray]) -> Bundle:
    """Write a bundle with rounded weights."""
    stored: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            stored[name] = tensor
            continue
        format = numerics.embedding if name == "embedding" else numerics.weights_of(name.removesuffix(".weight"))
        stored |= FORMATS[format].quantize(tensor, name).tensors(name)
    return write_bundle(
        path,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=stored,
        numerics=numerics,
    )


@pytest.mark.parametrize("format", ["int8", "int4", None])
def test_rounded_engines_compute_what_a_compressed_bundle_does(
    tmp_path: Path, bundle: Bundle, format: Weights | None
) -> None:
    numerics = PER_ROW if format is None else native_numerics(bundle.config, format)
    engine = NativeEngine(bundle, num_threads=1, numerics=numerics)
    before = {name: np.array(tensor) for name, tensor in bundle.tensors().items()}
    start = compressed(tmp_path / "start", bundle, numerics, before)
    np.testing.assert_array_equal(logits(engine), logits(NativeEngine(start, num_threads=1)))

    generator = torch.Generator().manual_seed(1)
    after = {
        name: tensor.detach() + 0.02 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_decoder(bundle).state_dict().items()
    }
    engine.update_weights(after, 1)
    expected = compressed(tmp_path / "new", bundle, numerics, {name: each.numpy() for name, each in after.items()})
    np.testing.assert_array_equal(logits(engine), logits(NativeEngine(expected, num_threads=1)))
    full = NativeEngine(bundle, num_threads=1)
    full.update_weights(after, 1)
    assert 1e-4 < np.abs(logits(engine) - logits(full)).mean() < 1
    assert engine.signature != full.signature
