"""Memory of one device of a mesh in a training step, as `parallel.py` divides a model. Imports no tensor library."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from openafm.models.activations import MASTER_BYTES
from openafm.models.config import DecoderConfig
from openafm.training.distributed.config import MeshShape
from openafm.training.optimizer_config import OptimizerConfig
from openafm.training.planning.footprint import DecoderFootprint, Weights


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device. `peak` is less than their sum, because gradients are allocated while activations are freed.

    Attributes:
        activations: what a microbatch keeps for the backward pass; `keys_values` is part of it.
        working: temporary memory of the loss or of a layer's backward pass, and weights that FSDP has gathered.
        allocator: an allowance for freed memory that the allocator keeps.
        checkpoint: host memory for the copy from which a checkpoint is written.
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
    """The number of FSDP shards of the dense weights and of the experts' weights."""

    dense: int
    experts: int

    @property
    def is_sharded(self) -> bool:
        return self.dense > 1

    def local(self, weights: Weights) -> int:
        """Return the parameters in the shards of one device."""
        return -(-weights.dense // self.dense) + -(-weights.experts // self.experts)

    def gathered(self, weights: Weights) -> int:
        """Return the parameters that are gathered before use."""
        return weights.dense * (self.dense > 1) + weights.experts * (self.experts > 1)


def shard_counts(shape: MeshShape) -> ShardCounts:
    return ShardCounts(dense=shape.shard * shape.expert, experts=shape.shard)


def gathered_groups(model: DecoderConfig, footprint: DecoderFootprint) -> tuple[list[Weights], Weights]:
    """Return the weights that FSDP gathers layer by layer, and those that it gathers once a microbatch.

    The latter are the weights outside of layers and of the layer at which the prompt bypass starts.
    """
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
    number_bytes: int = MASTER_BYTES,
    allocator_share: float = 0.0,
) -> Memory:
    """Return the memory of a device. FSDP gathers layers in numbers of `number_bytes`.

    The allocator keeps `allocator_share` of what a step allocates and frees.
    """
    shards = shard_counts(shape)
    local = MASTER_BYTES * shards.local(footprint.weights)
    matrices = shards.local(Weights(dense=footprint.matrices))
    state = MASTER_BYTES * optimizer.state_numbers(shards.local(footprint.weights), matrices)
    # FSDP gathers in the precision and frees: no 16-bit copies of gathered weights wait for the backward pass.
    activations, working = footprint.activations - shards.gathered(footprint.casts), footprint.working
    if shards.is_sharded:
        working = _sharded_working(model, footprint, shards, number_bytes)
        temporary = local + activations + working
    else:
        during_loss = activations + footprint.loss_working + local * has_several_microbatches
        temporary = max(during_loss, footprint.backward_peak(has_gradients=has_several_microbatches), local)
    average = local if has_average else 0
    held = local + state + average
    allocator = round(allocator_share * temporary)
    return Memory(
        parameters=local,
        gradients=local,
        optimizer=state,
        average=average,
        activations=activations,
        keys_values=footprint.keys_values,
        working=working,
        allocator=allocator,
        peak=held + temporary + allocator,
        checkpoint=held,
    )


def _sharded_working(model: DecoderConfig, footprint: DecoderFootprint, shards: ShardCounts, number_bytes: int) -> int:
    """Return the largest additional memory of the loss and of a layer's backward pass, with weights that FSDP gathers.

    In the backward pass of a layer, that layer and the one before, gathered ahead, have whole weights in the precision, and
    gradients of the layer itself or of the one after wait for their reduction in fp32. The layer that is gathered with the
    weights outside of layers has whole weights and gradients in fp32 until the end; those of the head are part of the loss.
    """
    boundary = model.num_prefill_layers - 1
    weights = [shards.gathered(layer.weights) for layer in footprint.layers]
    of_root, weights[boundary] = weights[boundary], 0
    root = MASTER_BYTES * (of_root + shards.gathered(footprint.outside))
    largest = footprint.loss_working + number_bytes * max(weights)
    for index, layer in enumerate(footprint.layers):
        ahead = weights[index - 1] if index else 0
        after = weights[index + 1] if index + 1 < len(weights) else 0
        gathered = number_bytes * (weights[index] + ahead) + MASTER_BYTES * (max(weights[index], after) + of_root)
        largest = max(largest, layer.working - shards.gathered(layer.working_casts) + gathered)
    return root + largest
