"""GGUF files in the nearest native formats: the codes of the file where a format holds them, and notes about the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import gguf_models
import numpy as np
import pytest
import torch

from openafm.bundle import Bundle
from openafm.bundle.gguf import export_gguf, import_gguf, read_gguf
from openafm.bundle.gguf.types import TENSOR_TYPES
from openafm.bundle.gguf.writer import TensorToWrite, WrittenType, write_gguf
from openafm.bundle.hugging_face import Conversion
from openafm.cli.main import run
from openafm.compression.grouped import FORMATS, GroupedMatrix
from openafm.runtime.agreement import compare_choices
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.support import unsupported

NUMBERS = {type.name: number for number, type in TENSOR_TYPES.items()}
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}
UP = "layers.1.feed_forward.up.weight"
DOWN = "layers.1.feed_forward.down.weight"


def encoded(type: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return blocks: of the values where the gguf package writes the type, else random ones of the same magnitude."""
    if type[-1] != "K":
        quantized = gguf.quantize(values, gguf.GGMLQuantizationType(NUMBERS[type]))
        return np.ascontiguousarray(quantized).reshape(-1).view(np.uint8)
    kind = TENSOR_TYPES[NUMBERS[type]]
    blocks = np.random.default_rng(values.size).integers(0, 256, (values.size // 256, kind.block_bytes), np.uint8)
    deviation = float(values.std())
    if type == "Q6_K":
        blocks[:, 208:] = np.frombuffer(np.float16(deviation / 1400).tobytes(), np.uint8)
    else:
        codes = 15 if type == "Q4_K" else 31
        blocks[:, :2] = np.frombuffer(np.float16(deviation / 10 / codes).tobytes(), np.uint8)
        blocks[:, 2:4] = np.frombuffer(np.float16(deviation / 20).tobytes(), np.uint8)
    return blocks.reshape(-1)


def file_of(folder: Path, type_of: Callable[[str], str], **changes: Any) -> Path:
    """Write a small model whose matrices have the types `type_of` returns for their names."""
    export_gguf(gguf_models.bundle(folder, "qwen3", **(SHAPE | changes)), folder / "f32.gguf", type="f32")
    read, tensors = read_gguf(folder / "f32.gguf"), []
    for name, tensor in read.tensors.items():
        type = type_of(name) if len(tensor.shape) == 2 else "F32"
        kind = TENSOR_TYPES[NUMBERS[type]]
        written = WrittenType(
            number=NUMBERS[type],
            block_values=kind.block_values,
            block_bytes=kind.block_bytes,
            encode=partial(encoded, type),
        )
        tensors.append(TensorToWrite(name=name, shape=tensor.shape, type=written, values=tensor.values))
    write_gguf(folder / "model.gguf", dict(read.metadata), tensors)
    return folder / "model.gguf"


def stored_values(bundle: Bundle, name: str, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    is_inside = name.startswith("layers.")
    format = bundle.numerics.weights_of(name.removesuffix(".weight")) if is_inside else bundle.numerics.embedding
    arrays = bundle.tensors()
    if format not in FORMATS:
        return arrays[name]
    return GroupedMatrix.from_tensors(name, arrays, FORMATS[format], shape).dequantize()


def reference(file: Path, name: str) -> np.ndarray[Any, Any]:
    """Return the values of a matrix by the gguf package."""
    tensor = next(each for each in gguf.GGUFReader(file).tensors if each.name == name)
    return gguf.dequantize(tensor.data, tensor.tensor_type).reshape([int(dim) for dim in tensor.shape[::-1]])


def check_native(bundle: Bundle, least_share: float = 0.99) -> None:
    torch.set_num_threads(1)
    assert unsupported(bundle) is None
    tokens = np.random.default_rng(3).integers(0, bundle.config.vocab_size, 100).tolist()
    with torch.no_grad():
        found = compare_choices(TorchEngine.open(bundle), NativeEngine(bundle, num_threads=1), [tokens])
    assert found.share >= least_share


@pytest.mark.parametrize(
    ("type", "weights"),
    [
        ("Q8_0", "int8_group32"),
        ("Q4_0", "int4_symmetric_group32"),
        ("Q4_1", "int4_group32"),
        ("BF16", "bfloat16"),
    ],
)
def test_values_equal_those_of_the_gguf_package_bit_by_bit(type: str, weights: str, tmp_path: Path) -> None:
    file = file_of(tmp_path, lambda name: type)
    report = import_gguf(file, tmp_path / "bundle", conversion="nearest")
    numerics = report.bundle.numerics
    assert (numerics.weights, numerics.embedding, numerics.exceptions) == (weights, weights, ())
    for ours, theirs in ((UP, "blk.1.ffn_up.weight"), (DOWN, "blk.1.ffn_down.weight"), ("embedding", "token_embd.weight")):
        expected = reference(file, theirs)
        values = stored_values(report.bundle, ours, expected.shape)
        assert np.array_equal(values.view(np.uint32), expected.astype(np.float32).view(np.uint32))
    (note,) = [note for note in report.notes if type in note]
    assert note.startswith(f"{type} keeps its values as {weights}: ")
    assert "attn_q (2 layers)" in note
    assert "token_embd" in note
    check_native(report.bundle, 0.98)


def test_a_file_of_several_types_has_a_format_for_each_matrix(tmp_path: Path) -> None:
    """As llama.cpp writes Q4_K_M: some matrices and the head in Q6_K."""
    types = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "attn_k": "Q5_K", "attn_q": "Q4_0", "ffn_gate": "F16"}
    file = file_of(tmp_path, lambda name: types.get(name.split(".")[-2], "Q4_K"), tie_word_embeddings=False)
    report = import_gguf(file, tmp_path / "bundle", conversion="nearest")
    numerics = report.bundle.numerics
    assert numerics.weights_of("layers.0.attention.output") == "int4_group32"
    assert numerics.weights_of("layers.0.attention.query") == "int4_symmetric_group32"
    assert numerics.weights_of("layers.1.feed_forward.down") == "int8_group32"
    assert numerics.weights_of("layers.1.feed_forward.gate") == "bfloat16"
    assert numerics.embedding == "int8_group32"  # that of the head, the finer one of the two
    errors = {UP: 1e-3, DOWN: 0.01, "embedding": 0.01, "layers.1.feed_forward.gate.weight": 0.005}
    for (ours, most), theirs in zip(
        errors.items(), ("blk.1.ffn_up", "blk.1.ffn_down", "token_embd", "blk.1.ffn_gate"), strict=True
    ):
        expected = reference(file, f"{theirs}.weight")
        error = np.linalg.norm(stored_values(report.bundle, ours, expected.shape) - expected) / np.linalg.norm(expected)
        assert 0 < error < most
    notes = "\n".join(report.notes)
    assert "Q4_0 keeps its values as int4_symmetric_group32: attn_q (2 layers)" in notes
    assert (
        "Q6_K is converted to int8_group32: attn_v (2 layers), ffn_down (2 layers), output; relative error up to 0.00"
        in notes
    )
    assert "Q4_K is converted to int8_group32: token_embd" in notes
    assert "of the weights keep their values; --weights float32 keeps all" in notes
    check_native(report.bundle)


def test_codes_that_the_format_does_not_have_are_rounded(tmp_path: Path) -> None:
    file = file_of(tmp_path, lambda name: "Q8_0")
    data = bytearray(file.read_bytes())
    tensor = read_gguf(file).tensors["blk.1.ffn_up.weight"]
    data[data.index(tensor.blocks[:3400].tobytes()) + 2] = 128
    file.write_bytes(data)
    report = import_gguf(file, tmp_path / "bundle", conversion="nearest")
    assert any(note.startswith("Q8_0 is converted to int8_group32: ffn_up (1 layer)") for note in report.notes)
    expected = reference(file, "blk.1.ffn_up.weight")
    difference = np.abs(stored_values(report.bundle, UP, expected.shape) - expected)
    assert 0 < difference.max() < np.abs(expected).max() / 127


def test_a_killed_import_continues_with_the_same_bytes(tmp_path: Path) -> None:
    file = file_of(tmp_path, lambda name: "Q4_K" if "ffn" in name else "Q8_0")

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(file, tmp_path / "again", conversion="nearest", on_part=stop)
    again = import_gguf(file, tmp_path / "again", conversion="nearest").bundle
    whole = import_gguf(file, tmp_path / "whole", conversion="nearest").bundle
    assert {name: tensor.digest() for name, tensor in again.stored_tensors.items()} == {
        name: tensor.digest() for name, tensor in whole.stored_tensors.items()
    }


def test_a_method_that_chooses_levels_ignores_the_codes_of_the_file(tmp_path: Path) -> None:
    from openafm.compression.post_training.half_quadratic import HalfQuadraticRange

    file = file_of(tmp_path, lambda name: "Q4_K")
    half = Conversion(weights="int4", range=HalfQuadraticRange())
    bundle = import_gguf(file, tmp_path / "bundle", conversion=half).bundle
    assert bundle.numerics.weights == "int4_group64"


def test_the_command_chooses_the_nearest_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    file = file_of(tmp_path, lambda name: "F16")
    assert run(["import", "gguf", str(file), "--compute", "bfloat16"]) == 2
    assert "--weights float32" in capsys.readouterr().err
    assert run(["import", "gguf", str(file)]) == 0
    assert "F16 is converted to bfloat16" in capsys.readouterr().out
    assert run(["import", "gguf", str(file), "--force", "--weights", "float32", "--compute", "bfloat16"]) == 0
    assert run(["import", "gguf", str(tmp_path / "f32.gguf"), "--name", "whole"]) == 0
    assert "F32 keeps its values" in capsys.readouterr().out
