"""Memory of a training step on one device, by arithmetic on the model's config. Imports no tensor library.

The layer configs count what autograd saves for the backward pass; `tests/training/planning/test_footprint.py` compares the
counts with autograd's hooks. All of it is for the device's tracks and experts, before FSDP shards their weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from openafm.models.accounting import layer_parameters, outside_parameters, track_norm_parameters
from openafm.models.activations import INDEX_BYTES, MASTER_BYTES, Microbatch
from openafm.models.config import DecoderConfig, LayerConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.training.config import ActivationCheckpointingConfig
from openafm.training.planning.vision_footprint import vision_bytes

LOGITS_OF_A_CHUNK = 1 << 22
"""As in training/objectives/cross_entropy.py, which imports torch."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Numbers of parameters: `experts` in the experts, `dense` in all other modules."""

    dense: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return self.dense + self.experts

    def __add__(self, other: Weights) -> Weights:
        return Weights(dense=self.dense + other.dense, experts=self.experts + other.experts)


@dataclass(frozen=True, kw_only=True)
class LayerFootprint:
    """One layer on one device, in bytes except for `weights` and `matrices`.

    Attributes:
        matrices: parameters in the matrices that Muon trains.
        kept: what the forward pass keeps until the layer's backward pass.
        keys_values: the keys and values in it.
        working: additional peak memory of the layer's backward pass.
        casts: bytes of 16-bit copies of weights in `kept`, by kind of weight; FSDP frees those of weights that it gathers.
        working_casts: the same in `working`, of a recomputed layer.
    """

    weights: Weights
    matrices: int
    kept: int
    keys_values: int
    working: int
    casts: Weights = Weights()
    working_casts: Weights = Weights()


@dataclass(frozen=True, kw_only=True)
class DeviceShare:
    """The part of a model on a device: its number of tracks (1 without tracks), and the ranks that divide other parts.

    `expert_ranks` divide the experts, `vocabulary_ranks` the logits of the loss.
    """

    tracks: int
    expert_ranks: int = 1
    vocabulary_ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class DecoderFootprint:
    """A model on one device: its layers in order, and everything outside of them.

    Attributes:
        outside: parameters of embedding, final norm, head and vision; `vocabulary` those of the embedding.
        ends: bytes that are saved outside of the layers, by the vision encoder too.
        loss_kept: bytes of the gradients that the loss computes and keeps.
        loss_working: additional peak bytes of the loss.
    """

    layers: tuple[LayerFootprint, ...]
    outside: Weights
    vocabulary: Weights
    ends: int
    loss_kept: int
    loss_working: int

    @cached_property
    def weights(self) -> Weights:
        return sum((layer.weights for layer in self.layers), start=self.outside)

    @cached_property
    def activations(self) -> int:
        """Return the bytes that the forward pass keeps for the backward pass."""
        return sum(layer.kept for layer in self.layers) + self.ends + self.loss_kept

    @property
    def working(self) -> int:
        """Return the largest additional memory of the loss and of a layer's backward pass."""
        return max(self.loss_working, self.layer_working)

    @cached_property
    def layer_working(self) -> int:
        """Return the largest additional memory of a layer's backward pass."""
        return max(layer.working for layer in self.layers)

    def backward_peak(self, *, has_gradients: bool) -> int:
        """Return the peak bytes of activations and gradients during the backward pass.

        From the last layer to the first, activations are freed and gradients of weights are allocated, unless an earlier
        microbatch has left them (`has_gradients`). The gradient of the head waits for that of the embedding, and their sum
        is a third tensor.
        """
        left = self.activations
        gradients = MASTER_BYTES * self.weights.total if has_gradients else 0
        peak = left + gradients
        for layer in reversed(self.layers):
            peak = max(peak, left + gradients + layer.working)
            left -= layer.kept
            gradients += 0 if has_gradients else MASTER_BYTES * layer.weights.total
        return max(peak, left + gradients + 2 * MASTER_BYTES * self.vocabulary.total)

    @cached_property
    def casts(self) -> Weights:
        return sum((layer.casts for layer in self.layers), start=Weights())

    @cached_property
    def matrices(self) -> int:
        return sum(layer.matrices for layer in self.layers)

    @property
    def keys_values(self) -> int:
        return sum(layer.keys_values for layer in self.layers)


def decoder_weights(config: DecoderConfig) -> Weights:
    """Return the numbers of parameters of a model, with all tracks and experts."""
    per_layer = [_layer_weights(layer, config.dim) for layer in config.layers]
    tracks = config.num_tracks
    layers = Weights(dense=tracks * sum(w.dense for w in per_layer), experts=tracks * sum(w.experts for w in per_layer))
    outside = track_norm_parameters(config) + outside_parameters(config) + config.other_parameters()
    return layers + Weights(dense=outside)


