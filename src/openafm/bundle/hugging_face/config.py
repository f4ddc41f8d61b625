"""`config.json` of the supported families as a decoder config. Settings that would compute something else are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.core.config import ConfigError, nearest
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
    TiedHeadConfig,
    UntiedHeadConfig,
    YarnRotaryConfig,
    yarn_attention_factor,
)

_THETAS = {"llama": 1e4, "qwen2": 1e4, "qwen3": 1e4, "smollm3": 2e6}  # defaults of transformers
FAMILIES = tuple(_THETAS)
VISION_FAMILIES = ("internvl",)
_LENGTH_DEPENDENT = ("dynamic", "longrope")  # kinds of rotary scaling
_LARGEST = {
    "num_hidden_layers": 1 << 10,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "num_attention_heads": 1 << 10,
    "num_key_value_heads": 1 << 10,
    "head_dim": 1 << 10,
    "vocab_size": 1 << 22,
    "max_position_embeddings": 1 << 30,
}
"""A few bytes of a config can state any size. Lists and tables of these sizes are built before the weights are compared."""

Values = Mapping[str, Any]


def decoder_config(values: Values) -> DecoderConfig:
    """Return the decoder that a checkpoint's `config.json` describes.

    Raises:
        HuggingFaceError: the family or a setting is not supported, or a value is missing or out of range.
    """
    family = values.get("model_type")
    if family not in FAMILIES:
        raise HuggingFaceError(_unknown(family, has_vision="vision_config" in values))
    with checked_values("config.json"):
        _refuse_unsupported(values)
        check_sizes(values)
        return _decoder(family, values)


@contextmanager
def checked_values(file: str) -> Iterator[None]:
    """Raise errors of reading a file's values as `HuggingFaceError`."""
    try:
        yield
    except KeyError as error:
        raise HuggingFaceError(f"{file} lacks {error}; restore the folder") from error
    except (ConfigError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise HuggingFaceError(f"{file} has an invalid value: {error}") from error


def _unknown(family: object, *, has_vision: bool) -> str:
    if not has_vision:
        families = [*FAMILIES, *VISION_FAMILIES]
        close = nearest(str(family), families)
        hint = close if "did you mean" in close else ""
        return f"the checkpoint is a '{family}' model; openafm imports {', '.join(families)}{hint}"
    hint = ". Its name often ends in -hf where transformers wrote the folder" if family == "internvl_chat" else ""
    known = nearest(str(family), list(VISION_FAMILIES))
    return f"the checkpoint is a '{family}' model with a vision encoder, which is not supported{known}{hint}"


def check_sizes(values: Values) -> None:
    """Check that no size is larger than that of any model, before something of that size is built.

    Raises:
        HuggingFaceError: a size is too large.
    """
    for key, largest in _LARGEST.items():
        if int(values.get(key) or 0) > largest:
            stated = f"{values[key]!r:.40}"
            raise HuggingFaceError(f"{key} is {stated}; it must be at most {largest:,}. Restore the original file")


def _refuse_unsupported(values: Values) -> None:
    if quantized := values.get("quantization_config"):
        method = quantized.get("quant_method", "unknown") if isinstance(quantized, Mapping) else "unknown"
        raise HuggingFaceError(
            f"the checkpoint is quantized ({method}); import the original in float32, bfloat16 or float16"
        )
    if values.get("hidden_act", "silu") not in ("silu", "gelu"):
        raise HuggingFaceError(f"the activation '{values['hidden_act']}' is not supported; supported are silu and gelu")
    if (values.get("num_experts") or values.get("num_local_experts") or 0) > 1:
        raise HuggingFaceError("the checkpoint is a mixture of experts; only dense decoders are supported")
    rotary = values.get("rope_parameters") or {}
    if (values.get("partial_rotary_factor") or rotary.get("partial_rotary_factor") or 1.0) != 1.0:
        raise HuggingFaceError("partial rotary embeddings are not supported; partial_rotary_factor must be 1")


def _decoder(family: str, values: Values) -> DecoderConfig:
    num_layers, dim, num_heads = (int(values[key]) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    eps = float(values["rms_norm_eps"])
    rotary, rotated, windows = _rotary(family, values), _rotated_layers(family, values), _windows(family, values)
    feed_forward = DenseFeedForwardConfig(
        hidden_dim=int(values["intermediate_size"]),
        activation=values.get("hidden_act", "silu"),
        bias=bool(values.get("mlp_bias", False)),
    )
    has_bias = bool(values.get("attention_bias", False))
    layers = [
        LayerConfig(
            attention=AttentionConfig(
                num_heads=num_heads,
                head_dim=values.get("head_dim") or dim // num_heads,
                keys_values=OwnKeysValuesConfig(num_heads=values.get("num_key_value_heads") or num_heads),
                window=windows[layer],
                position=rotary if rotated[layer] else None,
                qk_norm=QKNormConfig(eps=eps, order="before_position") if family == "qwen3" else None,
                input_bias=family == "qwen2" or has_bias,
                output_bias=family != "qwen2" and has_bias,
            ),
            feed_forward=feed_forward,
        )
        for layer in range(num_layers)
    ]
    is_tied = values.get("tie_word_embeddings", family == "smollm3")
    return DecoderConfig(
        vocab_size=int(values["vocab_size"]),
        dim=dim,
        layers=tuple(layers),
        head=TiedHeadConfig() if is_tied else UntiedHeadConfig(),
        norm_eps=eps,
        context_length=_context_length(values, rotary),
    )


def _rotary(family: str, values: Values) -> RotaryConfig:
    """Old files have `rope_theta` and `rope_scaling`, new ones `rope_parameters` with both."""
    stated = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kind = stated.get("rope_type") or stated.get("type") or "default"
    theta = float(stated.get("rope_theta") or values.get("rope_theta") or _THETAS[family])
    match kind:
        case "default":
            return RotaryConfig(theta=theta, layout="half")
        case "linear":
            return LinearRotaryConfig(theta=theta, layout="half", factor=float(stated["factor"]))
        case "llama3":
            return Llama3RotaryConfig(
                theta=theta,
                layout="half",
                factor=float(stated["factor"]),
                low_turns=float(stated["low_freq_factor"]),
                high_turns=float(stated["high_freq_factor"]),
                original_context_length=int(stated["original_max_position_embeddings"]),
            )
        case "yarn":
            return _yarn(theta, stated, values)
    reason = ": its angles change with the length of the text, and stored keys would not"
    raise HuggingFaceError(
        f"rotary scaling '{kind}' is not supported{reason if kind in _LENGTH_DEPENDENT else ''}; supported are default, "
        "linear, llama3 and yarn. If it only extends the context, remove it from config.json and lower "
        "max_position_embeddings"
    )


def _yarn(theta: float, stated: Values, values: Values) -> YarnRotaryConfig:
    """The defaults are those of transformers."""
    context_length = int(values["max_position_embeddings"])
    original = int(
        values.get("original_max_position_embeddings") or stated.get("original_max_position_embeddings") or context_length
    )
    factor = context_length / original if stated["factor"] is None else float(stated["factor"])
    attention_factor = stated.get("attention_factor")
    if attention_factor is None:
        scale, scale_all = stated.get("mscale"), stated.get("mscale_all_dim")
        attention_factor = yarn_attention_factor(factor)
        if scale and scale_all:
            attention_factor = yarn_attention_factor(factor, scale) / yarn_attention_factor(factor, scale_all)
    return YarnRotaryConfig(
        theta=theta,
        layout="half",
        factor=factor,
        original_context_length=original,
        attention_factor=float(attention_factor),
        fast_turns=float(stated.get("beta_fast") or 32),
        slow_turns=float(stated.get("beta_slow") or 1),
        bounds="whole" if stated.get("truncate", True) else "exact",
    )


def _context_length(values: Values, rotary: RotaryConfig) -> int:
    """With yarn, `max_position_embeddings` is often that of the model before it was extended."""
    length = int(values["max_position_embeddings"])
    if isinstance(rotary, YarnRotaryConfig):
        length = max(length, int(rotary.factor * rotary.original_context_length))
        check_sizes({"max_position_embeddings": length})
    return length


def _rotated_layers(family: str, values: Values) -> list[bool]:
    """Which layers have a position embedding; SmolLM3 has some without (NoPE)."""
    num_layers = int(values["num_hidden_layers"])
    if family != "smollm3":
        return [True] * num_layers
    if (stated := values.get("no_rope_layers")) is not None:
        return [bool(has_position) for has_position in stated]
    interval = int(values.get("no_rope_layer_interval", 4))
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]


def _windows(family: str, values: Values) -> list[int | None]:
    """The window of each layer in keys, including the position itself; None: global attention."""
    num_layers, window = int(values["num_hidden_layers"]), values.get("sliding_window")
    kinds = values.get("layer_types")
    if not values.get("use_sliding_window", False) or window is None:
        window = None
    if kinds is None and window is None:
        return [None] * num_layers
    if kinds is None:
        if family == "smollm3":
            raise HuggingFaceError("config.json has a sliding window but no layer_types")
        first = int(values["max_window_layers"])
        return [window if layer >= first else None for layer in range(num_layers)]
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise HuggingFaceError(f"attention of kind {', '.join(sorted(unknown))} is not supported")
    if len(kinds) != num_layers:
        raise HuggingFaceError(f"config.json has {num_layers} layers but {len(kinds)} layer_types; restore the folder")
    return [window if kind == "sliding_attention" else None for kind in kinds]
