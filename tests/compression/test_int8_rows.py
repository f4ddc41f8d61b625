"""Vision weights in 8 bits: their error, their size, and bundles that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_bundles import write_multimodal_bundle

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.errors import BundleError
from openafm.compression.deploy import build_decoder
from openafm.compression.group_linear import GroupLinear
from openafm.compression.int8_rows import is_vision, with_vision_for_products, with_vision_in_8_bits, with_vision_in_float
from openafm.compression.numerics import FULL_PRECISION, Numerics
from openafm.models.decoder import Decoder
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.sizes import windowed_encoder
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import compression_config
from openafm.runtime.engines.selection import vision_bytes
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_multimodal_bundle(tmp_path_factory.mktemp("bundles") / "seeing")


def test_rows_are_rounded_to_half_a_step(bundle: Bundle) -> None:
    tensors = bundle.tensors() | {"vision.patch.weight": np.zeros((3, 4), np.float32)}
    rounded, numerics = with_vision_in_8_bits(tensors, FULL_PRECISION)
    assert numerics == Numerics(vision="int8_per_row_and_token")
    decoded = with_vision_in_float(rounded, numerics)
    assert decoded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        if f"{name}.scale" in rounded:
            assert rounded[name].dtype == np.int8
            assert (np.abs(decoded[name] - tensor) <= 0.5001 * rounded[f"{name}.scale"][:, None]).all()
        else:
            assert decoded[name] is tensor
    assert {name for name in rounded if name.endswith(".scale")} == {
        f"{name}.scale"
        for name in tensors
        if name.startswith(("vision.", "adapter.")) and tensors[name].ndim == 2 and name.endswith(".weight")
    }


def test_a_text_models_tensors_stay() -> None:
    tensors = {"layers.0.up.weight": np.ones((2, 2), np.float32)}
    assert with_vision_in_8_bits(tensors, FULL_PRECISION) == (tensors, FULL_PRECISION)


@pytest.fixture(scope="module")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose matrices have inputs in blocks of 32, but those of the second one of each feed-forward."""
    vision = windowed_encoder(
        image_side=16, patch_side=2, window_side=4, dim=32, num_layers=2, num_heads=2, mlp_dim=48, num_global_layers=1
    )
    return write_multimodal_bundle(tmp_path_factory.mktemp("bundles") / "wide", vision=vision)


VIEWS = np.random.default_rng(0).integers(256, size=(2, 16, 16, 3), dtype=np.uint8)


