"""What a training step keeps in memory, by arithmetic on the model's config. Imports no tensor library.

What the backward pass needs was counted by what autograd saves, operation by operation; `tests/training/test_footprint.py`
holds the counts against its hooks. All of it is for one device: the tracks and the experts that it holds, with weights that
are not (yet) cut up by FSDP.

Letters: T tracks held here, N positions, D model dim, V vocabulary; H heads and K key/value heads of a track, C head dim;
F hidden dim, E experts of a track, P experts chosen for a token, L tokens of a document.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from openafm.core.errors import UsageError
from openafm.models.config import (
    AttentionConfig,
    BaseAttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    FeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    UntiedHeadConfig,
)
from openafm.models.experts_config import ExpertsConfig

MASTER_BYTES = 4
"""Weights, their gradients and the optimizer's state are fp32, whatever the model computes in; so are all norms."""
INDEX_BYTES = 8
LOGITS_OF_A_CHUNK = 1 << 22
"""As in training/cross_entropy.py, which a module free of tensors cannot import; so is the next."""
LOCAL_BLOCK = 64


class UnknownFootprintError(UsageError):
    """A kind of layer whose memory is not known here."""


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """What a device computes at once: rows of `row_tokens`, full of documents of `document_tokens`, all to be learned.

    `number_bytes` is the width of the precision. A CPU attends in fp32 whatever that is: `attention_bytes`.
    """

    num_rows: int
    row_tokens: int
    document_tokens: int
    number_bytes: int
    attention_bytes: int

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.row_tokens

    @property
    def documents(self) -> tuple[int, ...]:
        """Lengths of the documents of all rows."""
        whole, rest = divmod(self.row_tokens, self.document_tokens)
        return self.num_rows * ((self.document_tokens,) * whole + ((rest,) if rest else ()))


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
    return layers + Weights(dense=_track_norms(config)) + _outside(config)


