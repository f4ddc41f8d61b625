"""The torch decoder of a bundle, in the bundle's numerics. Imports torch, so only engines and trainers import this."""

from __future__ import annotations

import torch

from openafm.adapters.lora import attach, load_adapter_weights
from openafm.adapters.package import AdapterPackage
from openafm.bundle.bundle import Bundle
from openafm.bundle.errors import BundleError
from openafm.compression.deploy import build_decoder
from openafm.models.decoder import Decoder


def load_decoder(bundle: Bundle, device: torch.device | None = None, adapter: AdapterPackage | None = None) -> Decoder:
    """Return the decoder with its weights, decoded or low-bit according to the numerics, and with an adapter if one is
    given.

    Raises:
        AdapterMismatchError: the adapter is for another base.
        BundleTamperedError: a tensor differs from the signed one.
        BundleError: the weights cannot be read or do not fit the config.
    """
    if adapter is not None:
        adapter.check_base(bundle.signature)
    try:
        decoder = build_decoder(bundle.config, bundle.numerics, bundle.tensors(), device)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BundleError(f"{bundle.path}: the weights do not fit config.json: {error}") from error
    if adapter is not None:
        put_on(decoder, adapter)
    return decoder


def put_on(decoder: Decoder, adapter: AdapterPackage) -> None:
    """Attach an adapter, which must be for this decoder's bundle, to a decoder without one.

    Raises:
        AdapterError: the weights are missing, damaged or have changed since the adapter was opened.
        AdapterTargetError, AdapterWeightsError: the adapter is for another kind of decoder.
    """
    weights = adapter.weights()
    attach(decoder, adapter.config)
    load_adapter_weights(decoder, weights)
