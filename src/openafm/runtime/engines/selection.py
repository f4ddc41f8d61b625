"""Selection of the engine for a bundle. Torch is imported only when its engine is opened."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Literal, TypeAlias

import numpy as np

from openafm.adapters.package import WEIGHTS, AdapterPackage
from openafm.bundle import Bundle
from openafm.bundle.store import record_use
from openafm.compression.int8_rows import is_rounded, is_vision
from openafm.core.errors import UsageError
from openafm.core.native_build import NativeBuildError
from openafm.core.terminal import escaped
from openafm.models.accounting import kv_bytes
from openafm.runtime.engines.base import Engine
from openafm.runtime.native.layout import decoded_format
from openafm.runtime.native.support import unsupported

CHOICE = "OPENAFM_ENGINE"
_TORCH_KV_BYTES = 4  # the torch engine keeps keys and values in fp32, whatever the bundle's numerics
_TORCH_WEIGHT_BYTES = _VISION_WEIGHT_BYTES = 4


FullPrecisionEngine: TypeAlias = Literal["torch", "native"]
"""The engine of bundles with keys and values in fp32."""


class EngineChoiceError(UsageError):
    """OPENAFM_ENGINE is not the name of an engine, or names one that cannot run this bundle."""


def open_engine(
    bundle: Bundle,
    adapter: AdapterPackage | None = None,
    *,
    num_threads: int | None = None,
    full_precision: FullPrecisionEngine = "torch",
    beside: Engine | None = None,
) -> Engine:
    """Return an engine for a bundle in its numerics, with `adapter` or else the bundle's recovery adapter.

    Bundles that the native engine supports run on it, in `num_threads` or else `OPENAFM_THREADS`; all others on torch. Those
    with keys and values in fp32 run natively only with `full_precision="native"` or `OPENAFM_ENGINE=native`. If the native
    runtime cannot be compiled, torch is used and a message is printed to standard error once. `OPENAFM_ENGINE=native` or
    `=torch` forces one.

    Engines of one bundle share its weights in memory, whatever their adapters. The adapter is fully loaded; its folder may
    be deleted. With `beside`, an engine of the same bundle, both share their steps: sequences with different adapters are
    computed together. An engine of another kind, or with new weights, is not shared with.

    Raises:
        NotGenerativeError: the model encodes images only.
        EngineChoiceError: OPENAFM_ENGINE is not an engine, or is `native`, which does not support the bundle.
        NativeBuildError: OPENAFM_ENGINE is `native`, which cannot be compiled here.
        AdapterMismatchError: the adapter is for another base.
        AdapterError: the adapter is damaged or has changed since it was opened.
        BundleError: the weights cannot be read or do not fit the config.
        OtherBundleError: `beside` is an engine of another bundle.
    """
    bundle.check_generates()
    beside = None if beside is None or beside.weights_version else beside
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "native", "torch"):
        raise EngineChoiceError(f"{CHOICE} is '{choice}'; set it to native or torch, or unset it")
    record_use(bundle.path)
    if choice != "torch":
        reason = unsupported(bundle)
        if reason is None and (choice == "native" or full_precision == "native" or not is_full_precision(bundle)):
            try:
                from openafm.runtime.native.engine import NativeEngine

                peer = beside if isinstance(beside, NativeEngine) else None
                return NativeEngine(bundle, adapter, num_threads=num_threads, beside=peer)
            except NativeBuildError as error:
                if choice == "native":
                    raise
                _warn(str(error))
        elif reason is not None and choice == "native":
            raise EngineChoiceError(f"the native engine cannot run {bundle.path}: {reason}; unset {CHOICE}")
    from openafm.runtime.engines.torch_engine import TorchEngine

    return TorchEngine.open(bundle, adapter, beside=beside if isinstance(beside, TorchEngine) else None)


def is_full_precision(bundle: Bundle) -> bool:
    """Return True if keys and values are in fp32: the native engine then runs only on request."""
    return bundle.numerics.kv == "float32"


def engine_name(bundle: Bundle) -> Literal["native", "torch"]:
    """Return the engine that `open_engine` selects where the native runtime can be compiled; opens nothing."""
    choice = os.environ.get(CHOICE, "")
    is_native = choice == "native" or (choice != "torch" and not is_full_precision(bundle))
    return "native" if is_native and unsupported(bundle) is None else "torch"


def kv_bytes_per_token(bundle: Bundle, engine: Literal["native", "torch"]) -> int:
    """Return the bytes of keys and values that an engine stores for each token of a sequence, before any window is full.

    The native engine stores them as the bundle declares, the torch engine in fp32.
    """
    config = bundle.config
    if engine == "native":
        return kv_bytes(config, bundle.numerics.kv, num_tokens=1)
    numbers = sum(layer.attention.kv_vectors * layer.attention.head_dim for layer in config.layers)
    return config.num_tracks * numbers * _TORCH_KV_BYTES


def adapter_bytes(adapter: AdapterPackage, engine: Literal["native", "torch"]) -> int:
    """Return the bytes of an adapter that an engine holds: as stored by the native one, in fp32 by torch."""
    stored = (adapter.path / WEIGHTS).stat().st_size
    return stored if engine == "native" else stored * _TORCH_WEIGHT_BYTES // np.dtype(adapter.config.precision).itemsize


def vision_bytes(bundle: Bundle, engine: Literal["native", "torch"]) -> int:
    """Return the bytes of a vision encoder that an engine loads for the first image; torch loads it with the model."""
    if engine == "torch":
        return 0
    if not bundle.numerics.rounds_vision:
        return _VISION_WEIGHT_BYTES * bundle.config.other_parameters()
    stored = [tensor for name, tensor in bundle.stored_tensors.items() if is_vision(name)]
    return sum(
        tensor.data.nbytes * (1 if tensor.dtype != "I8" or is_rounded(tensor.name, tensor.shape) else _VISION_WEIGHT_BYTES)
        for tensor in stored
    )


def weight_bytes(bundle: Bundle, num_parameters: int, bits_per_weight: float, engine: Literal["native", "torch"]) -> int:
    """Return the bytes of weights that an engine holds: as stored or decoded by the native one, in fp32 by torch."""
    number_bytes = float(_TORCH_WEIGHT_BYTES)
    if engine == "native":
        number_bytes = {"bfloat16": 2.0, "float32": 4.0}.get(decoded_format(bundle) or "", bits_per_weight / 8)
    return round(num_parameters * number_bytes)


@cache
def _warn(reason: str) -> None:
    """Print once why the slower engine runs."""
    print(
        f"openafm: {escaped(reason)}; using torch, which is many times slower (see `openafm doctor`)",
        file=sys.stderr,
        flush=True,
    )
