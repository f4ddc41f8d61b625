"""Which engine runs a bundle. Torch is imported when an engine of it is opened, and not before."""

from __future__ import annotations

from openafm.adapters.package import Adapter
from openafm.bundle import Bundle
from openafm.runtime.engine import Engine


def open_engine(bundle: Bundle, adapter: Adapter | None = None) -> Engine:
    """The engine for a bundle, computing in the bundle's numerics, with `adapter` or its own recovery adapter over it.

    Raises:
        AdapterMismatchError: the adapter is for another base.
        BundleError: the weights cannot be read or do not fit the config.
    """
    from openafm.runtime.torch_engine import TorchEngine

    return TorchEngine.open(bundle, adapter)
