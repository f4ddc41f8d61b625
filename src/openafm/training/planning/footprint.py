"""What a training step keeps in memory, by arithmetic on the model's config. Imports no tensor library.

What the backward pass needs was counted by what autograd saves, operation by operation; `tests/training/test_footprint.py`
holds the counts against its hooks. All of it is for one device: the tracks and the experts that it holds, with weights that
are not (yet) cut up by FSDP.

Letters: T tracks held here, N positions, D model dim, V vocabulary; H heads and K key/value heads of a track, C head dim;
F hidden dim, E experts of a track, P experts chosen for a token, L tokens of a document.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from openafm.models.accounting import layer_parameters, outside_parameters, track_norm_parameters
from openafm.models.activations import INDEX_BYTES, MASTER_BYTES, Microbatch
from openafm.models.config import DecoderConfig, LayerConfig

LOGITS_OF_A_CHUNK = 1 << 22
"""As in training/cross_entropy.py, which a module free of tensors cannot import."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How many numbers: `dense` are needed by every token, `experts` lie in the experts."""

    dense: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return self.dense + self.experts

    def __add__(self, other: Weights) -> Weights:
        return Weights(dense=self.dense + other.dense, experts=self.experts + other.experts)


@dataclass(frozen=True, kw_only=True)
class LayerFootprint:
    """One layer on one device; all but `weights` and `matrices` in bytes.

    `saved` is what autograd keeps until the backward pass, and `casts` the weights that it keeps in 16 bits. `input` is what
    the layer is given, and `keys_values` are those that it puts into the context. `matrices` counts weights of matrices of
    two dims. `working` is how much more its backward pass holds at its height than before it began.
    """

    weights: Weights
    saved: int
    casts: int
    input: int
    matrices: int
    keys_values: int
    working: int

    @property
    def kept(self) -> int:
        return self.saved + self.casts


@dataclass(frozen=True, kw_only=True)
class DeviceShare:
    """The share of a model that a device holds: so many tracks (one where it has none), a share of each track's experts."""

    tracks: int
    expert_ranks: int = 1
    has_tracks: bool = False


@dataclass(frozen=True, kw_only=True)
class DecoderFootprint:
    """A whole model on one device: its layers in order and what is around them, in bytes but for `outside` and `matrices`.

    `outside` are the weights of embedding, final norm and head. `loss_kept` outlives the loss: the gradients that it makes
    on the way. `loss_working` is what it needs meanwhile, and `ends` is all that is saved outside of the layers.
    """

    layers: tuple[LayerFootprint, ...]
    outside: Weights
    vocabulary: Weights
    ends: int
    loss_kept: int
    loss_working: int

    @property
    def weights(self) -> Weights:
        return sum((layer.weights for layer in self.layers), start=self.outside)

    @property
    def activations(self) -> int:
        """All that the forward pass leaves to the backward pass."""
        return sum(layer.kept for layer in self.layers) + self.ends + self.loss_kept

    def backward_peak(self, *, are_gradients_there: bool) -> int:
        """The most that activations and gradients take at once while the backward pass turns the ones into the others.

        Layer after layer, from the last, the saved is freed and gradients of weights are made; `are_gradients_there` when
        earlier microbatches have left theirs. The gradient of the head waits for that of the embedding, and the two are
        added to a third.
        """
        left = self.activations
        made = MASTER_BYTES * self.weights.total if are_gradients_there else 0
        peak = left + made
        for layer in reversed(self.layers):
            peak = max(peak, left + made + layer.working)
            left -= layer.kept
            made += 0 if are_gradients_there else MASTER_BYTES * layer.weights.total
        return max(peak, left + made + 2 * MASTER_BYTES * self.vocabulary.total)

    @property
    def recomputed_activations(self) -> int:
        """The same when each layer keeps its input and its keys and values, and its forward pass is done again."""
        return sum(layer.input + layer.keys_values for layer in self.layers) + self.ends + self.loss_kept

    @property
    def muon_matrices(self) -> int:
        """Weights of the two-dimensional matrices inside the layers: what Muon takes."""
        return sum(layer.matrices for layer in self.layers)

    @property
    def keys_values(self) -> int:
        return sum(layer.keys_values for layer in self.layers)


