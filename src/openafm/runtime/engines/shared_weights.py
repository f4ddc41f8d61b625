"""One copy of a bundle's weights in memory for all engines of it, whatever adapters they carry."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import torch

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.exact import compute_exactly
from openafm.models.decoder import Decoder


def base_decoder(bundle: Bundle, device: torch.device | None, prepare: Callable[[Decoder], None]) -> Decoder:
    """The bundle's decoder without an adapter: the one that an engine in this process holds, else loaded and prepared.

    Raises:
        BundleError: the weights cannot be read or do not fit the config.
    """
    key = (str(bundle.path.resolve()), bundle.signature, str(device))
    with _loading:
        base = _bases.get(key)
        if base is None:
            base = load_decoder(bundle, device)
            if bundle.numerics.multiplies_integers and base.device.type == "cpu":
                compute_exactly(base)
            prepare(base)
            _bases[key] = base
    return base


def sharing(base: Decoder) -> Decoder:
    """A decoder of its own modules, which can carry an adapter of its own, over the very tensors of another."""
    tensors: Iterable[torch.Tensor] = itertools.chain(base.parameters(), base.buffers())
    return copy.deepcopy(base, {id(tensor): tensor for tensor in tensors})


_loading = threading.Lock()
_bases: WeakValueDictionary[tuple[str, str, str], Decoder] = WeakValueDictionary()  # by path, signature and device
