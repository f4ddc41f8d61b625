"""Activation checkpointing: bit-identical updates, fewer saved bytes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from parallel_runs import track_model
from tiny_runs import tiny_model, tiny_run, write_corpus
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from openafm.models.attention.context import BatchContext
from openafm.models.config import DecoderConfig
from openafm.training.activation_checkpointing import attention_kernels
from openafm.training.config import ActivationCheckpointingConfig, BFloat16Config
from openafm.training.initialization import fresh_state
from openafm.training.trainer import Trainer


@pytest.mark.parametrize(
    "recomputing",
    [
        ActivationCheckpointingConfig(),
        ActivationCheckpointingConfig(every_layers=2),
        ActivationCheckpointingConfig(keep_attention=True),
    ],
    ids=["all", "half", "all but attention"],
)
@pytest.mark.parametrize("model", [tiny_model(), track_model()], ids=["shared keys and values", "tracks and experts"])
def test_updates_are_bit_identical(tmp_path: Path, model: DecoderConfig, recomputing: ActivationCheckpointingConfig) -> None:
    config = tiny_run(write_corpus(tmp_path), model=model, precision=BFloat16Config())
    trainers = []
    for changes in ({}, {"activation_checkpointing": recomputing}):
        changed = tiny_run(config.data, model=model, precision=BFloat16Config(), **changes)
        trainers.append(Trainer(changed, fresh_state(changed, "cpu"), config.data.build()))
    for step in range(3):
        kept, recomputed = (trainer.update(config.data.build().batch(step)) for trainer in trainers)
        assert (recomputed.loss, recomputed.gradient_norm) == (kept.loss, kept.gradient_norm)
        assert recomputed.parts == kept.parts
    weights = [trainer.state.snapshot().tensors["model"] for trainer in trainers]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def saved_bytes(directory: Path, recomputing: ActivationCheckpointingConfig | None) -> int:
    """Bytes of the distinct storages that autograd saves for the backward pass."""
    config = tiny_run(write_corpus(directory), activation_checkpointing=recomputing)
    state = fresh_state(config, "cpu")
    weights = {parameter.untyped_storage().data_ptr() for parameter in state.model.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        config.objective.build()(state.model, config.data.build().batch(0))
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def test_recomputed_layers_save_nothing_inside(tmp_path: Path) -> None:
    none, half, all_layers = (
        saved_bytes(tmp_path / name, recomputing)
        for name, recomputing in (
            ("none", None),
            ("half", ActivationCheckpointingConfig(every_layers=2)),
            ("all", ActivationCheckpointingConfig()),
        )
    )
    assert all_layers < half < none
    assert all_layers < 0.6 * none


def test_recomputed_keys_and_values_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would keep the activations of their layer alive until the end of the backward pass."""
    config = tiny_run(write_corpus(tmp_path), model=track_model(), activation_checkpointing=ActivationCheckpointingConfig())
    state = fresh_state(config, "cpu")
    store, stored = BatchContext.store, list[weakref.ref[Tensor]]()

    def recorded(context: BatchContext, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        alive.append(sum(reference() is not None for reference in stored))
        stored.append(weakref.ref(k_BSKC))
        store(context, layer, k_BSKC, v_BSKC)

    alive: list[int] = []
    monkeypatch.setattr(BatchContext, "store", recorded)
    losses = config.objective.build()(state.model, config.data.build().batch(0))
    num_layers = len(alive)
    losses.total.backward()
    assert len(alive) > num_layers
    assert max(alive[num_layers:]) == num_layers


class _Counted(TorchDispatchMode):
    """Count the calls of attention kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls += func in attention_kernels()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("keep_attention", [False, True])
def test_kept_attention_is_not_computed_again(tmp_path: Path, keep_attention: bool) -> None:
    recomputing = ActivationCheckpointingConfig(keep_attention=keep_attention)
    config = tiny_run(write_corpus(tmp_path), activation_checkpointing=recomputing)
    state = fresh_state(config, "cpu")
    with _Counted() as forward:
        losses = config.objective.build()(state.model, config.data.build().batch(0))
    with _Counted() as backward:
        losses.total.backward()
    assert forward.calls > 0
    assert backward.calls == (0 if keep_attention else forward.calls)
