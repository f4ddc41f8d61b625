"""Checks of an adapter's weights before C code reads them. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from openafm.adapters.package import AdapterMismatchError, AdapterPackage
from openafm.models.config import DecoderConfig
from openafm.runtime.native.layout import matrices


def check_shapes(weights: Mapping[str, NDArray[Any]], adapter: AdapterPackage, config: DecoderConfig) -> None:
    """Check that the weights are an A and a B of the right shape for every adapted matrix, and nothing else.

    Raises:
        AdapterMismatchError: the message names the weight.
    """
    rank, expected = adapter.config.rank, dict[str, tuple[int, int]]()
    for name, (num_outputs, num_inputs) in matrices(config).items():
        if not adapter.config.targets or name.rpartition(".")[2] in adapter.config.targets:
            expected |= {f"{name}.lora.a": (rank, num_inputs), f"{name}.lora.b": (num_outputs, rank)}
    for name in sorted(expected.keys() | weights.keys()):
        wanted = list(expected[name]) if name in expected else "no weight"
        found = list(weights[name].shape) if name in weights else "no weight"
        if wanted != found:
            raise AdapterMismatchError(
                f"adapter '{adapter.name}' is for another model: it has {found} for '{name}', expected {wanted}"
            )
