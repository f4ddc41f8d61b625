"""Decoders that no family of transformers has: exported modules with the logits, answers and caches of openafm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from openafm.bundle import Bundle, write_bundle
from openafm.bundle.hugging_face import HuggingFaceError, export_hugging_face
from openafm.bundle.hugging_face.own_architecture import own_config
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    OwnKeysValuesConfig,
    QKNormConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    UntiedHeadConfig,
    YarnRotaryConfig,
)
from openafm.models.sizes import SIZES
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

ATTENTION = AttentionConfig(num_heads=4, head_dim=16, keys_values=OwnKeysValuesConfig(num_heads=2))
FEED_FORWARD = DenseFeedForwardConfig(hidden_dim=96)
PROMPT = torch.randint(0, 330, (1, 48), generator=torch.Generator().manual_seed(1))


def decoder(*attentions: AttentionConfig, **settings: Any) -> DecoderConfig:
    layers = tuple(LayerConfig(attention=attention, feed_forward=FEED_FORWARD) for attention in attentions)
    return DecoderConfig(**{"vocab_size": 330, "dim": 64, "layers": layers, "context_length": 256} | settings)


LOCAL = replace(ATTENTION, window=8)
NO_POSITION = replace(ATTENTION, position=None)
SHARED = replace(ATTENTION, keys_values=SharedKeysValuesConfig(layer=1))
PLAIN = replace(ATTENTION, qk_norm=None)
LLAMA3 = Llama3RotaryConfig(theta=1e4, factor=8.0, low_turns=1.0, high_turns=4.0, original_context_length=64)
YARN = YarnRotaryConfig(
    theta=1e4, factor=8.0, original_context_length=16, attention_factor=1.3, fast_turns=2.0, slow_turns=0.25, bounds="exact"
)
SHAPES = {
    "shared": decoder(ATTENTION, ATTENTION, SHARED, SHARED),
    "local and global without positions": decoder(LOCAL, LOCAL, NO_POSITION, LOCAL),
    "shared without norms, untied": decoder(
        PLAIN, PLAIN, replace(SHARED, qk_norm=None), head=UntiedHeadConfig(), norm_eps=1e-6
    ),
    "norm before the rotation": decoder(
        *[replace(ATTENTION, qk_norm=QKNormConfig(order="before_position"))] * 2,
        replace(SHARED, qk_norm=QKNormConfig(order="before_position")),
    ),
    "biases": decoder(*[replace(ATTENTION, input_bias=True, output_bias=True)] * 2),
    "linear": decoder(*[replace(ATTENTION, position=LinearRotaryConfig(factor=4.0))] * 2),
    "llama3": decoder(*[replace(ATTENTION, position=LLAMA3)] * 2),
    "yarn": decoder(*[replace(each, position=YARN, qk_norm=None) for each in (ATTENTION, ATTENTION, SHARED)]),
}


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def bundle(path: Path, config: DecoderConfig) -> Bundle:
    torch.manual_seed(0)
    model = config.build()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.uniform_(0.5, 1.5)
        elif name.endswith("bias"):
            parameter.normal_(std=0.3)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return write_bundle(path, config=config, tokenizer=Tokenizer(merges=()), template=ChatTemplate(), tensors=tensors)


def exported(folder: Path, config: DecoderConfig, **options: Any) -> tuple[Bundle, Any]:
    own = bundle(folder / "bundle", config)
    export_hugging_face(own, folder / "hf")
    load = transformers.AutoModelForCausalLM.from_pretrained
    return own, load(folder / "hf", trust_remote_code=True, dtype=torch.float32, **options).eval()


def own_logits(own: Bundle) -> torch.Tensor:
    engine = TorchEngine.open(own)
    return torch.from_numpy(engine.step([(engine.new_sequence(), PROMPT[0].tolist())], "all")[0])


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_cached_logits_equal_those_of_openafm(name: str, tmp_path: Path) -> None:
    own, theirs = exported(tmp_path, SHAPES[name])
    ours = own_logits(own)
    logits = theirs(PROMPT, use_cache=False).logits[0]
    assert (logits - ours).abs().max() < 1e-5 * ours.abs().max()
    cache, rows = None, []
    for token in PROMPT[0]:
        step = theirs(token[None, None], past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        rows.append(step.logits[0, -1])
    assert (torch.stack(rows) - ours).abs().max() < 1e-5 * ours.abs().max()


def test_generate_gives_the_answers_of_openafm(tmp_path: Path) -> None:
    own, theirs = exported(tmp_path, SHAPES["shared"])
    engine = TorchEngine.open(own)
    prompt = PROMPT[0].tolist()
    answer = generate(engine, engine.new_sequence(), prompt, sampling=GreedyConfig(), stop_tokens=(), max_tokens=20)
    expected = [event.token for event in answer]
    generated = theirs.generate(PROMPT, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert generated[0, 48:].tolist() == expected
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), PROMPT], dim=1)
    mask = (torch.arange(53) >= 5)[None].long()
    generated = theirs.generate(
        padded, attention_mask=mask, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert generated[0, 53:].tolist() == expected


def test_other_libraries_can_replace_the_attention(tmp_path: Path) -> None:
    """vLLM and others build AutoModel and register an attention function; every layer must call it once."""
    calls: list[tuple[int, int]] = []

    def counted(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        calls.append((module.layer_idx, key.shape[1]))
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(module, query, key, value, mask, **options)

    transformers.AttentionInterface.register("counted", counted)
    transformers.AttentionMaskInterface.register("counted", transformers.masking_utils.sdpa_mask)
    own, theirs = exported(tmp_path, SHAPES["shared"], attn_implementation="counted")
    assert (theirs(PROMPT, use_cache=False).logits[0] - own_logits(own)).abs().max() < 1e-4
    assert calls == [(layer, 2) for layer in range(4)]
    base = transformers.AutoModel.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    assert type(base).__name__ == "OpenafmModel"
    assert base._supports_attention_backend
    assert len(base.layers) == base.config.num_hidden_layers
    assert base.config.base_model_tp_plan["layers.*.self_attn.q_proj"] == "colwise"


def test_layers_that_share_store_nothing(tmp_path: Path) -> None:
    _, theirs = exported(tmp_path, SHAPES["shared"])
    cache = theirs(PROMPT, use_cache=True).past_key_values
    assert [layer.get_seq_length() for layer in cache.layers] == [48, 48, 0, 0]
    names = {name for name, _ in theirs.named_parameters()}
    assert "model.layers.1.self_attn.k_proj.weight" in names
    assert not any(name.startswith("model.layers.2.self_attn.k_") for name in names)


def test_a_training_step_reaches_every_weight(tmp_path: Path) -> None:
    _, theirs = exported(tmp_path, SHAPES["shared"])
    with torch.enable_grad():
        loss = theirs(PROMPT, labels=PROMPT).loss
        loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad is not None for parameter in theirs.parameters())


def test_notes_say_what_is_lost(tmp_path: Path) -> None:
    report = export_hugging_face(bundle(tmp_path / "bundle", SHAPES["shared"]), tmp_path / "hf")
    assert report.family == "openafm"
    assert any("2 layers that share keys and values" in note for note in report.notes)
    assert any("trust_remote_code" in note for note in report.notes)
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert values["auto_map"]["AutoModel"] == "modeling_openafm.OpenafmModel"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SIZES["server.nano"](), "tracks"),
        (decoder(ATTENTION, replace(ATTENTION, qk_norm=None)), "different norms"),
        (decoder(LOCAL, replace(LOCAL, window=4)), "different windows"),
        (decoder(ATTENTION, replace(ATTENTION, position=RotaryConfig(theta=3.0))), "different position embeddings"),
        (decoder(ATTENTION, LOCAL, replace(SHARED, window=None)), "layer 2 has another window than layer 1"),
        (decoder(ATTENTION, replace(ATTENTION, keys_values=OwnKeysValuesConfig(num_heads=4))), "different key/value heads"),
    ],
)
def test_other_decoders_are_refused(config: DecoderConfig, message: str) -> None:
    with pytest.raises(HuggingFaceError, match=message):
        own_config(config)
