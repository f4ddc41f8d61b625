"""Post-training compression: formats give working bundles, invalid input is refused by name, the source is unchanged."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_sources import QUICK, write_source

from openafm.adapters.singular import SingularRankError
from openafm.bundle import Bundle, BundleTamperedError, bundle_place, open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.bundle.describe import stored_bits
from openafm.cli.main import run
from openafm.compression.errors import CompressionError, UncompressibleModelError
from openafm.compression.grouped import FORMATS as GROUPS
from openafm.compression.grouped import GroupedMatrix
from openafm.compression.post_training import calibration
from openafm.core.config import ConfigError, UnknownKeyError, override
from openafm.core.errors import UsageError
from openafm.data.synthetic import SyntheticConfig
from openafm.models.accounting import num_parameters
from openafm.recipes.compression.compress import CompressResult, compress
from openafm.recipes.compression.formats import AstcCompression, compression_config, corpus_batches
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.runtime.native.support import unsupported

CHANGES = {"astc": QUICK, "int2": {}}
WITHOUT = {key: value for key, value in QUICK.items() if not key.startswith("adapter")} | {"adapter": "null"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def source() -> Bundle:
    return write_source(bundle_place("tiny"))


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """A source, its ASTC bundles with and without an adapter, and the results of their compression."""

    source: Bundle
    files: dict[str, bytes]
    results: dict[str, CompressResult]


@pytest.fixture(scope="module")
def compressed_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compressed]:
    folder = tmp_path_factory.mktemp("compressed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAFM_HOME", str(folder))
        source = write_source(bundle_place("tiny"))
        before = files(source)
        results = {
            name: compress(source, compression_config("astc", changes), name)
            for name, changes in (("with", QUICK), ("without", WITHOUT))
        }
    return folder, Compressed(source=source, files=before, results=results)


@pytest.fixture
def astc(compressed_home: tuple[Path, Compressed], home: Path) -> Compressed:
    """The bundles "tiny", "with" and "without" in the home of this test."""
    shutil.copytree(compressed_home[0], home)
    return replace(compressed_home[1], source=open_bundle("tiny"))


def files(bundle: Bundle) -> dict[str, bytes]:
    return {str(file.relative_to(bundle.path)): file.read_bytes() for file in bundle.path.rglob("*") if file.is_file()}


def logits(bundle: Bundle, tokens_BS: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return load_decoder(bundle, adapter=bundle.recovery_adapter)(tokens_BS)


def error(made: Bundle, source: Bundle, tokens_BS: torch.Tensor | None = None) -> float:
    """Return the relative error of the logits."""
    tokens_BS = torch.arange(40).reshape(2, 20) if tokens_BS is None else tokens_BS
    expected = logits(source, tokens_BS)
    return float((logits(made, tokens_BS) - expected).norm() / expected.norm())


def check_compressed(made: Bundle, source: Bundle, result: CompressResult, most: float) -> None:
    made.verify()
    assert made.signature == result.signature != source.signature == result.source_signature
    assert made.numerics.is_compressed
    assert made.numerics.embedding == "int4_group32"
    assert made.numerics.kv == "int8_per_token_head"
    assert 0 < error(made, source) < most
    assert result.bits_per_weight == stored_bits(made).total
    assert result.bytes < result.source_bytes / 3
    bits = f"{result.bits_per_weight:.2f}, of them the adapter's {result.adapter_bits_per_weight:.2f}"
    for text in ("tiny", source.signature, f"`{result.format}`", bits, "> # tiny"):
        assert text in made.card()


@pytest.mark.long
def test_an_astc_bundle_is_signed_and_close_to_its_source(astc: Compressed) -> None:
    check_compressed(open_bundle("with"), astc.source, astc.results["with"], 0.35)
    assert files(astc.source) == astc.files


def test_an_int2_bundle_is_signed_and_close_to_its_source(source: Bundle) -> None:
    before = files(source)
    result = compress(source, compression_config("int2"), "small")
    check_compressed(open_bundle("small"), source, result, 0.6)
    assert files(source) == before


def test_astc_moves_singular_vectors_into_the_adapter(astc: Compressed) -> None:
    made = open_bundle("with")
    assert made.recovery_adapter is not None
    made.recovery_adapter.check_base(made.signature)
    made.recovery_adapter.verify()
    weights = made.recovery_adapter.weights()
    expected = 16 * sum(array.size for array in weights.values()) / num_parameters(made.config)
    assert astc.results["with"].adapter_bits_per_weight == pytest.approx(expected)
    assert astc.results["without"].adapter_bits_per_weight == 0
    assert open_bundle("without").recovery_adapter is None
    assert error(made, astc.source) < error(open_bundle("without"), astc.source)


@pytest.mark.slow
def test_calibration_lowers_the_error_and_is_reproducible(astc: Compressed) -> None:
    config = compression_config("astc", WITHOUT)
    assert isinstance(config, AstcCompression)
    assert compress(astc.source, config, "again").signature == astc.results["without"].signature
    compress(astc.source, replace(config, calibration=None), "plain")
    held_out = SyntheticConfig(split="held_out", languages={"en": 1.0})
    tokens_BS = torch.from_numpy(corpus_batches(astc.source, held_out, 8, 512)[0].tokens_BS)
    assert error(open_bundle("without"), astc.source, tokens_BS) < error(open_bundle("plain"), astc.source, tokens_BS)


def test_the_literal_recipe_takes_no_calibration(source: Bundle) -> None:
    literal = {"blocks": '{"type": "LiteralAstcConfig"}', "adapter.rank": "4"}
    with pytest.raises(ConfigError, match="set calibration to null"):
        compression_config("astc", literal)
    compress(source, compression_config("astc", literal | {"calibration": "null"}), "literal")
    assert error(open_bundle("literal"), source) < 0.9


@pytest.mark.long
@pytest.mark.usefixtures("astc")
def test_a_recovery_adapter_starts_from_the_singular_vectors(tmp_path: Path) -> None:
    corpus = {"type": "SyntheticCorpusConfig", "name": "built_in", "learn": "answers", "synthetic": {}, "num_examples": 40}
    changes = {
        "corpora": json.dumps([corpus]),
        "trainer.data.sources": '[{"name": "built_in", "path": "built_in"}]',
        "trainer.budget": '{"type": "StepBudget", "num_steps": 2}',
        "trainer.data.rows_per_step": "1",
    }
    recipe = prepare_run("on_device.recovery_adapter", "micro", start="with", changes=changes)
    run_recipe(recipe, tmp_path / "run", "recovered")
    before, after = open_bundle("with"), open_bundle("recovered")
    assert after.signature == before.signature
    assert before.recovery_adapter is not None
    assert after.recovery_adapter is not None
    assert after.recovery_adapter.config == before.recovery_adapter.config
    old, new = before.recovery_adapter.weights(), after.recovery_adapter.weights()
    assert any((new[name] != old[name]).any() for name in old)
    assert all(np.abs(new[name] - old[name]).max() < 0.1 for name in old)


def test_int2_has_four_levels_per_matrix(source: Bundle) -> None:
    compress(source, compression_config("int2"), "two")
    made = open_bundle("two")
    decoder = load_decoder(made)
    levels = decoder.get_buffer("layers.0.feed_forward.gate.levels")
    assert set(levels.unique().tolist()) == {-1.5, -0.5, 0.5, 1.5}


@pytest.mark.parametrize("format", ["astc", "int2"])
def test_a_compressed_bundle_is_refused(source: Bundle, format: str) -> None:
    compress(source, compression_config("int2"), "two")
    with pytest.raises(UncompressibleModelError, match="two is already compressed"):
        compress(open_bundle("two"), compression_config(format), "again")
    assert not bundle_place("again").exists()


def test_the_source_is_not_overwritten(source: Bundle) -> None:
    before = files(source)
    with pytest.raises(UsageError, match="another --name"):
        compress(source, compression_config("int2"), "tiny")
    with pytest.raises(UsageError):
        compress(source, compression_config("int2"), "../tiny")
    assert files(source) == before


def test_unknown_formats_and_options() -> None:
    with pytest.raises(UsageError, match="astc, int2"):
        compression_config("gguf")
    with pytest.raises(UnknownKeyError, match="adapter"):
        compression_config("int2", {"adapter.rank": "4"})
    with pytest.raises(ConfigError, match="not 'held_out'"):
        override(compression_config("astc"), {"calibration.corpus.split": "held_out"})


@pytest.mark.long
@pytest.mark.parametrize(
    ("format", "changes", "expected"),
    [
        ("astc", QUICK, CompressionError),
        ("astc", {"calibration": "null", "adapter": "null"}, CompressionError),
        ("int2", {}, CompressionError),
    ],
)
def test_an_all_zero_matrix_is_named(
    tmp_path: Path, format: str, changes: dict[str, str], expected: type[Exception]
) -> None:
    source = write_source(tmp_path / "zero", {"layers.1.attention.query.weight": 0.0})
    before = files(source)
    with pytest.raises(expected, match=r"layers\.1\.attention\.query"):
        compress(source, compression_config(format, changes), "x")
    assert files(source) == before
    assert not bundle_place("x").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(source: Bundle, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles refuse such weights, so the test injects them in memory."""
    broken = dict(source.tensors())
    broken["layers.0.feed_forward.up.weight"] = np.full_like(broken["layers.0.feed_forward.up.weight"], value)
    monkeypatch.setattr(source, "tensors", lambda: broken)
    for format in ("astc", "int2"):
        with pytest.raises(Exception, match=r"layers\.0\.feed_forward\.up") as caught:
            compress(source, compression_config(format, CHANGES[format]), "x")
        assert type(caught.value).__name__ in ("NonFiniteWeightError", "CompressionError")
        with pytest.raises(CompressionError, match=r"layers\.0\.feed_forward\.up"):
            compress(source, compression_config("astc", {"adapter": "null", "calibration": "null"}), "x")


