"""Which engine runs a bundle. Torch is imported when an engine of it is opened, and not before."""

from __future__ import annotations

from openafm.adapters.package import Adapter
from openafm.bundle import Bundle
from openafm.runtime.engine import Engine


def open_engine(bundle: Bundle, adapter: Adapter | None = None) -> Engine:
    """The engine for a bundle, computing in the bundle's numerics, with `adapter` or its own recovery adapter over it.

    Engines of one bundle with different adapters share the bundle's weights in memory. What becomes of an adapter's folder
    after this call is nothing to the engine.

    Raises:
        AdapterMismatchError: the adapter is for another base.
        AdapterError: the adapter is damaged, or another one by now than was opened.
        BundleError: the weights cannot be read or do not fit the config.
    """
    from openafm.runtime.torch_engine import TorchEngine

    return TorchEngine.open(bundle, adapter)
