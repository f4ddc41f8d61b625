"""The state that a run starts or resumes with: fresh weights, those of a bundle, or those of a checkpoint."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from openafm.adapters.lora import install as install_adapter
from openafm.adapters.lora import load_smaller_adapter
from openafm.bundle import open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.errors import UncompressibleModelError
from openafm.core.errors import UsageError
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.initialization.streamed import stream_initial_weights
from openafm.models.initialization.upcycling import upcycle
from openafm.models.initialization.upcycling_config import UpcyclingError, upcycled_config
from openafm.models.reward import with_reward_head
from openafm.models.reward_config import RewardModelConfig
from openafm.models.vision.multimodal import with_eyes
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.training.allocator import return_freed_blocks
from openafm.training.checkpoints.checkpoint import Checkpoint
from openafm.training.checkpoints.record import AnotherRunError
from openafm.training.config import PlainStart, TrainerConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes
from openafm.training.resuming import first_difference
from openafm.training.state import PreparedModel, TrainingState


class BundleMismatchError(UsageError):
    """The start bundle does not hold the model of the config, or has changed since the run started."""


def fresh_state(config: TrainerConfig, device: str, parallelism: Parallelism | None = None) -> TrainingState:
    """Return the state at step 0, from the seed or a bundle. Under a time budget `num_steps` is set later.

    Raises:
        BundleMismatchError: the bundle's identity or model differs from the config's by more than a shorter context.
        UpcyclingError: the bundle cannot be upcycled, or `from_bundle` is not set.
        AdapterWeightsError: the bundle's adapter, to be trained further, is larger than the configured one.
        UncompressibleModelError: the bundle's weights are compressed and the run trains weights.
    """
    torch.manual_seed(config.seed)
    if config.upcycle is not None and config.from_bundle is None:
        raise UpcyclingError("upcycle starts from a dense bundle: name it in from_bundle")
    if config.from_bundle is not None:
        model = _bundle_model(config, config.from_bundle)
        config.start.apply_to_bundle(model, config.seed)
    elif _is_streamed(config) and isinstance(config.start, PlainStart):
        state = _state(config, PreparedModel(model=_on_meta(config.model)), device, parallelism)
        _stream_weights(config, state)
        return state
    else:
        model = config.model.build(config.seed)
        config.start.apply(model, config.seed)
    return _state(config, _prepared(config, model), device, parallelism)


def resumed_state(
    config: TrainerConfig, device: str, checkpoint: Checkpoint, parallelism: Parallelism | None = None
) -> TrainingState:
    """Return the state of a verified checkpoint, written by any number of processes.

    The start bundle is only needed for the base of an adapter.

    Raises:
        CheckpointError: the checkpoint's tensors do not fit the model.
        AnotherRunError: the checkpoint is beyond the last step of the config.
    """

    def prepared() -> TrainingState:
        model = PreparedModel(model=_on_meta(config.model)) if _is_streamed(config) else untrained_model(config)
        state = _state(config, model, device, parallelism)
        checkpoint.check_layout(state.shapes())
        return state

    processes = Processes() if parallelism is None else parallelism.processes
    state = processes.run_on_all(prepared)
    is_alone = processes.control is None
    state.restore(checkpoint.read() if is_alone else checkpoint.read_into(state.targets(checkpoint.index), processes))
    state.num_steps = config.budget.steps(config.data) or state.num_steps
    if state.step > state.num_steps:
        raise AnotherRunError(
            f"{checkpoint.path} is beyond the {state.num_steps:,} steps of the config; raise its budget, or choose "
            "another output folder"
        )
    return state


def untrained_model(config: TrainerConfig) -> PreparedModel:
    """Return the model of a run with everything but the trained weights, which a checkpoint provides."""
    if config.adapter is not None and config.from_bundle is not None:
        return PreparedModel(model=_bundle_model(config, config.from_bundle))
    return _prepared(config, config.model.build(config.seed))


def _is_streamed(config: TrainerConfig) -> bool:
    """Return True if each process gets memory for its part of the weights only: they are divided, and all are trained."""
    return (
        config.parallel.divides_weights
        and config.adapter is None
        and config.qat is None
        and type(config.model) is DecoderConfig
    )


def _on_meta(config: DecoderConfig) -> Decoder:
    with torch.device("meta"):
        return config.build()


@torch.no_grad()
def _stream_weights(config: TrainerConfig, state: TrainingState) -> None:
    """Initialize this process's parts of the weights, equal to those of a model in one process."""

    def store(name: str, whole: Tensor) -> None:
        state.parameters[name].copy_(state.parallelism.part_of(name, whole))

    stream_initial_weights(_on_meta(config.model), config.seed, store)
    if state.ema is not None:
        for name, average in state.ema.items():
            average.copy_(state.parameters[name])


def _prepared(config: TrainerConfig, model: Decoder) -> PreparedModel:
    return PreparedModel(model=model, awareness=None if config.qat is None else config.qat.install(model))


def _state(config: TrainerConfig, prepared: PreparedModel, device: str, parallelism: Parallelism | None) -> TrainingState:
    prepared.model.compute_dtype = config.precision.compute_dtype(torch.device(device).type)
    config.precision.install(prepared.model)
    if config.activation_checkpointing is not None:
        config.activation_checkpointing.apply(prepared.model)
        if torch.device(device).type == "cpu":
            return_freed_blocks()
    num_steps = config.budget.steps(config.data) or 1
    return TrainingState(prepared, config.optimizer, config.ema, num_steps, parallelism, device)


def _bundle_model(config: TrainerConfig, name_or_path: str) -> Decoder:
    bundle = open_bundle(name_or_path)
    found = bundle.config if config.upcycle is None else upcycled_config(bundle.config, config.upcycle)
    if config.from_identity not in (None, bundle.identity):
        raise BundleMismatchError(
            f"{bundle.path} has identity {bundle.identity}, the run started from {config.from_identity}; restore that "
            "bundle or start the run in another folder"
        )
    expected = config.model
    gets_eyes = isinstance(expected, MultimodalConfig) and not isinstance(found, MultimodalConfig)
    gets_head = isinstance(expected, RewardModelConfig) and not isinstance(found, RewardModelConfig)
    if gets_eyes or gets_head:
        expected = cast("MultimodalConfig | RewardModelConfig", expected).decoder
    lengthened = config.adapter is None and expected.context_length > found.context_length
    # A later stage may train more resolution modes; they have no weights.
    difference = first_difference(found, expected, ignored=("modes", *(("context_length",) if lengthened else ())))
    if difference is not None:
        upcycled = "" if config.upcycle is None else " upcycled"
        raise BundleMismatchError(f"the{upcycled} model of {bundle.path} differs from the config's: {difference}")
    if bundle.numerics.is_compressed and config.adapter is None:
        raise UncompressibleModelError(
            f"{bundle.path} is compressed ({bundle.numerics.weights}) and its weights cannot be trained; start from the "
            "uncompressed bundle, or train an adapter"
        )
    model = load_decoder(bundle)
    if gets_eyes:
        return with_eyes(model, cast("MultimodalConfig", config.model), config.seed)
    if gets_head:
        return with_reward_head(model, cast("RewardModelConfig", config.model), config.seed)
    if config.upcycle is not None:
        return upcycle(model, config.upcycle, config.seed)
    if config.adapter is not None:
        install_adapter(model, config.adapter, config.seed)
        if bundle.recovery_adapter is not None:
            load_smaller_adapter(model, bundle.recovery_adapter.config, bundle.recovery_adapter.weights())
    return model
