"""The weights of the bundle that a run writes: as trained, packed, or a base with its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from openafm.bundle import FULL_PRECISION, Numerics, RecoveryAdapter, open_bundle
from openafm.compression.int8_rows import with_vision_in_8_bits

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder
    from openafm.training.config import TrainerConfig


@dataclass(frozen=True, kw_only=True)
class TrainedWeights:
    """The weights of a bundle."""

    tensors: Mapping[str, NDArray[Any]]
    numerics: Numerics = FULL_PRECISION
    recovery: RecoveryAdapter | None = None


def trained_weights(trainer: TrainerConfig, model: Decoder) -> TrainedWeights:
    """Return the weights as they are, packed after quantization-aware training, or the base with the trained adapter."""
    from openafm.adapters.lora import adapter_weights
    from openafm.compression.deploy import packed_tensors

    if trainer.adapter is not None and trainer.from_bundle is not None:
        base = open_bundle(trainer.from_bundle)
        weights = {name: weight.numpy() for name, weight in adapter_weights(model).items()}
        recovery = RecoveryAdapter(config=trainer.adapter, weights=weights)
        return TrainedWeights(tensors=base.tensors(), numerics=base.numerics, recovery=recovery)
    if trainer.qat is not None:
        tensors, numerics = with_vision_in_8_bits(packed_tensors(model), trainer.qat.numerics)
        return TrainedWeights(tensors=tensors, numerics=numerics)
    return TrainedWeights(tensors={name: tensor.numpy() for name, tensor in model.state_dict().items()})
