"""`import hf --weights`: formats by width, streamed parts, kills and wrong inputs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from openafm.bundle import Bundle, BundleError, open_bundle
from openafm.bundle.hugging_face import Calibration, Conversion, HuggingFaceError, compressed, import_hugging_face
from openafm.bundle.tensor_file import read_tensors, release_pages
from openafm.compression.grouped import FORMATS, GroupedMatrix
from openafm.compression.numerics import MatrixNumerics
from openafm.compression.post_training.half_quadratic import HalfQuadraticRange
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import compression_config
from openafm.runtime.engines.torch_engine import TorchEngine


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    checkpoints.save(folder, "qwen3", dtype=torch.bfloat16)
    return folder


def test_formats_follow_the_widths_of_the_matrices(qwen3: Path, tmp_path: Path) -> None:
    bundle = import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="int4")).bundle
    bundle.verify()
    assert bundle.numerics.weights == "int4_group64"
    assert MatrixNumerics(prefix="layers.0.feed_forward.down", weights="int4_group32") in bundle.numerics.exceptions
    assert bundle.numerics.weights_of("layers.3.attention.query") == "int4_group64"
    assert bundle.numerics.weights_of("layers.3.feed_forward.down") == "int4_group32"
    tensors, original = bundle.tensors(), read_tensors(qwen3 / "model.safetensors")
    for name, theirs, format in (
        ("layers.0.attention.query.weight", "model.layers.0.self_attn.q_proj.weight", "int4_group64"),
        ("output.weight", "lm_head.weight", "int4_group32"),
    ):
        exact = original[theirs].array()
        matrix = GroupedMatrix.from_tensors(name, tensors, FORMATS[format], exact.shape)
        assert np.linalg.norm(matrix.dequantize() - exact) < 0.12 * np.linalg.norm(exact)


def test_bfloat16_weights_are_copied_exactly(qwen3: Path, tmp_path: Path) -> None:
    bundle = import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="bf16")).bundle
    original = read_tensors(qwen3 / "model.safetensors")
    for name, theirs in (
        ("embedding", "model.embed_tokens.weight"),
        ("layers.1.feed_forward.up.weight", "model.layers.1.mlp.up_proj.weight"),
    ):
        np.testing.assert_array_equal(bundle.stored_tensors[name].data, original[theirs].data)


def test_an_import_that_is_killed_continues(qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete parts are not computed again, the bundle appears only whole, and it is bit-identical."""
    expected = import_hugging_face(qwen3, tmp_path / "whole", conversion=Conversion(weights="int8")).bundle
    rounded: list[str] = []
    stored = compressed._stored

    def counted(tensor, *rest):  # type: ignore[no-untyped-def]
        rounded.append(tensor.name)
        if len(rounded) == 20:
            raise KeyboardInterrupt
        return stored(tensor, *rest)

    monkeypatch.setattr(compressed, "_stored", counted)
    with pytest.raises(KeyboardInterrupt):
        import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="int8"))
    assert not (tmp_path / "b").exists()
    first = len(rounded)
    bundle = import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="int8")).bundle
    assert len(rounded) - first < first + 30  # the parts outside of the layers and of layer 0 are there
    assert "embedding" not in rounded[first:]
    assert bundle.signature == expected.signature
    assert not list(tmp_path.glob(".b*"))


def test_other_weights_do_not_continue_a_killed_import(qwen3: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="int8"), on_part=stop)
    assert (
        import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="bf16")).bundle.numerics.weights
        == "bfloat16"
    )


