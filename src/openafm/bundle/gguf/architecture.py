"""The metadata of a GGUF file as the `config.json` of the same family, and back; names of weights.

llama.cpp rotates interleaved pairs in the families of Llama and SmolLM3 (rows of queries and keys are stored in that order)
and halves of a head in the families of Qwen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.gguf.errors import GGUFError
from openafm.bundle.hugging_face.config import FAMILIES, check_sizes, decoder_config
from openafm.core.config import nearest
from openafm.models.config import AttentionConfig, DecoderConfig, RotaryConfig, yarn_attention_factor

INTERLEAVED_FAMILIES = ("llama", "smollm3")
ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3_SCALINGS = ((1.0, 4.0, 8192),)
"""Low and high factors and original context of the published models with `llama3` scaling."""

_OUTSIDE_LAYERS = {"token_embd.weight": "embedding", "output_norm.weight": "norm.weight", "output.weight": "output.weight"}
_IN_LAYERS = {
    "attn_norm": "attention_norm",
    "ffn_norm": "feed_forward_norm",
    "attn_q": "attention.query",
    "attn_k": "attention.keys_values.key",
    "attn_v": "attention.keys_values.value",
    "attn_output": "attention.output",
    "attn_q_norm": "attention.query_norm",
    "attn_k_norm": "attention.keys_values.key_norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.up",
    "ffn_down": "feed_forward.down",
}


def decoder_name(theirs: str) -> str | None:
    """Return the name of a file's weight in the decoder's state dict, None if the decoder has no such weight."""
    if theirs in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[theirs]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", theirs)
    if found is None or found[2] not in _IN_LAYERS:
        return None
    return f"layers.{found[1]}.{_IN_LAYERS[found[2]]}.{found[3]}"


def file_name(ours: str) -> str:
    """Return the name of a decoder's weight in a GGUF file: the inverse of `decoder_name`."""
    outside = {name: theirs for theirs, name in _OUTSIDE_LAYERS.items()}
    if ours in outside:
        return outside[ours]
    _, layer, *parts, kind = ours.split(".")
    inside = {name: theirs for theirs, name in _IN_LAYERS.items()}
    return f"blk.{layer}.{inside['.'.join(parts)]}.{kind}"


def read_architecture(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], rope_factors: NDArray[np.float32] | None
) -> tuple[str, DecoderConfig]:
    """Return the family and the decoder that metadata describe.

    Args:
        shapes: of the file's tensors by name.
        rope_factors: divisors of the rotary frequencies, stored as a tensor.

    Raises:
        GGUFError: the architecture is not supported, or a value is missing or of another type.
        HuggingFaceError: a value is out of range.
    """
    family = metadata.get("general.architecture")
    if family not in FAMILIES:
        hint = nearest(str(family), list(FAMILIES))
        raise GGUFError(f"the file holds a model of architecture '{family}'; openafm imports {', '.join(FAMILIES)}{hint}")
    values = _values(family, _Keys(metadata, family), shapes)
    check_sizes(values)
    values["rope_parameters"] |= _scaling(
        _Keys(metadata, family), rope_factors, values["head_dim"], values["rope_parameters"]
    )
    config = decoder_config(values)
    return family, _interleaved(config) if family in INTERLEAVED_FAMILIES else config


class _Keys:
    """Metadata below the architecture's name, with types checked."""

    def __init__(self, metadata: Mapping[str, Any], family: str) -> None:
        self._metadata, self._family = metadata, family

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._metadata.get(f"{self._family}.{key}", default)
        if isinstance(value, list) and len(set(value)) == 1:  # one value for each layer
            value = value[0]
        if type(value) is not int:
            raise GGUFError(f"{self._family}.{key} is {_stated(value)}; it must be one integer. Convert the model again")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._metadata.get(f"{self._family}.{key}", default)
        if type(value) not in (int, float):
            raise GGUFError(f"{self._family}.{key} is {_stated(value)}; it must be a number. Convert the model again")
        # Files have float32: 1e-6 is stored as 9.99999997e-07, and the shortest decimal of the same float32 is the original.
        return float(str(np.float32(value)))

    def text(self, key: str, default: str) -> str:
        value = self._metadata.get(f"{self._family}.{key}", default)
        if not isinstance(value, str):
            raise GGUFError(f"{self._family}.{key} is {_stated(value)}; it must be a text. Convert the model again")
        return value

    def has(self, key: str) -> bool:
        return f"{self._family}.{key}" in self._metadata


def _stated(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]


