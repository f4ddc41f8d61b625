"""`import hf --weights`: formats by width, streamed parts, kills and wrong inputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import torch

from openafm.bundle import BundleError, open_bundle
from openafm.bundle.hugging_face import HuggingFaceError, compressed, import_hugging_face
from openafm.bundle.tensor_file import read_tensors
from openafm.compression.grouped import FORMATS, GroupedMatrix
from openafm.compression.numerics import MatrixNumerics


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    checkpoints.save(folder, "qwen3", dtype=torch.bfloat16)
    return folder


def test_formats_follow_the_widths_of_the_matrices(qwen3: Path, tmp_path: Path) -> None:
    bundle = import_hugging_face(qwen3, tmp_path / "b", weights="int4").bundle
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
    bundle = import_hugging_face(qwen3, tmp_path / "b", weights="bf16").bundle
    original = read_tensors(qwen3 / "model.safetensors")
    for name, theirs in (
        ("embedding", "model.embed_tokens.weight"),
        ("layers.1.feed_forward.up.weight", "model.layers.1.mlp.up_proj.weight"),
    ):
        np.testing.assert_array_equal(bundle.stored_tensors[name].data, original[theirs].data)


def test_an_import_that_is_killed_continues(qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete parts are not computed again, the bundle appears only whole, and it is bit-identical."""
    expected = import_hugging_face(qwen3, tmp_path / "whole", weights="int8").bundle
    rounded: list[str] = []
    stored = compressed._stored

    def counted(tensor, *rest):  # type: ignore[no-untyped-def]
        rounded.append(tensor.name)
        if len(rounded) == 20:
            raise KeyboardInterrupt
        return stored(tensor, *rest)

    monkeypatch.setattr(compressed, "_stored", counted)
    with pytest.raises(KeyboardInterrupt):
        import_hugging_face(qwen3, tmp_path / "b", weights="int8")
    assert not (tmp_path / "b").exists()
    first = len(rounded)
    bundle = import_hugging_face(qwen3, tmp_path / "b", weights="int8").bundle
    assert len(rounded) - first < first + 30  # the parts outside of the layers and of layer 0 are there
    assert "embedding" not in rounded[first:]
    assert bundle.signature == expected.signature
    assert not list(tmp_path.glob(".b*"))


def test_other_weights_do_not_continue_a_killed_import(qwen3: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_hugging_face(qwen3, tmp_path / "b", weights="int8", on_part=stop)
    assert import_hugging_face(qwen3, tmp_path / "b", weights="bf16").bundle.numerics.weights == "bfloat16"


def test_widths_without_groups_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "model", "llama", intermediate_size=100)
    with pytest.raises(HuggingFaceError, match=r"feed_forward.down has 100 inputs.*use --weights bf16"):
        import_hugging_face(tmp_path / "model", tmp_path / "b", weights="int4")
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
        import_hugging_face(tmp_path / "model", tmp_path / "b", weights="int4")
    assert not (tmp_path / "b").exists()
    import_hugging_face(qwen3, tmp_path / "b", weights="int4")
    assert open_bundle(tmp_path / "b").numerics.weights == "int4_group64"
