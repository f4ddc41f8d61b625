"""What `openafm inspect` tells about a bundle or a named size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from openafm.bundle.bundle import Bundle
from openafm.compression.numerics import Numerics
from openafm.models.accounting import kv_bytes, num_parameters
from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size

# How the report deploys its models; a size without weights is described as it would run.
PLANNED_NUMERICS = Numerics(weights="bfloat16", activations="bfloat16", kv="int8_per_token_head")
_BITS = {"float32": 32.0, "bfloat16": 16.0}


@dataclass(frozen=True, kw_only=True)
class Description:
    """Sizes in bytes; KV bytes count scales, for all layers that keep keys and values."""

    name: str
    path: str | None
    parameters: int
    bits_per_weight: float
    kv_bytes_per_token: int
    kv_bytes_at_4096: int
    signature: str | None
    layers: int
    sharing_layers: int
    dim: int
    vocab_size: int
    context_length: int
    weights: str
    activations: str
    kv: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe_bundle(bundle: Bundle) -> Description:
    """Verify every digest, then describe what lies in the files.

    Raises:
        BundleError: the bundle is damaged; the message names the file.
    """
    bundle.verify()
    stored = bundle.stored_tensors.values()
    parameters = num_parameters(bundle.config)
    return _describe(
        bundle.config,
        bundle.numerics,
        name=bundle.name,
        path=str(bundle.path),
        bits_per_weight=8 * sum(tensor.data.nbytes for tensor in stored) / parameters,
        signature=bundle.signature,
    )


def describe_size(name: str) -> Description:
    """Describe a named size such as `on_device.base`, which needs no weights.

    Raises:
        UnknownSizeError: no such name.
    """
    return _describe(
        named_size(name),
        PLANNED_NUMERICS,
        name=name,
        path=None,
        bits_per_weight=_BITS[PLANNED_NUMERICS.weights],
        signature=None,
    )


def _describe(
    config: DecoderConfig,
    numerics: Numerics,
    *,
    name: str,
    path: str | None,
    bits_per_weight: float,
    signature: str | None,
) -> Description:
    return Description(
        name=name,
        path=path,
        parameters=num_parameters(config),
        bits_per_weight=bits_per_weight,
        kv_bytes_per_token=kv_bytes(config, numerics.kv, num_tokens=1),
        kv_bytes_at_4096=kv_bytes(config, numerics.kv, num_tokens=4096),
        signature=signature,
        layers=len(config.layers),
        sharing_layers=len(config.layers) - len(config.own_layers),
        dim=config.dim,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        weights=numerics.weights,
        activations=numerics.activations,
        kv=numerics.kv,
    )
