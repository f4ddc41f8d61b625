"""Vision weights in 8 bits: their error, their size, and bundles that hold them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_bundles import write_multimodal_bundle

from openafm.bundle import Bundle, open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.int8_rows import with_vision_in_8_bits, with_vision_in_float
from openafm.compression.numerics import FULL_PRECISION, Numerics
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import compression_config
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
