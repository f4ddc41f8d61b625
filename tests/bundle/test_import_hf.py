"""Import of open weights: the logits and tokens of transformers, or a typed error with nothing written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch
from checkpoints import FAMILIES, LLAMA3_SCALING, VOCAB_ROWS
from transformers import AutoConfig

from openafm.bundle import Bundle, BundleError, open_bundle
from openafm.bundle.hugging_face import HuggingFaceError, import_hugging_face
from openafm.bundle.hugging_face.config import decoder_config
from openafm.bundle.tensor_file import read_tensors
from openafm.models.config import RotaryConfig
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.torch_engine import TorchEngine

TOLERANCE, POWER = 1e-4, 1e-2
PROMPT = torch.randint(0, VOCAB_ROWS, (1, 96), generator=torch.Generator().manual_seed(1))

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, scaled": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama, gelu and as many key heads": ("llama", {"hidden_act": "gelu", "num_key_value_heads": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2, untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2, windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "qwen3": ("qwen3", {}),
    "qwen3, tied, biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "smollm3": ("smollm3", {}),
    "smollm3, untied": ("smollm3", {"tie_word_embeddings": False, "no_rope_layers": [1, 0, 1, 0]}),
}


@pytest.fixture(autouse=True)
def _one_thread_no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def logits(bundle: Bundle) -> torch.Tensor:
    engine = TorchEngine.open(bundle)
    (logits_NV,) = engine.step([(engine.new_sequence(), PROMPT[0].tolist())], logits="all")
    return torch.from_numpy(logits_NV)


def difference(bundle: Bundle, theirs: Any) -> float:
    expected = theirs(PROMPT, use_cache=False).logits[0]
    assert expected.abs().max() > 1, "logits near zero would agree whatever the models do"
    return (logits(bundle) - expected).abs().max().item()


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_equal_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    theirs = checkpoints.save(tmp_path / "model", family, **changes)
    bundle = import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle
    bundle.verify()
    assert difference(bundle, theirs) <= TOLERANCE
    expected = theirs.generate(PROMPT, max_new_tokens=24, min_new_tokens=24, do_sample=False, eos_token_id=None)
    engine = TorchEngine.open(bundle)
    events = generate(
        engine, engine.new_sequence(), PROMPT[0].tolist(), sampling=GreedyConfig(), stop_tokens=[], max_tokens=24
    )
    answer = [event.token for event in events]
    assert len(set(answer)) > 3, "an answer of one repeated token proves little"
    assert answer == expected[0, PROMPT.shape[1] :].tolist()


def test_the_comparison_detects_one_broken_rule(tmp_path: Path) -> None:
    theirs = checkpoints.save(tmp_path / "model", "llama")
    file = tmp_path / "model" / "config.json"
    values = json.loads(file.read_text())
    for change in (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
        {"rope_parameters": LLAMA3_SCALING | {"low_freq_factor": 2.0}},
        {"rms_norm_eps": 1e-2},
        {"hidden_act": "gelu"},
    ):
        file.write_text(json.dumps(values | change))
        assert difference(import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle, theirs) > POWER


@pytest.mark.parametrize("family", FAMILIES)
def test_older_config_files_give_the_same_config(family: str) -> None:
    new = checkpoints.config(family).to_dict()
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "layer_types")}
    rotary = dict(new["rope_parameters"])
    old |= {"rope_theta": rotary.pop("rope_theta"), "rope_scaling": rotary if rotary["rope_type"] != "default" else None}
    assert decoder_config(old) == decoder_config(new)
    if rotary["rope_type"] == "default":
        unsaid = {key: value for key, value in old.items() if key != "rope_theta"}
        by_default = AutoConfig.for_model(family).to_dict()["rope_parameters"]["rope_theta"]
        assert decoder_config(unsaid) == decoder_config(old | {"rope_theta": by_default})
    if family == "smollm3":
        positions = [layer.attention.position for layer in decoder_config(old).layers]  # type: ignore[attr-defined]
        assert [position is None for position in positions] == [False, False, False, True]
        assert isinstance(positions[0], RotaryConfig)


def test_shards_give_the_same_bundle(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "whole", "qwen3")
    checkpoints.save(tmp_path / "sharded", "qwen3", shards="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    bundles = [import_hugging_face(tmp_path / name, tmp_path / f"{name} bundle").bundle for name in ("whole", "sharded")]
    assert bundles[0].signature == bundles[1].signature


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_bfloat16_is_kept(family: str, tmp_path: Path) -> None:
    theirs = checkpoints.save(tmp_path / "model", family, dtype=torch.bfloat16)
    bundle = import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle
    stored = read_tensors(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in bundle.stored_tensors.values()} == {"BF16"}
    assert bundle.stored_tensors["embedding"].data.tobytes() == stored["model.embed_tokens.weight"].data.tobytes()
    assert (bundle.numerics.weights, bundle.numerics.activations) == ("bfloat16", "float32")
    assert difference(bundle, theirs) <= TOLERANCE
    in_half = import_hugging_face(tmp_path / "model", tmp_path / "half", compute="bfloat16").bundle
    assert POWER / 10 < difference(in_half, theirs) < 1
    assert in_half.numerics.kv == "bfloat16"


def test_float16_is_widened_exactly(tmp_path: Path) -> None:
    theirs = checkpoints.save(tmp_path / "model", "llama", dtype=torch.float16)
    bundle = import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle
    assert {tensor.dtype for tensor in bundle.stored_tensors.values()} == {"F32"}
    assert np.array_equal(bundle.tensors()["norm.weight"], theirs.model.norm.weight.numpy())
    assert difference(bundle, theirs) <= TOLERANCE


def test_the_copy_of_a_tied_head_is_dropped(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs = checkpoints.save(tmp_path / "model", "qwen2")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, file, {"format": "pt"})
    assert difference(import_hugging_face(tmp_path / "model", tmp_path / "bundle").bundle, theirs) <= TOLERANCE
    weights["lm_head.weight"][-1, -1] += 1
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(HuggingFaceError, match="a head of its own with other numbers"):
        import_hugging_face(tmp_path / "model", tmp_path / "other")
    assert not (tmp_path / "other").exists()


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"model_type": "gemma3_text"}, "gemma3_text.*imports llama, qwen2"),
    "quantized": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized .gptq"),
    "experts": ({"num_experts": 8}, "mixture of experts"),
    "dynamic": ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "scaling 'dynamic' .*length of the text"),
    "longrope": ({"rope_parameters": {"rope_type": "longrope"}}, "scaling 'longrope' .*length of the text"),
    "old name": ({"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "su"}}, "scaling 'su' is not"),
    "partial rotation": ({"rope_parameters": LLAMA3_SCALING | {"partial_rotary_factor": 0.5}}, "partial rotary"),
    "activation": ({"hidden_act": "relu2"}, "activation 'relu2'"),
    "attention": ({"layer_types": ["full_attention"] * 3 + ["linear_attention"]}, "linear_attention"),
}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"num_attention_heads": 3}, "invalid value"),
    "missing": ({"rms_norm_eps": None}, "invalid value"),
    "width": ({"intermediate_size": 128}, "config.json implies"),
    "layers": ({"num_hidden_layers": 3, "layer_types": None}, "config.json does not describe"),
    "more layers": ({"num_hidden_layers": 5, "layer_types": None}, "lacks the weight"),
    "head": ({"tie_word_embeddings": False}, "lacks the weight 'output.weight'"),
    "vocabulary": ({"vocab_size": 8}, "config.json implies"),
    "vocabulary without end": ({"vocab_size": 10**30}, "vocab_size is 10+; it must be at most"),
    "layers without number": (
        {"num_hidden_layers": 2**40, "layer_types": None},
        "num_hidden_layers is 1099511627776; it must",
    ),
    "wide heads": ({"head_dim": 2**40}, "head_dim is 1099511627776; it must be at most 1,024"),
    "no heads": ({"num_attention_heads": 0}, "invalid value"),
    "endless layers": ({"num_hidden_layers": float("inf")}, "invalid value"),
    "experts in words": ({"num_experts": "8"}, "invalid value"),
    "yarn without a factor": ({"rope_parameters": {"rope_type": "yarn"}}, "lacks 'factor'"),
    "yarn that shortens": ({"rope_parameters": {"rope_type": "yarn", "factor": 0.5}}, "factor must be at least 1"),
    "endless yarn": ({"rope_parameters": {"rope_type": "yarn", "factor": float("inf")}}, "invalid value"),
    "rotation in words": ({"rope_parameters": "default"}, "invalid value"),
}


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")
    checkpoints.save(folder, "qwen2")
    return folder


@pytest.fixture
def copied(qwen2: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in qwen2.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def refused(folder: Path, message: str) -> None:
    place = folder.parent / "bundle"
    with pytest.raises((HuggingFaceError, BundleError), match=message):
        import_hugging_face(folder, place)
    assert not place.exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing half-written"


@pytest.mark.parametrize("name", [*UNSUPPORTED, *BROKEN])
def test_unsupported_and_broken_configs_are_refused(name: str, copied: Path) -> None:
    change, message = (UNSUPPORTED | BROKEN)[name]
    file = copied / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refused(copied, message)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "not readable JSON"),
        ("config.json", "[]", "not hold a JSON object"),
        ("model.safetensors", None, "model.safetensors is missing; download it again"),
        ("model.safetensors", "", "model.safetensors is empty"),
        ("model.safetensors.index.json", "{}", "not an index"),
        ("model.safetensors.index.json", '{"weight_map":{"a":"../x"}}', "outside its folder"),
        ("tokenizer.json", None, "save the tokenizer with transformers.*SentencePiece"),
        ("tokenizer.json", '{"model": {"type": "Unigram"}, "added_tokens": []}', "Unigram"),
        ("chat_template.jinja", None, "no chat template"),
        ("chat_template.jinja", "{% for %}", "not Jinja"),
        ("chat_template.jinja", "\udcff", "not UTF-8"),
        ("chat_template.jinja", "{{ " + "(" * 50_000, "not Jinja"),
        ("chat_template.jinja", "{{ 1 / 0 }}", "division"),
        ("chat_template.jinja", "{{ ''.__class__.__mro__ }}", "the chat template"),
    ],
)
def test_an_incomplete_folder_is_refused(name: str, text: str | None, message: str, copied: Path) -> None:
    (copied / name).unlink(missing_ok=True)
    if text is not None:
        (copied / name).write_bytes(text.encode(errors="surrogateescape"))
    refused(copied, message)


def test_a_text_model_has_no_text_config(copied: Path, tmp_path: Path) -> None:
    file = copied / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"text_config": []}))
    assert not import_hugging_face(copied, tmp_path / "bundle").bundle.template.can_take_images


def test_truncated_and_infinite_weights_are_refused(copied: Path) -> None:
    file = copied / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    refused(copied, "ends inside")
    file.write_bytes(whole[:-4] + np.array([np.nan], np.float32).tobytes())
    refused(copied, "not finite")


def test_only_a_bundle_is_replaced(copied: Path, tmp_path: Path) -> None:
    first = import_hugging_face(copied, tmp_path / "bundle").bundle
    assert import_hugging_face(copied, tmp_path / "bundle").bundle.signature == first.signature
    assert "qwen2" in first.card()
    with pytest.raises(BundleError, match="is not a bundle"):
        import_hugging_face(copied, copied)
    assert open_bundle(tmp_path / "bundle").template == first.template


def test_weights_in_another_format_are_named(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    refused(copied, "the folder has pytorch_model.bin, and only safetensors are supported")


def test_the_nearest_known_family_is_named(copied: Path) -> None:
    file = copied / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "qwen33"}))
    refused(copied, r"'qwen33' model; openafm imports llama, .*did you mean 'qwen3'")


def test_weights_of_a_dtype_that_is_not_read_are_named(copied: Path) -> None:
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"F8X"', 1))
    refused(copied, "its dtype 'F8X' is not one of F64, F32")
