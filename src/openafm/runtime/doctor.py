"""Report on this machine and the speed of one model on it (`openafm doctor`).

Imports no tensor library unless the torch engine runs the model.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from openafm.adapters.config import LoRAConfig
from openafm.bundle import Bundle
from openafm.core.errors import OpenAFMError
from openafm.core.native_build import NativeBuildError, cache_home, find_compiler
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.selection import CHOICE, is_full_precision, kv_bytes_per_token, open_engine
from openafm.runtime.native.adapter_weights import adapted
from openafm.runtime.native.build import built_library
from openafm.runtime.native.engine import NativeEngine, chosen_threads
from openafm.runtime.native.layout import bytes_per_step, decoded_format
from openafm.runtime.native.library import kernel_names, open_library
from openafm.runtime.native.support import unsupported

FEATURES = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "asimd", "asimddp", "i8mm")
_STREAM_BYTES, _STREAM_SECONDS = 1 << 27, 0.5  # larger than most caches
_PROMPT_TOKENS, _MOST_TOKENS, _MOST_SECONDS = 32, 200, 1.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The processor, the native runtime on it, and its caches.

    Attributes:
        processor: name of the processor.
        features: the supported ones of `FEATURES` on Linux; empty elsewhere.
        threads: number of threads of a native engine.
        compiler: the C++ compiler; None if there is none.
        kernels: supported kernel sets, the one in use first; empty if the runtime is not built.
        library: path of the compiled runtime.
        log: path of the compiler's output; None if the runtime came with the installation or is not built.
        problem: why the runtime is not built.
        cache: folder of compiled libraries and repacked weights.
        cached_library_bytes, cached_weights_bytes: their sizes.
        stream_gb_s: memory bandwidth of reads with all threads, in 10^9 bytes per second.
        stream_gb_s_1_thread: the same with one thread.
    """

    processor: str
    features: tuple[str, ...]
    threads: int
    compiler: str | None
    kernels: tuple[str, ...]
    library: str | None
    log: str | None
    problem: str | None
    cache: str
    cached_library_bytes: int
    cached_weights_bytes: int
    stream_gb_s: float
    stream_gb_s_1_thread: float


@dataclass(frozen=True, kw_only=True)
class ModelSpeed:
    """The engine of a model on this machine, and its speed.

    Attributes:
        model: folder of the bundle.
        engine: "native" or "torch".
        why_not_native: None for the native engine.
        decoded: format to which the native engine decodes the weights when it loads them, such as ASTC blocks; None if it
            computes with the weights as they are stored.
        bytes_per_token: bytes of weights that a decode step reads, the adapter's included; None for the torch engine.
        expected_tokens_s: limit by memory bandwidth. A model that fits the processor's caches may be faster.
        measured_tokens_s: measured decode speed with an almost empty context.
        kv_bytes_per_token: bytes of keys and values that this engine stores for a token.
        bundle_kv_bytes_per_token: the same in the bundle's numerics, which the torch engine does not store.
    """

    model: str
    engine: str
    why_not_native: str | None
    decoded: str | None
    bytes_per_token: int | None
    expected_tokens_s: float | None
    measured_tokens_s: float
    kv_bytes_per_token: int
    bundle_kv_bytes_per_token: int


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    machine: Machine
    model: ModelSpeed | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine(bundle: Bundle | None) -> DoctorReport:
    """Return a report on this machine and on a bundle, compiling the native runtime if needed. Takes some seconds.

    Raises:
        OpenAFMError: the bundle cannot be opened.
    """
    machine = examine_machine()
    return DoctorReport(machine=machine, model=None if bundle is None else _examine_model(bundle, machine))


def examine_machine() -> Machine:
    """Return the machine part of the report, compiling the native runtime if needed."""
    kernels: tuple[str, ...] = ()
    library = problem = None
    try:
        library = built_library()
        kernels = tuple(kernel_names(open_library(library.path)))
    except NativeBuildError as error:
        problem = str(error)
    threads = chosen_threads()
    cache = cache_home()
    return Machine(
        processor=_processor(),
        features=tuple(sorted(_flags() & set(FEATURES), key=FEATURES.index)),
        threads=threads,
        compiler=_compiler(),
        kernels=kernels,
        library=None if library is None else str(library.path),
        log=None if library is None or library.log is None else str(library.log),
        problem=problem,
        cache=str(cache),
        cached_library_bytes=_num_bytes(cache / "native"),
        cached_weights_bytes=_num_bytes(cache / "weights"),
        stream_gb_s=stream_bandwidth(threads) / 1e9,
        stream_gb_s_1_thread=stream_bandwidth(1) / 1e9,
    )


