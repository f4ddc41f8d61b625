"""Names and shapes of a decoder's weights as a bundle stores them. Imports no tensor library.

Shapes: R outputs and I inputs of a matrix, T tracks, E experts of a track.
"""

from __future__ import annotations

from collections.abc import Iterator

from openafm.models.config import AttentionConfig, DecoderConfig, DenseFeedForwardConfig, OwnKeysValuesConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig


def matrices(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Return the numbers of outputs and inputs of every matrix of the layers by its name in a bundle.

    With tracks or experts, a name stands for a stack of such matrices; see `stack`.
    """
    shapes: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(config.layers):
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(feed_forward, DenseFeedForwardConfig | ExpertsConfig)
        inner = attention.num_heads * attention.head_dim
        shapes[f"layers.{index}.attention.query"] = (inner, config.dim)
        if isinstance(attention.keys_values, OwnKeysValuesConfig):
            kv_dim = attention.keys_values.num_heads * attention.head_dim
            shapes[f"layers.{index}.attention.keys_values.key"] = (kv_dim, config.dim)
            shapes[f"layers.{index}.attention.keys_values.value"] = (kv_dim, config.dim)
        shapes[f"layers.{index}.attention.output"] = (config.dim, inner)
        for name in ("gate", "up"):
            shapes[f"layers.{index}.feed_forward.{name}"] = (feed_forward.hidden_dim, config.dim)
        shapes[f"layers.{index}.feed_forward.down"] = (config.dim, feed_forward.hidden_dim)
    return shapes


def experts_of(config: DecoderConfig, name: str) -> ExpertsConfig | None:
    """Return the experts whose matrices the name of `matrices` stands for; None for a matrix of every token."""
    feed_forward = config.layers[int(name.split(".")[1])].feed_forward
    return feed_forward if ".feed_forward." in name and isinstance(feed_forward, ExpertsConfig) else None


def stack(config: DecoderConfig, name: str) -> tuple[int, ...]:
    """Return the leading dims of the tensor of a name of `matrices`: tracks, experts, both or none."""
    experts = experts_of(config, name)
    tracks = () if config.tracks is None else (config.tracks.num_tracks,)
    return tracks if experts is None else (*tracks, experts.num_experts)


def block_depth(config: DecoderConfig) -> int:
    return len(config.layers) if config.tracks is None else config.tracks.block_depth


def in_order(config: DecoderConfig) -> list[tuple[int, int]]:
    """Return layer and track of each entry of the C model's list: the order of computation."""
    depth = block_depth(config)
    return [
        (layer, track)
        for first in range(0, len(config.layers), depth)
        for track in range(config.num_tracks)
        for layer in range(first, first + depth)
    ]


def numbered(name: str, index: int, dims: tuple[int, ...]) -> str:
    """Return the name of a matrix of a stack with these dims."""
    return f"{name}[{index}]" if dims else name


def norms(config: DecoderConfig) -> Iterator[tuple[str, int]]:
    """Yield name and length of every norm's weight; with tracks, of that of one track."""
    for index, layer in enumerate(config.layers):
        attention = layer.attention
        yield f"layers.{index}.attention_norm.weight", config.dim
        yield f"layers.{index}.feed_forward_norm.weight", config.dim
        if isinstance(attention, AttentionConfig) and attention.qk_norm is not None:
            yield f"layers.{index}.attention.query_norm.weight", attention.head_dim
            if isinstance(attention.keys_values, OwnKeysValuesConfig):
                yield f"layers.{index}.attention.keys_values.key_norm.weight", attention.head_dim
    if config.tracks is not None and config.tracks.norm is not None:
        for block in range(len(config.layers) // config.tracks.block_depth):
            yield f"tracks.norms.{block}.weight", config.dim
    yield "norm.weight", config.dim


def vectors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every fp32 vector: norms' weights and biases of matrices, with a leading dim of tracks."""
    lengths = dict(norms(config))
    for name, (num_outputs, _) in matrices(config).items():
        layer = config.layers[int(name.split(".")[1])]
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(attention, AttentionConfig)
        has_bias = attention.output_bias if name.endswith("attention.output") else attention.input_bias
        if ".feed_forward." in name:
            has_bias = isinstance(feed_forward, DenseFeedForwardConfig) and feed_forward.bias
        if has_bias:
            lengths[f"{name}.bias"] = num_outputs
    tracks = () if config.tracks is None else (config.tracks.num_tracks,)
    return {name: (length,) if name == "norm.weight" else (*tracks, length) for name, length in lengths.items()}
