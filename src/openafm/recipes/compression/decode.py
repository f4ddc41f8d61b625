"""Decode a compressed bundle: its weights in full precision, with its recovery adapter merged, can be trained again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from openafm.bundle import Bundle, bundle_place, write_bundle
from openafm.compression.errors import UncompressibleModelError
from openafm.compression.numerics import FULL_PRECISION
from openafm.core.errors import UsageError
from openafm.recipes.sources.own_data import data_of, write_data

if TYPE_CHECKING:
    from openafm.models.layers import Linear


def decode(bundle: Bundle, name: str) -> Bundle:
    """Write the values of a bundle's weights in fp32 as the bundle `name`. Rounding of activations and caches is left out.

    Raises:
        UncompressibleModelError: the bundle is not compressed and has no recovery adapter.
        BundleError: the bundle is damaged.
        UsageError: `name` is not a valid bundle name, or is the bundle itself.
    """
    place = bundle_place(name)
    if not bundle.numerics.is_compressed and bundle.recovery_adapter is None:
        raise UncompressibleModelError(f"{bundle.name} is not compressed; train it, or compress it, as it is")
    if place.resolve() == bundle.path.resolve():
        raise UsageError(f"'{name}' is the source bundle and must not be overwritten; choose another --name")
    bundle.verify()
    decoded = write_bundle(
        place,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=decoded_tensors(bundle),
        card=f"# {name}\n\nWeights of {bundle.name} (signature `{bundle.signature}`) in fp32, recovery adapter merged.\n",
    )
    data = data_of(bundle)
    if data is not None:
        write_data(decoded, data)
    return decoded


def decoded_tensors(bundle: Bundle) -> dict[str, NDArray[Any]]:
    """Return the fp32 tensors of the uncompressed decoder whose products are those of the bundle."""
    import torch

    from openafm.bundle.decoder import put_on
    from openafm.compression.deploy import build_decoder
    from openafm.models.layers import Linear

    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in bundle.config.build().state_dict().items()}
    plain = replace(bundle.numerics, activations=FULL_PRECISION.activations, kv=FULL_PRECISION.kv)
    if plain.rounds_vision:
        plain = replace(plain, vision="int8_per_row")
    decoder = build_decoder(bundle.config, plain, bundle.tensors())
    if bundle.recovery_adapter is not None:
        put_on(decoder, bundle.recovery_adapter)
    tensors = {name: tensor.float().numpy() for name, tensor in decoder.state_dict().items() if name in shapes}
    with torch.no_grad():
        for name, module in decoder.named_modules():
            if isinstance(module, Linear) and f"{name}.weight" in shapes:
                tensors[f"{name}.weight"] = _matrix(module, tuple(shapes[f"{name}.weight"]))
    return tensors


def _matrix(linear: Linear, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the matrix [..., R, C] that a Linear multiplies by, adapter included: its outputs for the unit vectors."""
    import torch

    *tracks, _, columns = shape
    unit_CC = torch.eye(columns).expand(*tracks, columns, columns)
    zero_1C = torch.zeros(*tracks, 1, columns)
    matrix: NDArray[Any] = (linear(unit_CC) - linear(zero_1C)).transpose(-1, -2).contiguous().numpy()
    return matrix
