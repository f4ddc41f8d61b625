"""GGUF files: every type bit by bit, whole models there and back, and damaged files as typed errors."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import gguf_models
import numpy as np
import pytest
import torch
from checkpoints import FAMILIES, VOCAB_ROWS

from openafm.bundle import Bundle, write_bundle
from openafm.bundle.gguf import GGUFError, export_gguf, import_gguf, read_gguf
from openafm.bundle.gguf.architecture import read_architecture
from openafm.bundle.gguf.types import TENSOR_TYPES
from openafm.bundle.gguf.writer import WRITTEN_TYPES
from openafm.bundle.hugging_face import Conversion, HuggingFaceError
from openafm.cli.main import run
from openafm.core.errors import OpenAFMError
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.support import unsupported
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import AssistantTurn, UserTurn
from openafm.tokenizer.template import opened

PROMPT = np.random.default_rng(1).integers(0, VOCAB_ROWS, 48).tolist()
TALK = (UserTurn(text="What is 17 * 23?\n"), AssistantTurn(text="391 👍"), UserTurn(text="今日は  and 1234"))


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def logits(bundle: Bundle) -> np.ndarray[Any, Any]:
    engine = TorchEngine.open(bundle)
    return engine.step([(engine.new_sequence(), PROMPT)], logits="all")[0]


@pytest.mark.parametrize("number", [number for number, type in TENSOR_TYPES.items() if type.decode])
def test_values_of_each_type_equal_those_of_the_gguf_package_bit_by_bit(number: int) -> None:
    type = TENSOR_TYPES[number]
    blocks = np.random.default_rng(number).integers(0, 256, (2000, type.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = np.ascontiguousarray(gguf.dequantize(blocks, gguf.GGMLQuantizationType(number)), np.float32)
        ours = type.dequantize(blocks.reshape(-1))
    assert np.array_equal(ours.view(np.uint32), expected.reshape(-1).view(np.uint32))


@pytest.mark.parametrize("name", WRITTEN_TYPES)
def test_each_written_type_has_the_bytes_of_the_gguf_package(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    values[0] = 0
    written = WRITTEN_TYPES[name]
    expected = gguf.quantize(values, gguf.GGMLQuantizationType(written.number))
    assert np.array_equal(written.encode(values), expected.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_there_and_back_has_the_same_logits_and_tokens(family: str, tmp_path: Path) -> None:
    original = gguf_models.bundle(tmp_path, family)
    report = export_gguf(original, tmp_path / "model.gguf")
    assert report.family == family
    again = import_gguf(tmp_path / "model.gguf", tmp_path / "again").bundle
    assert np.abs(logits(again) - logits(original)).max() < 1e-5 * np.abs(logits(original)).max()
    assert again.template.encode(again.tokenizer, opened(TALK)).tokens == (
        original.template.encode(original.tokenizer, opened(TALK)).tokens
    )
    assert again.template.stop_token(again.tokenizer) == original.template.stop_token(original.tokenizer)


def test_the_gguf_package_reads_what_was_written(tmp_path: Path) -> None:
    original = gguf_models.bundle(tmp_path, "qwen3")
    export_gguf(original, tmp_path / "model.gguf", type="q8_0")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    ours = read_gguf(tmp_path / "model.gguf")
    assert reader.fields["general.architecture"].contents() == "qwen3"
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ours.metadata["tokenizer.ggml.tokens"]
    assert len(reader.tensors) == len(ours.tensors)
    for tensor in reader.tensors:
        theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(ours.tensors[tensor.name].values(), theirs.reshape(ours.tensors[tensor.name].shape))


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
def test_quantized_weights_are_imported_with_the_values_of_the_file(type: Any, tmp_path: Path) -> None:
    export_gguf(gguf_models.bundle(tmp_path, "qwen2"), tmp_path / "model.gguf", type=type)
    report = import_gguf(tmp_path / "model.gguf", tmp_path / "again")
    assert any(type.upper() in note for note in report.notes)
    stored = read_gguf(tmp_path / "model.gguf").tensors["blk.1.ffn_up.weight"]
    assert stored.type.name == type.upper()
    assert np.array_equal(report.bundle.tensors()["layers.1.feed_forward.up.weight"], stored.values())


@pytest.mark.parametrize("weights", ["int8", "int4", "bf16"])
def test_weights_for_the_native_engine(weights: Any, tmp_path: Path) -> None:
    export_gguf(gguf_models.bundle(tmp_path, "qwen3"), tmp_path / "model.gguf", type="q8_0")
    exact = import_gguf(tmp_path / "model.gguf", tmp_path / "exact").bundle
    report = import_gguf(tmp_path / "model.gguf", tmp_path / weights, conversion=Conversion(weights=weights))
    assert unsupported(report.bundle) is None
    assert any(weights in note for note in report.notes)
    if weights == "int8":  # matrices of Q8_0 keep their values
        name, arrays = "layers.1.feed_forward.up.weight", report.bundle.tensors()
        values = arrays[name].reshape(len(arrays[name]), -1, 32)
        kept = values.astype(np.float32) * arrays[f"{name}.scale"].astype(np.float32)[..., None]
        assert np.array_equal(kept.reshape(arrays[name].shape), exact.tensors()[name])
    correlation = np.corrcoef(logits(exact).reshape(-1), logits(report.bundle).reshape(-1))[0, 1]
    assert correlation > (0.8 if weights == "int4" else 0.99)  # a random model is sensitive


def test_verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    original = gguf_models.bundle(tmp_path, "qwen3")
    file = tmp_path / "small.gguf"
    assert run(["export", str(original.path), "--to", "gguf", "--type", "f16", "--out", str(file)]) == 0
    assert run(["import", "gguf", str(file)]) == 0
    assert "openafm use small" in capsys.readouterr().out
    assert run(["import", "gguf", str(file)]) == 2
    assert "exists" in capsys.readouterr().err


def changed(file: Path, key: str, value: Any) -> Path:
    """Rewrite a file with one value of its metadata changed, removed if None."""
    from openafm.bundle.gguf.writer import TensorToWrite, write_gguf

    read = read_gguf(file)
    metadata = {name: each for name, each in (dict(read.metadata) | {key: value}).items() if each is not None}
    tensors = [
        TensorToWrite(name=name, shape=tensor.shape, type=WRITTEN_TYPES["f32"], values=tensor.values)
        for name, tensor in read.tensors.items()
    ]
    place = file.with_name("changed.gguf")
    write_gguf(place, metadata, tensors)
    return place


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    export_gguf(gguf_models.bundle(folder, "qwen3", num_hidden_layers=1), folder / "small.gguf", type="q8_0")
    return folder / "small.gguf"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "qwen4", "architecture 'qwen4'.*did you mean 'qwen"),
        ("qwen3.block_count", None, "qwen3.block_count is missing"),
        ("qwen3.block_count", "four", "must be one integer"),
        ("qwen3.block_count", 2, "block_count is 2, but the file has 1 layers"),
        ("qwen3.block_count", 2**31, "but the file has 1 layers"),
        ("qwen3.embedding_length", 2**31, "hidden_size is 2147483648; it must be at most"),
        ("qwen3.expert_count", 8, "mixture of experts"),
        ("qwen3.rope.scaling.type", "longrope", "rotary scaling 'longrope'"),
        ("qwen3.attention.sliding_window", 64, "sliding window"),
        ("qwen3.attention.value_length", 8, "value_length differs"),
        ("qwen3.attention.head_count", 0, "value|head"),
        ("tokenizer.ggml.model", "t5", "the tokenizer is Unigram"),
        ("tokenizer.ggml.pre", "quen2", "pre-tokenizer 'quen2'.*did you mean 'qwen2'"),
        ("tokenizer.ggml.merges", ["a"], "not two tokens"),
        ("tokenizer.ggml.token_type", [1, 1], "token_type"),
        ("tokenizer.chat_template", None, "no chat template"),
        ("general.alignment", 3, "power of two"),
    ],
)
def test_unsupported_features_are_refused_by_name(small: Path, tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises((GGUFError, HuggingFaceError), match=message):
        import_gguf(changed(small, key, value), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_head_too_wide_for_memory_is_refused_before_its_frequencies_are_computed() -> None:
    metadata = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 64}
    metadata |= {"llama.attention.head_count": 2, "llama.attention.key_length": 2**40, "llama.feed_forward_length": 64}
    metadata |= {"llama.context_length": 64, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    shapes = {"token_embd.weight": (8, 64), "blk.0.attn_q.weight": (64, 64)}
    with pytest.raises(HuggingFaceError, match="head_dim is 1099511627776; it must be at most 1,024"):
        read_architecture(metadata, shapes, np.ones(16, np.float32))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"GGML" + struct.pack("<I", 3), "not a GGUF file"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1), "version 1; supported are versions 2 and 3"),
        (b"GG", "not a GGUF file"),
        (b"GGUF\x03", "the file ends"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "do not fit"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, start: bytes, message: str) -> None:
    file = tmp_path / "file.gguf"
    file.write_bytes(start)
    with pytest.raises(GGUFError, match=message):
        read_gguf(file)


def test_missing_and_unsupported_tensors(small: Path, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")
    data = bytearray(small.read_bytes())
    place = data.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 16
    data[place : place + 4] = struct.pack("<I", 10)
    (tmp_path / "q2.gguf").write_bytes(data)
    with pytest.raises(GGUFError, match=r"'blk.0.ffn_up.weight' is Q2_K; supported are F32, .*Q6_K"):
        read_gguf(tmp_path / "q2.gguf")


@pytest.mark.parametrize("count", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_damaged_files_are_typed_errors_whatever_the_bytes(small: Path, tmp_path: Path, count: int) -> None:
    data, random = small.read_bytes(), np.random.default_rng(0)
    header = data.index(b"blk.0.ffn_up.weight") + 2000
    file = tmp_path / "damaged.gguf"
    outcomes = {"read": 0, "refused": 0}
    for _ in range(count):
        damaged = bytearray(data[: int(random.integers(0, len(data)))] if random.random() < 0.1 else data)
        for place in random.integers(0, min(header, len(damaged)), random.integers(1, 4)) if damaged else ():
            damaged[place] = random.integers(0, 256)
        file.write_bytes(damaged)
        try:
            read_gguf(file)
            outcomes["read"] += 1
        except GGUFError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > count / 50, outcomes


@pytest.mark.slow
def test_imports_of_damaged_files_are_typed_errors(small: Path, tmp_path: Path) -> None:
    data, random = small.read_bytes(), np.random.default_rng(1)
    file = tmp_path / "damaged.gguf"
    for _ in range(150):
        damaged = bytearray(data)
        for place in random.integers(0, 2000, 2):
            damaged[place] = random.integers(0, 256)
        file.write_bytes(damaged)
        try:
            import_gguf(file, tmp_path / "bundle")
        except OpenAFMError:
            continue


def test_a_tokenizer_of_openafm_has_no_name_in_llama_cpp(tmp_path: Path) -> None:
    plain = gguf_models.bundle(tmp_path, "llama")
    own = write_bundle(
        tmp_path / "own",
        config=plain.config,
        tokenizer=Tokenizer(merges=()),
        template=ChatTemplate(),
        tensors=plain.tensors(),
    )
    with pytest.raises(GGUFError, match="no name for how this tokenizer splits words"):
        export_gguf(own, tmp_path / "own.gguf")
    assert not (tmp_path / "own.gguf").exists()