def test_a_matrix_too_small_to_block_is_named(tmp_path: Path) -> None:
    source = write_source(tmp_path / "narrow", head_dim=4)
    with pytest.raises(CompressionError, match=r"'layers\.0\.attention\..*too small to block"):
        compress(source, compression_config("astc", QUICK), "x")
    with pytest.raises(SingularRankError, match=r"layers\.0\.attention.*got 32"):
        compress(source, compression_config("astc"), "x")


def test_a_damaged_source_is_refused(source: Bundle) -> None:
    file = source.path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(BundleTamperedError):
        compress(open_bundle("tiny"), compression_config("int2"), "x")


def test_out_of_memory_in_calibration_is_reported(source: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("no more")

    before = files(source)
    monkeypatch.setattr(calibration, "_context", exhausted)
    with pytest.raises(CompressionError, match="does not fit into memory"):
        compress(source, compression_config("astc", QUICK), "x")
    assert files(source) == before
    assert not bundle_place("x").exists()


@pytest.mark.slow
def test_parallel_encoding_gives_the_same_bundle(source: Bundle) -> None:
    plain = {"calibration": "null", "adapter": "null"}
    one = compress(source, compression_config("astc", plain), "one")
    two = compress(source, compression_config("astc", plain | {"num_workers": "2"}), "two")
    assert one.signature == two.signature
    assert one.padding_bits_per_weight > 0


@pytest.mark.long
@pytest.mark.parametrize(("format", "most"), [("int4", 0.3), ("int8", 0.05)])
def test_groups_give_bundles_for_the_native_engine(format: str, most: float, home: Path) -> None:
    source = write_source(bundle_place("wide"), hidden_dim=96)
    changes = {"calibration.num_rows": "4", "calibration.row_tokens": "256"} if format == "int4" else {}
    result = compress(source, compression_config(format, changes), "made")
    made = open_bundle("made")
    check_compressed_size(made, result)
    assert unsupported(made) is None
    assert 0 < error(made, source) < most
    if format == "int4":
        compress(source, compression_config(format, {"calibration": "null"}), "nearest")
        tokens_BS = torch.from_numpy(np.concatenate([b.tokens_BS for b in corpus_batches(source, SyntheticConfig(), 8, 64)]))
        assert error(made, source, tokens_BS) < error(open_bundle("nearest"), source, tokens_BS)
        assert run(["compress", "wide", "--format", "int4", "--method", "hqq", "--name", "hqq"]) == 0
        assert "by HQQ" in open_bundle("hqq").card()
        assert outlier_error(open_bundle("hqq"), source) < 0.99 * outlier_error(open_bundle("nearest"), source)


def outlier_error(made: Bundle, source: Bundle) -> float:
    """Sum of |w - w~|^0.7 over the matrices of the layers, the objective of HQQ."""
    found, total = made.tensors(), 0.0
    for name, weight_RC in source.tensors().items():
        if name.startswith("layers.") and weight_RC.ndim == 2:
            format = GROUPS[made.numerics.weights_of(name.removesuffix(".weight"))]
            rounded = GroupedMatrix.from_tensors(name, found, format, (len(weight_RC), weight_RC.shape[1]))
            total += float((np.abs(rounded.dequantize() - weight_RC) ** 0.7).sum())
    return total


def check_compressed_size(made: Bundle, result: CompressResult) -> None:
    made.verify()
    assert result.bits_per_weight == stored_bits(made).total
    assert result.bytes < result.source_bytes / 3
    assert f"format `{result.format}`" in made.card()


def test_groups_need_widths_of_32(source: Bundle) -> None:
    with pytest.raises(CompressionError, match=r"feed_forward.down has 48 inputs"):
        compress(source, compression_config("int4"), "made")
