"""The `config.json` of decoders that no family of transformers has, for the exported modules in `remote_code`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    TiedHeadConfig,
    YarnRotaryConfig,
)

_MODULES = ("configuration_openafm.py", "modeling_openafm.py")
_FOLDER = Path(__file__).parent / "remote_code"
_NOTE = "transformers runs the model with trust_remote_code=True, from the modules in the folder"


def rope_parameters(rotary: RotaryConfig) -> dict[str, Any]:
    """Return a rotary embedding as transformers writes it."""
    values: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary.theta}
    match rotary:
        case LinearRotaryConfig():
            values |= {"rope_type": "linear", "factor": rotary.factor}
        case Llama3RotaryConfig():
            values |= {
                "rope_type": "llama3",
                "factor": rotary.factor,
                "low_freq_factor": rotary.low_turns,
                "high_freq_factor": rotary.high_turns,
                "original_max_position_embeddings": rotary.original_context_length,
            }
        case YarnRotaryConfig():
            values |= {
                "rope_type": "yarn",
                "factor": rotary.factor,
                "original_max_position_embeddings": rotary.original_context_length,
                "attention_factor": rotary.attention_factor,
                "beta_fast": rotary.fast_turns,
                "beta_slow": rotary.slow_turns,
                "truncate": rotary.bounds == "whole",
            }
    return values


def own_config(config: DecoderConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the `config.json` of a decoder with rotary pairs on halves, and notes on what the export loses.

    Raises:
        HuggingFaceError: the decoder has tracks, experts, or layers that differ in more than their keys and values, windows
            and positions.
    """
    attentions = [layer.attention for layer in config.layers if isinstance(layer.attention, AttentionConfig)]
    if len(attentions) < len(config.layers) or config.tracks is not None:
        raise HuggingFaceError("decoders with tracks or other attention kinds cannot be exported to transformers")
    feed_forward, *others = dict.fromkeys(layer.feed_forward for layer in config.layers)
    if others or not isinstance(feed_forward, DenseFeedForwardConfig):
        raise HuggingFaceError("decoders with experts or different feed-forwards cannot be exported to transformers")
    _check_uniform(attentions)
    own = [each.keys_values for each in attentions if isinstance(each.keys_values, OwnKeysValuesConfig)]
    sources = _sources(attentions)
    first, windows = attentions[0], [each.window for each in attentions]
    rotary = next((each.position for each in attentions if isinstance(each.position, RotaryConfig)), RotaryConfig())
    num_shared = sum(source != layer for layer, source in enumerate(sources))
    values: dict[str, Any] = {
        "model_type": "openafm",
        "architectures": ["OpenafmForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_openafm.OpenafmConfig",
            "AutoModel": "modeling_openafm.OpenafmModel",
            "AutoModelForCausalLM": "modeling_openafm.OpenafmForCausalLM",
        },
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": feed_forward.hidden_dim,
        "hidden_act": feed_forward.activation,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": first.num_heads,
        "num_key_value_heads": own[0].num_heads,
        "head_dim": first.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "qk_norm": None if first.qk_norm is None else first.qk_norm.order,
        "qk_norm_eps": config.norm_eps if first.qk_norm is None else first.qk_norm.eps,
        "rope_parameters": rope_parameters(rotary),
        "rotated_layers": [int(each.position is not None) for each in attentions],
        "keys_values_layers": sources,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": next(filter(None, windows), None),
        "input_bias": first.input_bias,
        "output_bias": first.output_bias,
        "mlp_bias": feed_forward.bias,
        "tie_word_embeddings": isinstance(config.head, TiedHeadConfig),
    }
    lost = (f"prefill computes the {num_shared} layers that share keys and values too; openafm skips them",)
    return values, (_NOTE, *(lost if num_shared else ()))


def write_modules(folder: Path) -> None:
    """Copy the modules that transformers loads into the folder of a checkpoint."""
    for name in _MODULES:
        shutil.copyfile(_FOLDER / name, folder / name)


def _check_uniform(attentions: list[AttentionConfig]) -> None:
    """One value for all layers of everything that the exported config states once."""
    stated: dict[str, set[Any]] = {
        "heads": {(each.num_heads, each.head_dim) for each in attentions},
        "key/value heads": {
            each.keys_values.num_heads for each in attentions if isinstance(each.keys_values, OwnKeysValuesConfig)
        },
        "norms of queries and keys": {each.qk_norm for each in attentions},
        "biases": {(each.input_bias, each.output_bias) for each in attentions},
        "windows": {each.window for each in attentions if each.window is not None},
        "position embeddings": {each.position for each in attentions if each.position is not None},
    }
    for what, values in stated.items():
        if len(values) > 1:
            raise HuggingFaceError(f"decoders whose layers have different {what} cannot be exported to transformers")
    if any(not isinstance(each.position, RotaryConfig) for each in attentions if each.position is not None):
        raise HuggingFaceError("decoders with position embeddings other than rotary cannot be exported to transformers")


def _sources(attentions: list[AttentionConfig]) -> list[int]:
    """For each layer the layer whose keys and values it reads."""
    sources = []
    for layer, attention in enumerate(attentions):
        shared = attention.keys_values
        source = shared.layer if isinstance(shared, SharedKeysValuesConfig) else layer
        if attention.window != attentions[source].window:
            raise HuggingFaceError(f"layer {layer} has another window than layer {source}, whose keys and values it reads")
        sources.append(source)
    return sources
