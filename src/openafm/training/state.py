"""All that a training run changes as it goes: weights, optimizer, average, random state, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from openafm.adapters.lora import install as install_adapter
from openafm.adapters.lora import load_smaller_adapter
from openafm.bundle import open_bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.errors import UncompressibleModelError
from openafm.compression.qat import QuantizationAwareness
from openafm.core.errors import UsageError
from openafm.models.decoder import Decoder
from openafm.models.upcycling import upcycle
from openafm.models.upcycling_config import UpcyclingError, upcycled_config
from openafm.training.config import EMAConfig, OptimizerConfig, StepBudget, TrainerConfig, first_difference
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes

if TYPE_CHECKING:
    from openafm.training.checkpoints.checkpoint import Checkpoint
    from openafm.training.checkpoints.index import Index

Tensors = Mapping[str, Tensor]


class BundleMismatchError(UsageError):
    """The bundle to start from holds another model."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A copy of the state between two steps; `tensors` by group: model, optimizer, random and, if there is one, ema.

    Where processes share the state out, a tensor is a DTensor on the host, which holds the part of this one.
    """

    step: int
    num_steps: int
    num_tokens: int
    seconds: float
    tensors: Mapping[str, Tensors]


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model as it is trained, with the simulation or the adapter that the config asks for over it."""

    model: Decoder
    awareness: QuantizationAwareness | None = None


