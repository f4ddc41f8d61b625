"""An adapter's weights, seen to fit a bundle before anything in C reads them. Imports no tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from openafm.adapters.package import AdapterMismatchError, AdapterPackage
from openafm.models.config import DecoderConfig
from openafm.runtime.native.weights import matrices


def check_shapes(weights: Mapping[str, NDArray[Any]], adapter: AdapterPackage, config: DecoderConfig) -> None:
    """See that every weight stands beside a matrix of the decoder, in its shape, and that none lacks its other half.

    Raises:
        AdapterMismatchError: the message names the weight.
    """
    rank, expected = adapter.config.rank, dict[str, tuple[int, int]]()
    for name, (num_outputs, num_inputs) in matrices(config).items():
        if not adapter.config.targets or name.rpartition(".")[2] in adapter.config.targets:
            expected |= {f"{name}.lora.a": (rank, num_inputs), f"{name}.lora.b": (num_outputs, rank)}
    for name in sorted(expected.keys() | weights.keys()):
        wanted = list(expected[name]) if name in expected else "nothing"
        found = list(weights[name].shape) if name in weights else "nothing"
        if wanted != found:
            raise AdapterMismatchError(
                f"adapter '{adapter.name}' is for another model: it has {found} for '{name}', this one takes {wanted}"
            )
