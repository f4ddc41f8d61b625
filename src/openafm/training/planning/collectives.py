"""The collectives of a step on a mesh, as `parallel.py` divides a model. Imports no tensor library.

Bytes are those that one device sends. In a ring of p devices each sends (p - 1) / p of the whole to gather or scatter it,
twice that to reduce it, and (p - 1) / p of its rows to exchange them. A reduction across slices runs inside each slice
first, so a device sends only its share across.
"""

from __future__ import annotations

from dataclasses import dataclass

from openafm.models.activations import MASTER_BYTES, Microbatch, past_tokens
from openafm.models.config import DecoderConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.training.config import ActivationCheckpointingConfig
from openafm.training.distributed.config import MeshShape
from openafm.training.planning.device_memory import gathered_groups, shard_counts
from openafm.training.planning.footprint import LOGITS_OF_A_CHUNK, DecoderFootprint, Weights

BUCKET_BYTES = 64 << 20
"""Gradients per all-reduce in parallel.py, for parameters that FSDP does not shard."""


VOCABULARY = "vocabulary of the loss"
"""What the collectives of a loss with a divided vocabulary exchange."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """All calls of one kind in a step: axis, count, bytes that a device sends `inside` its slice and `across` slices.

    `overlaps` is True if the device computes meanwhile.
    """

    axis: str
    kind: str
    what: str
    count: int
    inside: int
    across: int
    overlaps: bool


def collectives(
    model: DecoderConfig,
    footprint: DecoderFootprint,
    shape: MeshShape,
    *,
    batch: Microbatch,
    num_microbatches: int,
    recomputing: ActivationCheckpointingConfig | None = None,
) -> tuple[Collective, ...]:
    """Return the collectives of a step of microbatches `batch`, without sums of single numbers."""
    state_bytes = batch.num_tokens * model.dim * batch.number_bytes
    states = _of_tracks(model, shape, state_bytes, num_microbatches)
    rows = _of_experts(model, shape, state_bytes, num_microbatches)
    weights = _of_weights(model, footprint, shape, num_microbatches, batch.number_bytes)
    vocabulary = _of_vocabulary(model, shape, batch, num_microbatches)
    keys_values = _of_rows(model, shape, batch, num_microbatches, recomputing)
    return (*_of_copies(footprint, shape), *weights, *keys_values, *rows, *states, *vocabulary)


def _of_tracks(model: DecoderConfig, shape: MeshShape, state_bytes: int, num_microbatches: int) -> list[Collective]:
    """Return the all-reduces of states at block ends in the forward pass, and of their gradients in the backward pass."""
    if shape.track == 1 or model.tracks is None:
        return []
    count = 2 * num_microbatches * (len(model.layers) // model.tracks.block_depth)
    return [
        _inside("track", "all-reduce", "states at block ends", count, 2 * _ring(shape.track, count * state_bytes), False)
    ]


def _of_rows(
    model: DecoderConfig,
    shape: MeshShape,
    batch: Microbatch,
    num_microbatches: int,
    recomputing: ActivationCheckpointingConfig | None,
) -> list[Collective]:
    """Return the exchanges of keys and values between the parts of rows, and of their gradients.

    A layer that reads the keys and values of another one reuses what that one got. A recomputed layer gets them again.
    """
    if shape.context == 1:
        return []
    gathers = sums = sends = gathered = summed = sent = 0
    of_a_head = model.num_tracks // shape.track * 2 * batch.number_bytes
    for index, layer in enumerate(model.layers):
        of_a_position = of_a_head * layer.attention.num_own_kv_heads * layer.attention.head_dim
        if of_a_position == 0:
            continue
        again = recomputing is not None and recomputing.recomputes(index) and index < model.num_prefill_layers - 1
        size = of_a_position * past_tokens(layer.attention.window, batch)
        if not batch.sends_window(layer.attention.window):
            gathers, sums = gathers + 1 + again, sums + 1
            gathered, summed = gathered + (1 + again) * size, summed + size
        else:
            sends, sent = sends + 2 + again, sent + (2 + again) * size
    found = [
        ("all-gather", "keys and values", gathers, gathered),
        ("reduce-scatter", "gradients of keys and values", sums, summed),
        ("all-to-all", "keys and values of windows", sends, sent),
    ]
    return [
        _inside("context", kind, what, num_microbatches * count, num_microbatches * size, False)
        for kind, what, count, size in found
        if count
    ]


def _of_vocabulary(model: DecoderConfig, shape: MeshShape, batch: Microbatch, num_microbatches: int) -> list[Collective]:
    """Return the all-reduces of a loss with a divided vocabulary: three numbers of each position, and its gradient.

    The shards of the head's gradient are averaged once a step.
    """
    ranks = shape.vocabulary_ranks(model.vocab_size)
    if ranks == 1:
        return []
    positions = batch.num_tokens
    chunks = -(-positions // max(256, LOGITS_OF_A_CHUNK * ranks // model.vocab_size))
    of_microbatch = positions * (3 * MASTER_BYTES + model.dim * batch.number_bytes)
    head = MASTER_BYTES * model.vocab_size * model.dim // shard_counts(shape).dense
    count, size = num_microbatches * (2 * chunks + 1) + 1, num_microbatches * of_microbatch + head
    return [_inside("track", "all-reduce", VOCABULARY, count, 2 * _ring(ranks, size), False)]


def _of_experts(model: DecoderConfig, shape: MeshShape, state_bytes: int, num_microbatches: int) -> list[Collective]:
    """Return the exchanges of rows with experts, in both directions, forward and backward."""
    chosen = [
        layer.feed_forward.router.num_chosen for layer in model.layers if isinstance(layer.feed_forward, ExpertsConfig)
    ]
    if shape.expert == 1:
        return []
    tracks = model.num_tracks // shape.track
    sent = 4 * num_microbatches * sum(chosen) * tracks * state_bytes
    count = 4 * num_microbatches * len(chosen)
    return [_inside("expert", "all-to-all", "rows of experts", count, _ring(shape.expert, sent), False)]


def _of_weights(
    model: DecoderConfig, footprint: DecoderFootprint, shape: MeshShape, num_microbatches: int, number_bytes: int
) -> list[Collective]:
    """Return FSDP's collectives: weights gathered for each layer's forward and backward pass, gradients reduced.

    Layers are gathered in the precision, embedding and head in fp32; sums of gradients are fp32.
    """
    layers, root = gathered_groups(model, footprint)
    shards, found = shard_counts(shape), []
    for axis, size, of in (
        ("shard" if shape.expert == 1 else "shard+expert", shards.dense, lambda weights: weights.dense),
        ("shard", shards.experts, lambda weights: weights.experts),
    ):
        per_layer = [of(weights) for weights in layers if of(weights)]
        with_model = of(root)
        if size == 1 or not (per_layer or with_model):
            continue
        kind = "experts" if of(Weights(experts=1)) else "weights"
        gathers = num_microbatches * (2 * len(per_layer) + bool(with_model))
        sums = num_microbatches * (len(per_layer) + bool(with_model))
        gathered = num_microbatches * (number_bytes * 2 * sum(per_layer) + MASTER_BYTES * with_model)
        summed = num_microbatches * MASTER_BYTES * (sum(per_layer) + with_model)
        found.append(_inside(axis, "all-gather", kind, gathers, _ring(size, gathered), True))
        found.append(_inside(axis, "reduce-scatter", f"gradients of {kind}", sums, _ring(size, summed), True))
    return found


def _of_copies(footprint: DecoderFootprint, shape: MeshShape) -> list[Collective]:
    """Return the sums of gradients over the copies of the model, once a step: the only collectives across slices."""
    found, shards, inner = [], shard_counts(shape), shape.copies // shape.slices
    for what, size, is_sharded in (
        ("gradients of weights", footprint.weights.dense // shards.dense, shards.dense > 1),
        ("gradients of experts", footprint.weights.experts // shards.experts, shards.experts > 1),
    ):
        if shape.copies == 1 or not size:
            continue
        found.append(
            Collective(
                axis="replicate",
                kind="all-reduce",
                what=what,
                count=len(footprint.layers) if is_sharded else -(-MASTER_BYTES * size // BUCKET_BYTES),
                inside=2 * _ring(inner, MASTER_BYTES * size),
                across=2 * _ring(shape.slices, MASTER_BYTES * size // inner),
                overlaps=is_sharded,
            )
        )
    return found


def _inside(axis: str, kind: str, what: str, count: int, sent: int, overlaps: bool) -> Collective:
    return Collective(axis=axis, kind=kind, what=what, count=count, inside=sent, across=0, overlaps=overlaps)


def _ring(size: int, total: int) -> int:
    """Return the bytes that each of `size` devices sends to gather, scatter or exchange `total` bytes."""
    return total * (size - 1) // size