def test_a_replaced_file_of_the_same_size_and_time_does_not_continue_a_killed_import(qwen3: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    shutil.copytree(qwen3, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    with pytest.raises(KeyboardInterrupt):
        import_hugging_face(tmp_path / "model", tmp_path / "b", conversion=Conversion(weights="int8"), on_part=stop)
    before = file.stat()
    weights = load_file(file)
    save_file({name: 2 * weight for name, weight in weights.items()}, file, {"format": "pt"})
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    again = import_hugging_face(tmp_path / "model", tmp_path / "b", conversion=Conversion(weights="int8")).bundle
    assert (
        again.signature
        == import_hugging_face(
            tmp_path / "model", tmp_path / "whole", conversion=Conversion(weights="int8")
        ).bundle.signature
    )


def test_widths_without_groups_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "model", "llama", intermediate_size=100)
    with pytest.raises(HuggingFaceError, match=r"feed_forward.down has 100 inputs.*use --weights bf16"):
        import_hugging_face(tmp_path / "model", tmp_path / "b", conversion=Conversion(weights="int4"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_weight_that_is_not_finite_is_refused(qwen3: Path, tmp_path: Path) -> None:
    shutil.copytree(qwen3, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensor = read_tensors(file)["model.layers.2.mlp.up_proj.weight"]
    data = bytearray(file.read_bytes())
    at = bytes(data).find(tensor.data.tobytes())
    data[at : at + 2] = b"\x80\x7f"  # infinity
    file.write_bytes(data)
    with pytest.raises(BundleError, match=r"layers.2.feed_forward.up.weight' holds a value that is not finite"):
        import_hugging_face(tmp_path / "model", tmp_path / "b", conversion=Conversion(weights="int4"))
    assert not (tmp_path / "b").exists()
    import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="int4"))
    assert open_bundle(tmp_path / "b").numerics.weights == "int4_group64"


def output_error(bundle: Bundle, exact: Bundle, tokens: list[int]) -> float:
    """Relative error of the logits of the torch engine."""
    found, expected = (
        engine.step([(engine.new_sequence(), tokens)], "all")[0] for engine in map(TorchEngine.open, (bundle, exact))
    )
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("family", ["qwen2", pytest.param("smollm3", marks=pytest.mark.slow)])
def test_gptq_loses_less_than_rounding(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a template without tools, and when the import is killed between two layers."""
    torch.set_num_threads(1)
    checkpoints.save(tmp_path / "model", family)
    calibration = Calibration(num_rows=8, row_tokens=128)
    exact = import_hugging_face(tmp_path / "model", tmp_path / "exact").bundle
    nearest = import_hugging_face(tmp_path / "model", tmp_path / "nearest", conversion=Conversion(weights="int4")).bundle
    better = import_hugging_face(
        tmp_path / "model", tmp_path / "better", conversion=Conversion(weights="int4", calibration=calibration)
    ).bundle
    tokens = calibration.tokens(exact.tokenizer, exact.template)[0].tolist()
    assert output_error(better, exact, tokens) < 0.9 * output_error(nearest, exact, tokens)
    half = Conversion(weights="int4", range=HalfQuadraticRange())
    hqq = import_hugging_face(tmp_path / "model", tmp_path / "hqq", conversion=half).bundle
    for name in ("layers.0.attention.query.weight", "layers.1.feed_forward.up.weight"):
        weight_RC, format = exact.tensors()[name], FORMATS[hqq.numerics.weights_of(name.removesuffix(".weight"))]
        expected = format.quantize(weight_RC, range=HalfQuadraticRange())
        assert np.array_equal(hqq.tensors()[f"{name}.minimum"], expected.minimum_RG)
        assert not np.array_equal(nearest.tensors()[f"{name}.minimum"], expected.minimum_RG)

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_hugging_face(
            tmp_path / "model", tmp_path / "b", conversion=Conversion(weights="int4", calibration=calibration), on_part=stop
        )
    resumed = import_hugging_face(
        tmp_path / "model", tmp_path / "b", conversion=Conversion(weights="int4", calibration=calibration)
    ).bundle
    assert resumed.signature == better.signature


def test_calibration_reads_text_and_json_lines(qwen3: Path, tmp_path: Path) -> None:
    bundle = import_hugging_face(qwen3, tmp_path / "b", conversion=Conversion(weights="bf16")).bundle
    text, lines = tmp_path / "t.txt", tmp_path / "t.jsonl"
    text.write_text("one two three " * 50)
    lines.write_text('{"text": "one two three"}\n{"messages": [{"role": "user", "content": "four"}]}\n' * 40)
    for file in (text, lines):
        rows = Calibration(file=file, num_rows=2, row_tokens=16).tokens(bundle.tokenizer, bundle.template)
        assert rows.shape == (2, 16)
    text.write_text("short")
    with pytest.raises(HuggingFaceError, match="calibration needs 512 or more"):
        Calibration(file=text).tokens(bundle.tokenizer, bundle.template)
    lines.write_text("[1]\n")
    with pytest.raises(HuggingFaceError, match="line 1"):
        Calibration(file=lines).tokens(bundle.tokenizer, bundle.template)


def test_a_template_without_tools_is_calibrated_on_conversations_without_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    torch.set_num_threads(1)
    checkpoints.save(tmp_path / "model", "qwen2")
    checkpoints.save_tokenizer(tmp_path / "model", "qwen2", template=PLAIN)
    exact = import_hugging_face(tmp_path / "model", tmp_path / "exact").bundle
    assert not exact.template.can_call_tools
    changes = {"calibration.num_rows": "2", "calibration.row_tokens": "64"}
    compress(exact, compression_config("int4", changes), "made")
    assert open_bundle("made").numerics.weights == "int4_group64"


def test_pages_of_a_checkpoint_are_released(qwen3: Path) -> None:
    tensor = next(iter(read_tensors(qwen3 / "model.safetensors").values()))
    before = tensor.data.tobytes()
    release_pages(tensor)
    assert tensor.data.tobytes() == before


PLAIN = """
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