class TrainingState:
    """The state of a run: `step` updates done of `num_steps`, `num_tokens` real tokens seen, `seconds` spent.

    Only weights that learn are part of it: those of a base under an adapter stay in their bundle. `parameters`, the moments
    of the optimizer and the average `ema` are what this process holds of them, plain tensors by name.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        optimizer: OptimizerConfig,
        ema: EMAConfig | None,
        num_steps: int,
        parallelism: Parallelism | None = None,
        device: str = "cpu",
    ) -> None:
        self.parallelism = parallelism or Parallelism(ParallelConfig(), prepared.model.config, Processes())
        self.model, self._awareness = prepared.model, prepared.awareness
        self.step, self.num_steps, self.num_tokens, self.seconds = 0, num_steps, 0, 0.0
        self.parameters = self.parallelism.apply(self.model, device)
        self.optimizers = optimizer.build(self.parameters)
        self._ema_config = ema
        self.ema = None if ema is None else {name: p.detach().clone() for name, p in self.parameters.items()}

    def begin_step(self) -> None:
        """Tell a simulation of few bits how far the run is."""
        if self._awareness is not None:
            self._awareness.advance(self.step / self.num_steps)

    def update_ema(self) -> None:
        """Move the average towards the weights, after update number `step`."""
        if self.ema is None or self._ema_config is None:
            return
        weights = [self.parameters[name].detach() for name in self.ema]
        torch._foreach_lerp_(list(self.ema.values()), weights, 1 - self._ema_config.decay_at(self.step))

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """Copy everything to the host, so that training can go on while the copy is written."""
        tensors: dict[str, Tensors] = {
            "model": self.parameters,
            "optimizer": self._optimizer_tensors(),
            "random": _random_state(),
        }
        if self.ema is not None:
            tensors["ema"] = self.ema
        return Snapshot(
            step=self.step,
            num_steps=self.num_steps,
            num_tokens=self.num_tokens,
            seconds=self.seconds,
            tensors={
                group: {name: self._as_part(group, name, _copy(tensor)) for name, tensor in named.items()}
                for group, named in tensors.items()
            },
        )

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of the same config: from here on every bit is as it was from there on."""
        self.step, self.num_steps = snapshot.step, snapshot.num_steps
        self.num_tokens, self.seconds = snapshot.num_tokens, snapshot.seconds
        self._copy_all(snapshot.tensors["model"], self.parameters)
        if self.ema is not None:
            self._copy_all(snapshot.tensors["ema"], self.ema)
        self.parallelism.forget_gathered(self.model)
        self._restore_optimizers(snapshot.tensors.get("optimizer", {}))  # none before the first step
        _restore_random_state(snapshot.tensors["random"])

    def shapes(self) -> Mapping[str, torch.Size]:
        """The whole shapes of what learns."""
        return {name: self._as_part("model", name, torch.empty(p.shape)).shape for name, p in self.parameters.items()}

    def targets(self, index: Index) -> dict[str, Tensor]:
        """Memory on the host for what this process holds of the tensors of a checkpoint of the same model."""
        targets = {}
        for key, stored in index.items():
            group, _, name = key.partition("/")
            parameter = self.parameters.get(_parameter_name(group, name))
            shape = stored.shape if parameter is None or not stored.shape else parameter.shape
            targets[key] = self._as_part(group, name, torch.empty(shape, dtype=stored.dtype))
        return targets

    def _as_part(self, group: str, name: str, local: Tensor) -> Tensor:
        """A tensor on the host as the part of the whole that it is."""
        if self.parallelism.mesh is None or group == "random":
            return local
        return self.parallelism.global_view(_parameter_name(group, name), local)

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizers' state by the parameters' names, as in `layers.0.norm.weight/exp_avg`."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.parameters.items()}
        per_parameter = [item for optimizer in self.optimizers for item in optimizer.state.items()]
        return {f"{names[p]}/{key}": tensor for p, values in per_parameter for key, tensor in values.items()}

    def _copy_all(self, source: Tensors, target: Tensors) -> None:
        for name, tensor in target.items():
            tensor.copy_(self.parallelism.local(source[name]))

    def _restore_optimizers(self, tensors: Tensors) -> None:
        for optimizer in self.optimizers:
            numbers = {p: number for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
            state: dict[int, dict[str, Tensor]] = {}
            for key, tensor in tensors.items():
                name, _, slot = key.rpartition("/")
                if self.parameters[name] in numbers:
                    state.setdefault(numbers[self.parameters[name]], {})[slot] = self.parallelism.local(tensor).clone()
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def fresh_state(config: TrainerConfig, device: str, parallelism: Parallelism | None = None) -> TrainingState:
    """The state at step 0: weights from the seed or from a bundle. With a time budget the steps are yet to be counted.

    Raises:
        BundleMismatchError: the bundle is not the one that the run is of, or differs in more than a shorter context.
        UpcyclingError: the bundle is to be upcycled and cannot be, or there is none.
        AdapterWeightsError: the bundle carries an adapter, to be trained further, that is larger than the one to be trained.
        UncompressibleModelError: the bundle's weights have few bits and are to be trained.
    """
    torch.manual_seed(config.seed)
    if config.upcycle is not None and config.from_bundle is None:
        raise UpcyclingError("upcycle starts from a dense bundle: name it in from_bundle")
    if config.from_bundle is not None:
        model = _bundle_model(config, config.from_bundle)
    else:
        model = config.model.build(config.seed)
        config.start.apply(model, config.seed)
    return _state(config, _prepared(config, model), device, parallelism)


def resumed_state(
    config: TrainerConfig, device: str, checkpoint: Checkpoint, parallelism: Parallelism | None = None
) -> TrainingState:
    """The state of a verified checkpoint, whichever processes wrote it.

    The bundle that the run started from is needed no more, but for the base of an adapter.

    Raises:
        LayoutMismatchError: it holds the tensors of another model.
    """

    def prepared() -> TrainingState:
        state = _state(config, skeleton(config), device, parallelism)
        checkpoint.check_layout(state.shapes())
        return state

    processes = Processes() if parallelism is None else parallelism.processes
    state = processes.together(prepared)
    alone = processes.control is None
    state.restore(checkpoint.read() if alone else checkpoint.read_into(state.targets(checkpoint.index), processes))
    return state


def skeleton(config: TrainerConfig) -> PreparedModel:
    """The model of a run with all that does not learn in place, to be filled with what does."""
    if config.adapter is not None and config.from_bundle is not None:
        return PreparedModel(model=_bundle_model(config, config.from_bundle))
    return _prepared(config, config.model.build(config.seed))


def _prepared(config: TrainerConfig, model: Decoder) -> PreparedModel:
    return PreparedModel(model=model, awareness=None if config.qat is None else config.qat.install(model))


def _state(config: TrainerConfig, prepared: PreparedModel, device: str, parallelism: Parallelism | None) -> TrainingState:
    prepared.model.compute_dtype = config.precision.compute_dtype
    num_steps = config.budget.num_steps if isinstance(config.budget, StepBudget) else 1
    return TrainingState(prepared, config.optimizer, config.ema, num_steps, parallelism, device)


def _bundle_model(config: TrainerConfig, name_or_path: str) -> Decoder:
    bundle = open_bundle(name_or_path)
    found = bundle.config if config.upcycle is None else upcycled_config(bundle.config, config.upcycle)
    if config.from_identity not in (None, bundle.identity):
        raise BundleMismatchError(
            f"{bundle.path} is {bundle.identity}, the run started from {config.from_identity}; restore that bundle or start"
            " the run anew in another folder"
        )
    lengthened = config.adapter is None and config.model.context_length > found.context_length
    difference = first_difference(found, config.model, ignored=("context_length",) if lengthened else ())
    if difference is not None:
        upcycled = "" if config.upcycle is None else " upcycled"
        raise BundleMismatchError(f"the model of {bundle.path}{upcycled} is another one: {difference}")
    if bundle.numerics.is_compressed and config.adapter is None:
        raise UncompressibleModelError(
            f"{bundle.path} is compressed ({bundle.numerics.weights}): its weights can no longer be trained; start from the"
            " bundle that it was made of, or train an adapter"
        )
    model = load_decoder(bundle)
    if config.upcycle is not None:
        return upcycle(model, config.upcycle, config.seed)
    if config.adapter is not None:
        install_adapter(model, config.adapter, config.seed)
        if bundle.recovery_adapter is not None:
            load_smaller_adapter(model, bundle.recovery_adapter.config, bundle.recovery_adapter.weights())
    return model


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _parameter_name(group: str, name: str) -> str:
    """The parameter that a tensor of a snapshot belongs to: the optimizer keeps several for each."""
    return name.rpartition("/")[0] if group == "optimizer" else name


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(state: Tensors) -> None:
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