def _values(family: str, keys: _Keys, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    if "token_embd.weight" not in shapes or len(shapes["token_embd.weight"]) != 2:
        raise GGUFError("the file lacks the matrix token_embd.weight; restore it")
    if keys.integer("expert_count", 0) > 0:
        raise GGUFError("the model is a mixture of experts; only dense decoders are supported")
    if keys.has("attention.sliding_window"):
        raise GGUFError("the model has a sliding window, whose layers GGUF does not name; import the Hugging Face folder")
    num_layers, layers = keys.integer("block_count"), {name.split(".")[1] for name in shapes if name.startswith("blk.")}
    if num_layers != len(layers):
        raise GGUFError(f"{family}.block_count is {num_layers}, but the file has {len(layers)} layers; restore the file")
    dim, num_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", dim // max(num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            raise GGUFError(f"{family}.{key} differs from the head dim {head_dim}; that is not supported")
    return {
        "model_type": family,
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": dim,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": keys.number("rope.freq_base", 10_000.0)},
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_output.bias" in shapes,
        "mlp_bias": "blk.0.ffn_down.bias" in shapes,
    }


def _scaling(keys: _Keys, factors: NDArray[np.float32] | None, head_dim: int, rope: Mapping[str, Any]) -> dict[str, Any]:
    kind = keys.text("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise GGUFError(f"rotary scaling '{kind}' is not supported; supported are none, linear, llama3 and yarn")
    if factors is not None and kind == "yarn":
        raise GGUFError(f"{ROPE_FACTORS} beside rotary scaling 'yarn' is not supported; import the Hugging Face folder")
    if factors is not None:
        for low, high, original in _LLAMA3_SCALINGS:
            scaling = {
                "rope_type": "llama3",
                "factor": float(factors.max(initial=1.0)),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length", original),
            }
            expected = llama3_factors(head_dim, dict(rope) | scaling)
            if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-5, atol=0):
                return scaling
        raise GGUFError(f"{ROPE_FACTORS} is not the `llama3` scaling of a published model; import the Hugging Face folder")
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        factor, context_length = keys.number("rope.scaling.factor"), keys.integer("context_length")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length", context_length),
            # llama.cpp multiplies its default by the value of the file.
            "attention_factor": yarn_attention_factor(factor) * keys.number("rope.scaling.attn_factor", 1.0),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    return {"rope_type": "default"}


def llama3_factors(head_dim: int, rope: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the divisors of the rotary frequencies under `llama3` scaling, as `rope_freqs.weight` stores them."""
    frequencies = float(rope["rope_theta"]) ** -(np.arange(0, head_dim, 2) / head_dim)
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: NDArray[np.float32] = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors


def _interleaved(config: DecoderConfig) -> DecoderConfig:
    layers = []
    for layer in config.layers:
        attention = layer.attention
        if isinstance(attention, AttentionConfig) and isinstance(attention.position, RotaryConfig):
            attention = replace(attention, position=replace(attention.position, layout="interleaved"))
        layers.append(replace(layer, attention=attention))
    return replace(config, layers=tuple(layers))


def file_metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata below the family's name for a `config.json`, by key.

    Raises:
        GGUFError: llama.cpp does not compute this variant of the family.
    """
    family = values["model_type"]
    if values.get("layer_types"):
        raise GGUFError("llama.cpp has no sliding windows in this family; export --to hf instead")
    if values["hidden_act"] != "silu" or (values["mlp_bias"] and family != "llama"):
        raise GGUFError(
            f"llama.cpp has no activation {values['hidden_act']}, or no biases, in {family}; export --to hf instead"
        )
    if family == "qwen2" and values["num_attention_heads"] * values["head_dim"] != values["hidden_size"]:
        raise GGUFError("llama.cpp needs heads as wide as the model in qwen2; export --to hf instead")
    rotated = values.get("no_rope_layers")
    if rotated is not None and rotated != [int((layer + 1) % 4 != 0) for layer in range(len(rotated))]:
        raise GGUFError("llama.cpp rotates all but every fourth layer of SmolLM3; export --to hf instead")
    rope = values["rope_parameters"]
    metadata: dict[str, Any] = {
        "context_length": values["max_position_embeddings"],
        "embedding_length": values["hidden_size"],
        "block_count": values["num_hidden_layers"],
        "feed_forward_length": values["intermediate_size"],
        "attention.head_count": values["num_attention_heads"],
        "attention.head_count_kv": values["num_key_value_heads"],
        "attention.key_length": values["head_dim"],
        "attention.value_length": values["head_dim"],
        "attention.layer_norm_rms_epsilon": float(values["rms_norm_eps"]),
        "rope.dimension_count": values["head_dim"],
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": values["vocab_size"],
    }
    if rope["rope_type"] == "linear":
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "llama3":
        metadata["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "yarn":
        metadata |= _yarn_metadata(rope)
    return {f"{family}.{key}": value for key, value in metadata.items()}


def _yarn_metadata(rope: Mapping[str, Any]) -> dict[str, Any]:
    if (rope["beta_fast"], rope["beta_slow"], rope["truncate"]) != (32.0, 1.0, True):
        raise GGUFError(
            "llama.cpp reads no bounds of yarn from the files of this family: beta_fast 32, beta_slow 1 and truncate; "
            "export --to hf instead"
        )
    metadata = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }
    if (share := rope["attention_factor"] / yarn_attention_factor(rope["factor"])) != 1.0:
        metadata["rope.scaling.attn_factor"] = share
    return metadata