def seen(decoder: Decoder) -> np.ndarray:
    assert isinstance(decoder, MultimodalDecoder)
    with torch.no_grad():
        embeddings: np.ndarray = decoder.encode_images(torch.tensor(VIEWS), 4).numpy()
    return embeddings


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_both_engines_round_the_inputs_of_a_compressed_bundle(
    wide_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    small = open_bundle(compress(wide_bundle, compression_config("int2"), "small").bundle)
    decoder, exact = load_decoder(small), seen(load_decoder(wide_bundle))
    rounded = {name for name, module in decoder.named_modules() if isinstance(module, GroupLinear)}
    names = ("query_key_value", "output", "up")
    layers = ("vision.layers.0", "vision.layers.1", "adapter.layer")
    others = {"adapter.projection", "adapter.convolution.taps"}
    assert rounded >= {f"{layer}.{name}" for layer in layers for name in names} | others
    assert not any(name.endswith(".down") or name == "vision.patch" for name in rounded)
    found = seen(decoder)
    unrounded = seen(build_decoder(small.config, replace(small.numerics, vision="int8_per_row"), small.tensors()))
    native = NativeEngine(small, num_threads=1).encode_views(VIEWS, 4)
    assert difference(unrounded, exact) < 0.02
    assert 1e-3 < difference(found, unrounded) < 0.03  # inputs are rounded, and little is lost
    assert difference(native, found) < 0.5 * difference(found, unrounded)


def in_8_bits(bundle: Bundle, path: Path, changed: Mapping[str, np.ndarray] | None = None, **numerics: Any) -> Bundle:
    """Return a bundle with its vision in 8 bits, with changed tensors and numerics."""
    tensors, found = with_vision_in_8_bits(bundle.tensors(), FULL_PRECISION)
    return write_bundle(
        path,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=tensors | dict(changed or {}),
        numerics=replace(found, **numerics),
    )


def test_the_torch_engine_rounds_inputs_in_bfloat16(wide_bundle: Bundle, tmp_path: Path) -> None:
    small = in_8_bits(wide_bundle, tmp_path / "small", activations="bfloat16", kv="bfloat16")
    found = TorchEngine.open(small).encode_views(VIEWS, 4)
    assert difference(found, seen(load_decoder(wide_bundle))) < 0.05


def test_older_bundles_are_decoded(wide_bundle: Bundle, tmp_path: Path) -> None:
    older = in_8_bits(wide_bundle, tmp_path / "older", vision="int8_per_row")
    decoder = load_decoder(older)
    assert not any(isinstance(module, GroupLinear) for module in decoder.modules())
    native = NativeEngine(older, num_threads=1).encode_views(VIEWS, 4)
    assert np.abs(native - seen(decoder)).max() < 2e-5 * np.abs(native).max()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("up.weight.scale", (1,), r"codes \(48, 32\) and scales \(1,\)"),
        ("up.weight", (48 * 32,), r"codes \(1536,\) and scales \(48,\)"),
        ("up.bias", (1,), r"up has weights \(48, 32\) and a bias \(1,\)"),
        ("down.weight", (8, 48), r"codes \(8, 48\) and scales \(32,\)"),
        ("mlp_norm.weight", (1,), r"mlp_norm has weights \(1,\)"),
        ("attention_norm.bias", (31,), r"a bias \(31,\), expected \(32,\)"),
    ],
)
def test_the_native_engine_reads_no_array_beyond_its_end(
    wide_bundle: Bundle, tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    whole = f"vision.layers.0.{name}"
    stored, _ = with_vision_in_8_bits(wide_bundle.tensors(), FULL_PRECISION)
    damaged = in_8_bits(wide_bundle, tmp_path / "damaged", {whole: np.zeros(shape, stored[whole].dtype)})
    with pytest.raises(BundleError, match=message):
        NativeEngine(damaged, num_threads=1).encode_views(VIEWS, 4)


def test_the_native_engine_counts_the_bytes_that_it_holds(wide_bundle: Bundle, tmp_path: Path) -> None:
    small = in_8_bits(wide_bundle, tmp_path / "small")
    held = with_vision_for_products(small.tensors(), small.numerics)
    assert vision_bytes(small, "native") == sum(array.nbytes for name, array in held.items() if is_vision(name)) + sum(
        scale.data.nbytes for name, scale in small.stored_tensors.items() if is_vision(name) and name not in held
    )


def test_a_compressed_bundle_sees_as_the_original(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    small = open_bundle(compress(bundle, compression_config("int2"), "small").bundle)
    assert small.numerics.vision == "int8_per_row_and_token"
    stored = [
        sum(t.data.nbytes for name, t in b.stored_tensors.items() if name.startswith("vision.layers"))
        for b in (small, bundle)
    ]
    assert stored[0] < 0.4 * stored[1]
    views = np.random.default_rng(0).integers(256, size=(2, 16, 16, 3), dtype=np.uint8)
    original, decoded = load_decoder(bundle), load_decoder(small)
    assert isinstance(original, MultimodalDecoder)
    assert isinstance(decoded, MultimodalDecoder)
    with torch.no_grad():
        exact, found = (model.encode_images(torch.tensor(views), 4).numpy() for model in (original, decoded))
    assert np.linalg.norm(found - exact) < 0.02 * np.linalg.norm(exact)
    native = NativeEngine(small, num_threads=1).encode_views(views, 4)
    assert np.abs(native - found).max() < 2e-5 * np.abs(found).max()