@lru_cache(maxsize=256)
def decoder_footprint(
    config: DecoderConfig,
    part: DeviceShare,
    batch: Microbatch,
    recomputing: ActivationCheckpointingConfig | None = None,
) -> DecoderFootprint:
    """Return the footprint of a microbatch on a device with this part of the model."""
    depth = len(config.layers) if config.tracks is None else config.tracks.block_depth
    boundary = config.num_prefill_layers - 1
    layers = tuple(
        _layer_footprint(
            layer,
            config.dim,
            part,
            batch,
            starts_block=index % depth == 0,
            is_split=index == boundary,
            is_recomputed=recomputing is not None and recomputing.recomputes(index),
            keeps_attention=recomputing is not None and recomputing.keep_attention,
            num_kv_heads=config.kv_heads(index) // config.num_tracks,
        )
        for index, layer in enumerate(config.layers)
    )
    norms = track_norm_parameters(config) * part.tracks // config.num_tracks
    vocabulary = config.vocab_size * config.dim
    tokens, number = batch.num_tokens, batch.number_bytes
    rotations = {(layer.attention.head_dim, getattr(layer.attention, "position", None)) for layer in config.layers}
    rotation = sum(MASTER_BYTES * head_dim * tokens for head_dim, position in rotations if position is not None)
    images = 0
    if isinstance(config, MultimodalConfig):
        images = vision_bytes(config, batch.num_rows * batch.row_images, number)
    return DecoderFootprint(
        layers=layers,
        outside=Weights(dense=outside_parameters(config) + norms + config.other_parameters()),
        vocabulary=Weights(dense=vocabulary),
        ends=tokens * (MASTER_BYTES * (config.dim + 1) + 2 * INDEX_BYTES) + 2 * rotation + images,
        loss_kept=tokens * config.dim * number + vocabulary * MASTER_BYTES,
        loss_working=_loss_working(config, part.vocabulary_ranks, batch),
    )


def _loss_working(config: DecoderConfig, ranks: int, batch: Microbatch) -> int:
    """Return the bytes of the loss beside its gradients: a chunk of logits, casts of the head and of its gradient.

    A softmax of the whole chunk has fp32 copies of the logits: log probabilities, and in 16 bits the logits themselves.
    """
    tokens, number = batch.num_tokens, batch.number_bytes
    rows = config.vocab_size // ranks
    is_cast = number != MASTER_BYTES
    head = is_cast * rows * config.dim * number
    if ranks == 1:
        elements = LOGITS_OF_A_CHUNK * MASTER_BYTES // number
        copies = MASTER_BYTES * (1 + is_cast) * batch.has_whole_softmax
        return min(max(256, elements // rows), tokens) * rows * (number + copies) + 2 * head
    chunk = min(max(256, LOGITS_OF_A_CHUNK // rows), tokens) * rows
    return chunk * number + head + is_cast * chunk * (number + MASTER_BYTES * (2 if tokens * rows > chunk else 1))


@lru_cache(maxsize=4096)
def _layer_weights(layer: LayerConfig, dim: int) -> Weights:
    """Return the parameters of a layer of one track."""
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
    is_split: bool,
    is_recomputed: bool,
    keeps_attention: bool,
    num_kv_heads: int,
) -> LayerFootprint:
    weights = _layer_weights(layer, dim)
    held = Weights(dense=part.tracks * weights.dense, experts=part.tracks * weights.experts // part.expert_ranks)
    positions, number = part.tracks * batch.num_tokens, batch.number_bytes
    # In fp32 the norms of all tracks save the same input of the block.
    stream = batch.num_tokens if starts_block and number == MASTER_BYTES else positions
    saved = MASTER_BYTES * (dim * (stream + positions) + 2 * positions)
    if is_split:  # storing and reading keys and values are two passes through the norm
        saved += positions * (MASTER_BYTES * (dim + 1) + number * dim)
    saved += positions * number * dim + layer.attention.saved_bytes(batch, num_kv_heads, part.tracks)
    feed_forward = layer.feed_forward.activation_bytes(dim, number)
    is_cast = number != MASTER_BYTES
    dense_casts = held.dense - part.tracks * (2 * dim + layer.feed_forward.fp32_parameters(dim))
    casts = Weights(dense=number * dense_casts * is_cast, experts=number * held.experts * is_cast)
    saved += positions * feed_forward.saved + casts.total
    keys_values = positions * number * 2 * num_kv_heads * layer.attention.head_dim * (layer.attention.kv_vectors > 0)
    working = positions * feed_forward.working
    attended = positions * layer.attention.num_heads * (batch.attention_bytes * layer.attention.head_dim + MASTER_BYTES)
    return LayerFootprint(
        weights=held,
        matrices=part.tracks * (layer.attention.matrix_parameters(dim) + layer.feed_forward.matrix_parameters(dim)),
        kept=positions * number * dim + keys_values + attended * keeps_attention if is_recomputed else saved,
        keys_values=keys_values,
        working=saved + working if is_recomputed else working,
        casts=Weights() if is_recomputed else casts,
        working_casts=casts if is_recomputed else Weights(),
    )