def decoder_footprint(config: DecoderConfig, part: DeviceShare, batch: Microbatch) -> DecoderFootprint:
    """What a device with this part of the model keeps of a microbatch.

    Raises:
        UnknownFootprintError: the model has a kind of layer that is not known here.
    """
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
    norms = _track_norms(config) * part.tracks // config.num_tracks
    vocabulary = config.vocab_size * config.dim
    tokens, number = batch.num_tokens, batch.number_bytes
    chunk = min(max(256, LOGITS_OF_A_CHUNK // config.vocab_size), tokens) * config.vocab_size
    is_cast = number != MASTER_BYTES
    turns = {(layer.attention.head_dim, getattr(layer.attention, "position", None)) for layer in config.layers}
    rotation = sum(MASTER_BYTES * head_dim * tokens for head_dim, position in turns if position is not None)
    return DecoderFootprint(
        layers=layers,
        outside=_outside(config) + Weights(dense=norms),
        vocabulary=Weights(dense=vocabulary),
        ends=tokens * (MASTER_BYTES * (config.dim + 1) + 2 * INDEX_BYTES) + 2 * rotation,
        loss_kept=tokens * config.dim * number + vocabulary * MASTER_BYTES,
        loss_working=chunk * number
        + is_cast
        * (vocabulary * number + chunk * (number + MASTER_BYTES * (2 if tokens * config.vocab_size > chunk else 1))),
    )


def _outside(config: DecoderConfig) -> Weights:
    heads = 2 if isinstance(config.head, UntiedHeadConfig) else 1
    return Weights(dense=heads * config.vocab_size * config.dim + config.dim)


def _track_norms(config: DecoderConfig) -> int:
    if config.tracks is None or config.tracks.norm is None:
        return 0
    return config.tracks.num_tracks * config.dim * len(config.layers) // config.tracks.block_depth


@lru_cache(maxsize=4096)
def _layer_weights(layer: LayerConfig, dim: int) -> Weights:
    """Of one track."""
    return Weights(dense=2 * dim + _attention_weights(layer.attention, dim)) + _feed_forward_weights(layer.feed_forward, dim)


def _attention_weights(attention: BaseAttentionConfig, dim: int) -> int:
    if not isinstance(attention, AttentionConfig):
        raise _unknown(attention)
    inner = attention.num_heads * attention.head_dim
    keys_values = attention.keys_values
    own = keys_values.num_heads * attention.head_dim if isinstance(keys_values, OwnKeysValuesConfig) else 0
    norms = 0 if attention.qk_norm is None else attention.head_dim * (2 if own else 1)
    biases = attention.input_bias * (inner + 2 * own) + attention.output_bias * dim
    return 2 * dim * (inner + own) + norms + biases


def _muon_matrices(layer: LayerConfig, dim: int) -> int:
    """Numbers in matrices of two dims, where no tracks give them a third."""
    attention, feed_forward = layer.attention, layer.feed_forward
    own = attention.keys_values.num_heads if isinstance(attention.keys_values, OwnKeysValuesConfig) else 0
    inside = 2 * dim * attention.head_dim * (attention.num_heads + own)
    if isinstance(feed_forward, DenseFeedForwardConfig):
        return inside + 3 * dim * feed_forward.hidden_dim
    return inside + (feed_forward.num_experts * dim if isinstance(feed_forward, ExpertsConfig) else 0)


def _feed_forward_weights(feed_forward: FeedForwardConfig, dim: int) -> Weights:
    match feed_forward:
        case DenseFeedForwardConfig(hidden_dim=hidden, bias=bias):
            return Weights(dense=3 * dim * hidden + bias * (2 * hidden + dim))
        case ExpertsConfig(num_experts=experts, hidden_dim=hidden):
            return Weights(dense=experts * dim, experts=experts * 3 * dim * hidden)
    raise _unknown(feed_forward)


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
    saved += positions * number * dim + _saved_by_attention(layer.attention, num_kv_heads, part, batch)
    feed_forward = _saved_by_feed_forward(layer.feed_forward, dim, batch)
    router = experts * dim if (experts := getattr(layer.feed_forward, "num_experts", 0)) else 0  # computes in fp32
    matrices = held.total - part.tracks * (2 * dim + router)
    return LayerFootprint(
        weights=held,
        saved=saved + positions * feed_forward.saved,
        casts=0 if number == MASTER_BYTES else number * matrices,
        input=positions * number * dim,
        matrices=0 if part.has_tracks else _muon_matrices(layer, dim),
        keys_values=positions * number * 2 * num_kv_heads * layer.attention.head_dim * _owns(layer.attention),
        working=positions * feed_forward.working,
    )


def _saved_by_attention(attention: BaseAttentionConfig, num_kv_heads: int, part: DeviceShare, batch: Microbatch) -> int:
    """Queries, keys, values and output: as normed, as attended, and the output as it is projected."""
    if not isinstance(attention, AttentionConfig):
        raise _unknown(attention)
    queries, keys = attention.num_heads * attention.head_dim, num_kv_heads * attention.head_dim
    per_position = batch.number_bytes * queries
    if attention.qk_norm is not None:
        per_position += MASTER_BYTES * (queries + attention.num_heads)
        per_position += MASTER_BYTES * (keys + num_kv_heads) * _owns(attention)
    is_widened = batch.attention_bytes != batch.number_bytes
    # Another layer's keys and values are saved there already, unless they are widened for this one.
    keeps_keys = _owns(attention) or is_widened
    saved = part.tracks * batch.num_tokens * per_position
    for length, times in Counter(batch.documents).items():
        call = _attended(length, attention.window, is_widened)
        of_a_track = 2 * call.queries * queries + 2 * call.keys * keys * keeps_keys
        sums = MASTER_BYTES * call.queries * attention.num_heads
        saved += times * (part.tracks * (batch.attention_bytes * of_a_track + sums) + batch.attention_bytes * call.mask)
    return saved


@dataclass(frozen=True, kw_only=True)
class _Attended:
    """Positions of queries and of keys that attention to one document saves, and numbers of its masks."""

    queries: int
    keys: int
    mask: int


def _attended(length: int, window: int | None, is_widened: bool) -> _Attended:
    """As models/attention_context.py attends: at once, under a mask, or in blocks of which each sees the one before it."""
    if window is None or window >= length:
        return _Attended(queries=length, keys=length, mask=0)
    size = max(window, LOCAL_BLOCK)
    if length <= 2 * size:
        return _Attended(queries=length, keys=length, mask=length * length)
    padded = length + -length % size
    twice = 2 * (padded - size)  # each block but the first has a copy of its own keys and of those before it
    mask = 2 * size * size + (size * size if window < size else 0)
    return _Attended(queries=padded, keys=twice + (size if is_widened else padded), mask=mask)


@dataclass(frozen=True, kw_only=True)
class _PerPosition:
    """Bytes for each position of a track."""

    saved: int
    working: int


def _saved_by_feed_forward(feed_forward: FeedForwardConfig, dim: int, batch: Microbatch) -> _PerPosition:
    number = batch.number_bytes
    match feed_forward:
        case DenseFeedForwardConfig(hidden_dim=hidden):
            # Its input; gate, up, the activation of the gate, and their product.
            return _PerPosition(saved=number * (dim + 4 * hidden), working=number * (2 * hidden + dim))
        case ExpertsConfig(num_experts=experts, hidden_dim=hidden, router=router):
            chosen = router.num_chosen
            # Logits, probabilities and their logarithm's sum, for the choice and for the losses of the routing.
            routed = MASTER_BYTES * (dim + 4 * experts + 2) + chosen * (3 * INDEX_BYTES + MASTER_BYTES + number)
            # Sorted input, as a dense one inside, output before and after weights.
            rows = chosen * number * (3 * dim + 4 * hidden)
            return _PerPosition(saved=routed + rows, working=number * (dim + chosen * max(2 * dim, 2 * hidden - dim)))
    raise _unknown(feed_forward)


def _owns(attention: BaseAttentionConfig) -> bool:
    return isinstance(attention.keys_values, OwnKeysValuesConfig)


def _unknown(kind: object) -> UnknownFootprintError:
    return UnknownFootprintError(
        f"a plan does not know what {type(kind).__name__} keeps in memory; it knows AttentionConfig, DenseFeedForwardConfig"
        " and ExpertsConfig"
    )