def decoder_weights(config: DecoderConfig) -> Weights:
    """How many weights a model has, all tracks and experts together."""
    per_layer = [_layer_weights(layer, config.dim) for layer in config.layers]
    tracks = config.num_tracks
    layers = Weights(dense=tracks * sum(w.dense for w in per_layer), experts=tracks * sum(w.experts for w in per_layer))
    return layers + Weights(dense=track_norm_parameters(config)) + Weights(dense=outside_parameters(config))


def decoder_footprint(config: DecoderConfig, part: DeviceShare, batch: Microbatch) -> DecoderFootprint:
    """What a device with this part of the model keeps of a microbatch."""
    depth = len(config.layers) if config.tracks is None else config.tracks.block_depth
    boundary = config.num_prefill_layers - 1
    layers = tuple(
        _layer_footprint(
            layer,
            config.dim,
            part,
            batch,
            starts_block=index % depth == 0,
            reads_apart=index == boundary,
            num_kv_heads=config.kv_heads(index) // config.num_tracks,
        )
        for index, layer in enumerate(config.layers)
    )
    norms = track_norm_parameters(config) * part.tracks // config.num_tracks
    vocabulary = config.vocab_size * config.dim
    tokens, number = batch.num_tokens, batch.number_bytes
    chunk = min(max(256, LOGITS_OF_A_CHUNK // config.vocab_size), tokens) * config.vocab_size
    is_cast = number != MASTER_BYTES
    turns = {(layer.attention.head_dim, getattr(layer.attention, "position", None)) for layer in config.layers}
    rotation = sum(MASTER_BYTES * head_dim * tokens for head_dim, position in turns if position is not None)
    return DecoderFootprint(
        layers=layers,
        outside=Weights(dense=outside_parameters(config)) + Weights(dense=norms),
        vocabulary=Weights(dense=vocabulary),
        ends=tokens * (MASTER_BYTES * (config.dim + 1) + 2 * INDEX_BYTES) + 2 * rotation,
        loss_kept=tokens * config.dim * number + vocabulary * MASTER_BYTES,
        loss_working=chunk * number
        + is_cast
        * (vocabulary * number + chunk * (number + MASTER_BYTES * (2 if tokens * config.vocab_size > chunk else 1))),
    )


@lru_cache(maxsize=4096)
def _layer_weights(layer: LayerConfig, dim: int) -> Weights:
    """Of one track."""
    experts = layer.feed_forward.expert_parameters(dim)
    return Weights(dense=layer_parameters(layer, dim) - experts, experts=experts)


@lru_cache(maxsize=4096)
def _layer_footprint(
    layer: LayerConfig,
    dim: int,
    part: DeviceShare,
    batch: Microbatch,
    *,
    starts_block: bool,
    reads_apart: bool,
    num_kv_heads: int,
) -> LayerFootprint:
    weights = _layer_weights(layer, dim)
    held = Weights(dense=part.tracks * weights.dense, experts=part.tracks * weights.experts // part.expert_ranks)
    positions, number = part.tracks * batch.num_tokens, batch.number_bytes
    # In fp32 all tracks' norms read one and the same input of the block.
    stream = batch.num_tokens if starts_block and number == MASTER_BYTES else positions
    saved = MASTER_BYTES * (dim * (stream + positions) + 2 * positions)
    if reads_apart:  # storing and reading are two passes through the norm, each with its input and output
        saved += positions * (MASTER_BYTES * (dim + 1) + number * dim)
    saved += positions * number * dim + layer.attention.saved_bytes(batch, num_kv_heads, part.tracks)
    feed_forward = layer.feed_forward.activation_bytes(dim, number)
    matrices = held.total - part.tracks * (2 * dim + layer.feed_forward.fp32_parameters(dim))
    for_muon = layer.attention.matrix_parameters(dim) + layer.feed_forward.matrix_parameters(dim)
    return LayerFootprint(
        weights=held,
        saved=saved + positions * feed_forward.saved,
        casts=0 if number == MASTER_BYTES else number * matrices,
        input=positions * number * dim,
        matrices=0 if part.has_tracks else for_muon,
        keys_values=positions * number * 2 * num_kv_heads * layer.attention.head_dim * (layer.attention.kv_vectors > 0),
        working=positions * feed_forward.working,
    )
