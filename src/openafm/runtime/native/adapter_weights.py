"""Checks of an adapter's weights before C code reads them. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterMismatchError, AdapterPackage
from openafm.models.config import DecoderConfig
from openafm.runtime.native.shapes import experts_of, matrices, stack


def check_shapes(weights: Mapping[str, NDArray[Any]], adapter: AdapterPackage, config: DecoderConfig) -> None:
    """Check that the weights are an A and a B of the right shape for every adapted matrix, and nothing else.

    Raises:
        AdapterMismatchError: the message names the weight.
    """
    rank, expected = adapter.config.rank, dict[str, tuple[int, ...]]()
    for name, (num_outputs, num_inputs) in adapted(config, adapter.config).items():
        tracks = stack(config, name)
        expected |= {f"{name}.lora.a": (*tracks, rank, num_inputs), f"{name}.lora.b": (*tracks, num_outputs, rank)}
    for name in sorted(expected.keys() | weights.keys()):
        wanted = list(expected[name]) if name in expected else "no weight"
        found = list(weights[name].shape) if name in weights else "no weight"
        if wanted != found:
            raise AdapterMismatchError(
                f"adapter '{adapter.name}' is for another model: it has {found} for '{name}', expected {wanted}"
            )


def adapted(config: DecoderConfig, lora: LoRAConfig) -> dict[str, tuple[int, int]]:
    """Return the matrices that an adapter applies to, as `matrices` does; experts have none."""
    return {
        name: shape
        for name, shape in matrices(config).items()
        if experts_of(config, name) is None and (not lora.targets or name.rpartition(".")[2] in lora.targets)
    }
