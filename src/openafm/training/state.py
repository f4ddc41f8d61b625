"""The mutable state of a training run: weights, optimizer, average, random state, progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from openafm.compression.qat import QuantizationAwareness
from openafm.models.decoder import Decoder
from openafm.training.checkpoints.index import Index
from openafm.training.config import EMAConfig
from openafm.training.device import host_copies
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes
from openafm.training.optimizer_config import OptimizerConfig
from openafm.training.snapshot import PartsByName, Tensors, TrainingSnapshot


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """The model to train, with the quantization or the adapter that the config installs in it."""

    model: Decoder
    awareness: QuantizationAwareness | None = None


class TrainingState:
    """Hold the state of a run: `step` of `num_steps`, `num_tokens` real tokens, `seconds` in steps.

    Only trainable weights are part of it; those of a base under an adapter stay in their bundle. `parameters`, the
    optimizer's moments and the average `ema` are this process's parts, plain tensors by name.
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
        """Set the progress of quantization-aware training."""
        if self._awareness is not None:
            self._awareness.advance(self.step / self.num_steps)

    def update_ema(self) -> None:
        """Move the average towards the weights, after update number `step`."""
        if self.ema is None or self._ema_config is None:
            return
        weights = [self.parameters[name].detach() for name in self.ema]
        torch._foreach_lerp_(list(self.ema.values()), weights, 1 - self._ema_config.decay_at(self.step))

    @torch.no_grad()
    def snapshot(self) -> TrainingSnapshot:
        """Copy the state to the host. Training can continue while the copy is written."""
        tensors: dict[str, Tensors] = {
            "model": self.parameters,
            "optimizer": self._optimizer_tensors(),
            "random": _random_state(self.model.device),
        }
        if self.ema is not None:
            tensors["ema"] = self.ema
        return TrainingSnapshot(
            step=self.step,
            num_steps=self.num_steps,
            num_tokens=self.num_tokens,
            seconds=self.seconds,
            tensors={
                group: PartsByName(
                    dict(zip(named, host_copies(list(named.values())), strict=True)), partial(self._as_part, group)
                )
                for group, named in tensors.items()
            },
        )

    @torch.no_grad()
    def restore(self, snapshot: TrainingSnapshot) -> None:
        """Restore a snapshot of the same config; training continues bit-identically."""
        self.step, self.num_steps = snapshot.step, snapshot.num_steps
        self.num_tokens, self.seconds = snapshot.num_tokens, snapshot.seconds
        self._copy_all(snapshot.tensors["model"], self.parameters)
        if self.ema is not None:
            self._copy_all(snapshot.tensors["ema"], self.ema)
        self.parallelism.free_gathered(self.model)
        self._restore_optimizers(snapshot.tensors.get("optimizer", {}))  # empty before the first step
        _restore_random_state(snapshot.tensors["random"], self.model.device)

    def shapes(self) -> Mapping[str, torch.Size]:
        """Return the global (unsharded) shapes of the trainable parameters."""
        return {name: self._as_part("model", name, torch.empty(p.shape)).shape for name, p in self.parameters.items()}

    def targets(self, index: Index) -> dict[str, Tensor]:
        """Allocate host memory for this process's parts of the tensors of a checkpoint."""
        targets = {}
        for key, stored in index.items():
            group, _, name = key.partition("/")
            parameter = self.parameters.get(_parameter_name(group, name))
            shape = stored.shape if parameter is None or not stored.shape else parameter.shape
            targets[key] = self._as_part(group, name, torch.empty(shape, dtype=stored.dtype))
        return targets

    def _as_part(self, group: str, name: str, local: Tensor) -> Tensor:
        """Wrap a host tensor as this process's part of the global tensor."""
        if self.parallelism.mesh is None or group == "random":
            return local
        return self.parallelism.global_view(_parameter_name(group, name), local)

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the optimizers' state by parameter name, as in `layers.0.norm.weight/exp_avg`."""
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


def _parameter_name(group: str, name: str) -> str:
    """Return the parameter of a snapshot's tensor: the optimizer stores several tensors per parameter."""
    return name.rpartition("/")[0] if group == "optimizer" else name


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _restore_random_state(state: Tensors, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:  # absent if a run on a CPU wrote the state
        torch.cuda.set_rng_state(state["cuda"], device)
