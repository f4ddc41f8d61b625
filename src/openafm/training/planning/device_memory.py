"""What one device of a mesh holds in a training step, as `parallel.py` shares a model out. Imports no tensor library."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from openafm.core.errors import UsageError
from openafm.models.activations import MASTER_BYTES
from openafm.models.config import DecoderConfig
from openafm.training.config import AdamWConfig, MuonConfig, OptimizerConfig
from openafm.training.distributed.config import MeshShape
from openafm.training.planning.footprint import DecoderFootprint, Weights


class UnknownOptimizerError(UsageError):
    """An optimizer whose state is not known here."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device. `peak` is less than their sum: gradients come while activations go.

    `activations` is what a microbatch leaves to the backward pass, `keys_values` those among it that layers put into the
    context. `working` is what is held beside for moments: the logits of a chunk or a layer's backward pass, and weights
    that FSDP has gathered. `allocator` is an allowance for what the allocator keeps of blocks that were freed.
    `checkpoint` is host memory, for the copy of which a checkpoint is written.
    """

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    keys_values: int
    working: int
    allocator: int
    peak: int
    checkpoint: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ShardCounts:
    """Into how many pieces FSDP cuts the dense weights and those of the experts that a device would hold."""

    dense: int
    experts: int

    @property
    def is_cut(self) -> bool:
        return self.dense > 1

    def local(self, weights: Weights) -> int:
        """Numbers that a device keeps."""
        return -(-weights.dense // self.dense) + -(-weights.experts // self.experts)

    def cut(self, weights: Weights) -> int:
        """Numbers that are gathered before use."""
        return weights.dense * (self.dense > 1) + weights.experts * (self.experts > 1)


def shard_counts(shape: MeshShape) -> ShardCounts:
    return ShardCounts(dense=shape.shard * shape.expert, experts=shape.shard)


def gathered_apart(model: DecoderConfig, footprint: DecoderFootprint) -> tuple[list[Weights], Weights]:
    """What FSDP gathers layer by layer, and what it gathers once a microbatch, with the model: the layer at which the
    prompt bypass begins and all that is outside of layers."""
    boundary = model.num_prefill_layers - 1
    layers = [layer.weights for index, layer in enumerate(footprint.layers) if index != boundary]
    return layers, footprint.outside + footprint.layers[boundary].weights


def device_memory(
    model: DecoderConfig,
    footprint: DecoderFootprint,
    shape: MeshShape,
    *,
    optimizer: OptimizerConfig,
    has_average: bool,
    has_several_microbatches: bool,
    recompute: bool = False,
    allocator_share: float = 0.0,
) -> Memory:
    """The allocator keeps `allocator_share` of what comes and goes in a step: activations, gradients, working memory.

    Raises:
        UnknownOptimizerError: neither AdamW nor Muon.
    """
    cut = shard_counts(shape)
    local = MASTER_BYTES * cut.local(footprint.weights)
    state = _optimizer_bytes(optimizer, footprint, cut)
    kept = footprint.recomputed_activations if recompute else footprint.activations
    computing = max(footprint.loss_working, *(layer.working for layer in footprint.layers))
    if recompute:
        computing = max(footprint.loss_working, *(layer.working + layer.kept for layer in footprint.layers))
    if cut.is_cut:
        layers, root = gathered_apart(model, footprint)
        # A layer and the next one, which is gathered ahead, each with the whole gradients that wait to be summed.
        largest = max((cut.cut(weights) for weights in layers), default=0)
        working = computing + MASTER_BYTES * (cut.cut(root) + 4 * largest)
        moving = local + kept + working
    else:
        working = computing
        during_loss = kept + footprint.loss_working + local * has_several_microbatches
        backward = footprint.backward_peak(are_gradients_there=has_several_microbatches)
        moving = max(during_loss, local + kept + computing if recompute else backward, local)
    average = local if has_average else 0
    held = local + state + average
    allocator = round(allocator_share * moving)
    return Memory(
        parameters=local,
        gradients=local,
        optimizer=state,
        average=average,
        activations=kept,
        keys_values=footprint.keys_values,
        working=working,
        allocator=allocator,
        peak=held + moving + allocator,
        checkpoint=held,
    )


def _optimizer_bytes(optimizer: OptimizerConfig, footprint: DecoderFootprint, cut: ShardCounts) -> int:
    """Two moments of AdamW for each weight; of Muon one, for the matrices inside the layers of a model without tracks."""
    numbers = cut.local(footprint.weights)
    match optimizer:
        case AdamWConfig():
            return 2 * MASTER_BYTES * numbers
        case MuonConfig():
            return MASTER_BYTES * (2 * numbers - cut.local(Weights(dense=footprint.muon_matrices)))
    raise UnknownOptimizerError(f"a plan does not know what {type(optimizer).__name__} keeps; it knows AdamW and Muon")
