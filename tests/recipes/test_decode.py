"""Decoded bundles: the products of the compressed model in full precision, adapter included; they train again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_sources import QUICK, write_source

from openafm.bundle import Bundle, bundle_place, open_bundle
from openafm.bundle.decoder import load_decoder, put_on
from openafm.cli.main import run
from openafm.compression.deploy import build_decoder
from openafm.compression.errors import UncompressibleModelError
from openafm.compression.numerics import FULL_PRECISION
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.decode import decode
from openafm.recipes.compression.formats import compression_config
from openafm.recipes.prepare import prepare_run

TOKENS_BS = torch.arange(40).reshape(2, 20) % 17


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return write_source(bundle_place("tiny"), hidden_dim=64)


def logits(bundle: Bundle) -> torch.Tensor:
    with torch.no_grad():
        return load_decoder(bundle, adapter=bundle.recovery_adapter)(TOKENS_BS)


@pytest.mark.parametrize("format", ["int2", "int4", "int8", "astc"])
def test_a_decoded_bundle_multiplies_by_the_same_matrices(source: Bundle, format: str) -> None:
    changes = QUICK if format == "astc" else {"calibration": "null"} if format == "int4" else {}
    compress(source, compression_config(format, changes), "small")
    small = open_bundle("small")
    decoded = decode(small, "again")
    assert decoded.numerics == FULL_PRECISION
    assert decoded.recovery_adapter is None
    unrounded = replace(small.numerics, activations="float32", kv="float32")
    exact = build_decoder(small.config, unrounded, small.tensors())
    if small.recovery_adapter is not None:
        put_on(exact, small.recovery_adapter)
    with torch.no_grad():
        torch.testing.assert_close(logits(decoded), exact(TOKENS_BS), atol=2e-5, rtol=1e-5)
    assert (logits(decoded) - logits(source)).abs().max() > 1e-4, "the values are those of the compressed weights"


def test_the_recovery_adapter_is_merged(source: Bundle) -> None:
    compress(source, compression_config("astc", QUICK), "small")
    small = open_bundle("small")
    assert small.recovery_adapter is not None
    name = next(key for key in small.recovery_adapter.weights() if key.endswith("lora.a")).removesuffix(".lora.a")
    weights, scale = small.recovery_adapter.weights(), small.recovery_adapter.config.scale
    added = scale * weights[f"{name}.lora.b"].astype("f8") @ weights[f"{name}.lora.a"].astype("f8")
    base = load_decoder(small).get_parameter(f"{name}.weight").detach().double().numpy()
    made = decode(small, "again").tensors()[f"{name}.weight"]
    np.testing.assert_allclose(made, base + added, atol=1e-5)
    assert np.abs(added).max() > 1e-3


def test_a_decoded_bundle_starts_a_training(source: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    compress(source, compression_config("int2", {}), "small")
    assert run(["compress", "decode", "small"]) == 0
    assert "small-decoded" in capsys.readouterr().out
    config = prepare_run("on_device.sft", "micro", start="small-decoded")
    assert config.trainer.model == source.config
    assert config.trainer.from_identity == open_bundle("small-decoded").identity


def test_what_cannot_be_decoded_is_refused(source: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UncompressibleModelError, match="tiny is not compressed"):
        decode(source, "again")
    compress(source, compression_config("int2", {}), "small")
    assert run(["compress", "decode", "small", "--name", "small"]) == 2
    assert "must not be overwritten" in capsys.readouterr().err
    with pytest.raises(UncompressibleModelError, match="openafm compress decode small"):
        prepare_run("on_device.sft", "micro", start="small")