def stream_bandwidth(num_threads: int) -> float:
    """Return the best measured rate at which `num_threads` threads read memory together, in bytes per second."""
    library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    search = library.memchr  # of an absent byte: reads everything at full speed
    search.restype, search.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    data = np.ones(_STREAM_BYTES, np.uint8)
    share = _STREAM_BYTES // num_threads
    starts = [data.ctypes.data + share * thread for thread in range(num_threads)]
    seconds: list[float] = []
    with ThreadPoolExecutor(num_threads) as pool:
        while sum(seconds) < _STREAM_SECONDS:
            start = time.perf_counter()
            list(pool.map(lambda address: search(address, 0, share), starts))
            seconds.append(time.perf_counter() - start)
    return share * num_threads / min(seconds)


def bytes_per_token(bundle: Bundle) -> int:
    """Return the bytes of weights that the native engine reads in a decode step, a recovery adapter's included."""
    total = bytes_per_step(bundle)
    adapter = bundle.recovery_adapter
    return total if adapter is None else total + _adapter_bytes(bundle, adapter.config)


def _adapter_bytes(bundle: Bundle, config: LoRAConfig) -> int:
    num_numbers = sum(sum(shape) for shape in adapted(bundle.config, config).values())
    return bundle.config.num_tracks * num_numbers * config.rank * np.dtype(config.precision).itemsize


def _examine_model(bundle: Bundle, machine: Machine) -> ModelSpeed:
    engine = open_engine(bundle)
    is_native = isinstance(engine, NativeEngine)
    name: Literal["native", "torch"] = "native" if is_native else "torch"
    moved = bytes_per_token(bundle) if is_native else None
    return ModelSpeed(
        model=str(bundle.path),
        engine=name,
        why_not_native=None if is_native else _why_not(bundle, machine),
        decoded=decoded_format(bundle) if is_native else None,
        bytes_per_token=moved,
        expected_tokens_s=None if moved is None else machine.stream_gb_s * 1e9 / moved,
        measured_tokens_s=_decoding_speed(engine),
        kv_bytes_per_token=kv_bytes_per_token(bundle, name),
        bundle_kv_bytes_per_token=kv_bytes_per_token(bundle, "native"),
    )


def _why_not(bundle: Bundle, machine: Machine) -> str:
    if (problem := unsupported(bundle) or machine.problem) is not None:
        return problem
    if is_full_precision(bundle) and os.environ.get(CHOICE, "") != "torch":
        return "its keys and values are float32; set OPENAFM_ENGINE=native to run it natively"
    return "OPENAFM_ENGINE is torch"


def _decoding_speed(engine: Engine) -> float:
    sequence = engine.new_sequence()
    room = engine.context_length - 1
    prompt = [token % engine.vocab_size for token in range(min(_PROMPT_TOKENS, room))]
    (logits_V,) = engine.step([(sequence, prompt)])
    seconds: list[float] = []
    while len(seconds) < min(_MOST_TOKENS, room - len(prompt)) and sum(seconds) < _MOST_SECONDS:
        start = time.perf_counter()
        (logits_V,) = engine.step([(sequence, [int(logits_V.argmax())])])
        seconds.append(time.perf_counter() - start)
    return 1 / float(np.median(seconds)) if seconds else 0.0


def _compiler() -> str | None:
    try:
        return find_compiler()
    except OpenAFMError:
        return None


def _num_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*") if file.is_file())


def _cpuinfo() -> dict[str, str]:
    """Return the first processor's entry of /proc/cpuinfo; empty on other systems."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8").split("\n\n")[0] if file.exists() else ""
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _flags() -> set[str]:
    about = _cpuinfo()
    return set((about.get("flags") or about.get("Features") or "").split())


def _processor() -> str:
    name = _cpuinfo().get("model name") or platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} processors"
