"""Which engine runs a bundle. Torch is imported when an engine of it is opened, and not before."""

from __future__ import annotations

import os
import sys
from functools import cache

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.core.errors import UsageError
from openafm.runtime.engines.base import Engine
from openafm.runtime.native.build import NativeBuildError
from openafm.runtime.native.support import unsupported

CHOICE = "OPENAFM_ENGINE"


class EngineChoiceError(UsageError):
    """OPENAFM_ENGINE names no engine, or one that cannot run this bundle."""


def open_engine(bundle: Bundle, adapter: AdapterPackage | None = None) -> Engine:
    """The engine for a bundle, computing in the bundle's numerics, with `adapter` or its own recovery adapter over it.

    The native engine for compressed bundles that it supports, torch's for all others, and where the native one cannot be
    compiled: then that is said on standard error, once. `OPENAFM_ENGINE=native` or `=torch` leaves no choice.

    Engines of one bundle with different adapters share the bundle's weights in memory. What becomes of an adapter's folder
    after this call is nothing to the engine.

    Raises:
        EngineChoiceError: OPENAFM_ENGINE is neither, or `native` and the bundle is not for it.
        NativeBuildError: OPENAFM_ENGINE is `native`, which cannot be compiled here.
        AdapterMismatchError: the adapter is for another base.
        AdapterError: the adapter is damaged, or another one by now than was opened.
        BundleError: the weights cannot be read or do not fit the config.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "native", "torch"):
        raise EngineChoiceError(f"{CHOICE} is '{choice}'; set it to native or torch, or leave it out")
    if choice != "torch":
        reason = unsupported(bundle)
        if reason is None:
            try:
                from openafm.runtime.native.engine import NativeEngine

                return NativeEngine(bundle, adapter)
            except NativeBuildError as error:
                if choice == "native":
                    raise
                _tell(str(error))
        elif choice == "native":
            raise EngineChoiceError(f"the native engine cannot run {bundle.path}: {reason}; leave {CHOICE} out")
    from openafm.runtime.engines.torch_engine import TorchEngine

    return TorchEngine.open(bundle, adapter)


@cache
def _tell(reason: str) -> None:
    """Say once why the slower engine runs."""
    print(
        f"openafm: {reason}; torch computes instead, many times slower (see `openafm doctor`)", file=sys.stderr, flush=True
    )
