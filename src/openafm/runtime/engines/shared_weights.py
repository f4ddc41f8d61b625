"""One copy of a bundle's weights in memory for all its engines, whatever their adapters."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import torch

from openafm.bundle import Bundle
from openafm.bundle.decoder import load_decoder
from openafm.compression.exact import compute_exactly
from openafm.models.decoder import Decoder
from openafm.runtime.engines.verified_files import verify_once


def base_decoder(bundle: Bundle, device: torch.device | None, prepare: Callable[[Decoder], None]) -> Decoder:
    """Return the bundle's decoder without an adapter: that of another engine of this process, else loaded and prepared.

    Raises:
        BundleError: the weights cannot be read or do not fit the config.
    """
    verify_once(bundle)  # its claimed signature selects weights in memory
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
    """Return a decoder with its own modules, which can have its own adapter, and the tensors of `base`."""
    tensors: Iterable[torch.Tensor] = itertools.chain(base.parameters(), base.buffers())
    return copy.deepcopy(base, {id(tensor): tensor for tensor in tensors})


def _reset_lock() -> None:
    global _loading
    _loading = threading.Lock()


_loading = threading.Lock()
_bases: WeakValueDictionary[tuple[str, str, str], Decoder] = WeakValueDictionary()  # by path, signature and device
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)  # another thread may have held it
