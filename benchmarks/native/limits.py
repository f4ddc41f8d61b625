"""Limits of the machine, and the share of them that the products of the native runtime reach.

`gemm_peak_share` is the rate of our product of 6656x2048 with 512 tokens, including the rounding of activations, over the
peak rate of 8-bit products on registers (vpdpbusd), in CPU time of one thread. Further figures are for 128 and 256 tokens,
and for one token (`matvec_us`), over more matrices than caches hold, compared with onnxruntime's 2-bit MatMulNBits (groups
of 128, 8-bit activations) and torch's dynamically quantized 8-bit Linear on the same shape.
"""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from measuring import Figures, Setting, Times, Worker, alternate, can_import, rounded, timed, undisturbed

from openafm.bundle import Bundle
from openafm.core.native_build import find_compiler
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import MatrixStruct, native_library

NUM_OUTPUTS, NUM_INPUTS = 6656, 2048
NUM_MATRICES = 24  # 82 MB of 2-bit codes
_STREAM_BYTES = 1 << 28
_ROUNDS_OF_PRODUCTS, _OPERATIONS = 1_000_000, 2048
_HERE = Path(__file__).parent


class Probe:
    """The processor's own limits, measured by a few lines of C++ that are compiled here."""

    def __init__(self) -> None:
        with TemporaryDirectory() as folder:
            library = Path(folder) / "probe.so"
            command = [*shlex.split(find_compiler()), "-std=c++17", "-O3", "-shared", "-fPIC", "-o", str(library)]
            subprocess.run([*command, str(_HERE / "probe.cpp")], check=True)
            self._library = ctypes.CDLL(str(library))
        self._library.probe_products.argtypes = (ctypes.c_int64,)
        self._library.probe_stream.argtypes = (ctypes.c_void_p, ctypes.c_int64)

    @staticmethod
    def unavailable() -> str | None:
        """The reason why it is unavailable, or None."""
        flags = Path("/proc/cpuinfo")
        has = flags.exists() and "avx512_vnni" in flags.read_text(encoding="utf-8")
        return None if has else "the probe is written for AVX-512 VNNI on Linux"

    def products(self) -> Times:
        """Seconds of `_ROUNDS_OF_PRODUCTS`."""
        return timed(lambda: self._library.probe_products(_ROUNDS_OF_PRODUCTS))

    def peak(self) -> float:
        """8-bit operations a second on one thread, a multiplication and an addition counted as two."""
        return _ROUNDS_OF_PRODUCTS * _OPERATIONS / min(self.products().cpu_s[0] for _ in range(20))

    @cached_property
    def _data(self) -> np.ndarray:
        return np.ones(_STREAM_BYTES, np.uint8)

    def stream(self, num_threads: int, times: int) -> Times:
        """Seconds in which the given number of threads together read `_STREAM_BYTES`, for each repetition."""
        share = _STREAM_BYTES // num_threads // 512 * 512
        starts = [self._data.ctypes.data + share * thread for thread in range(num_threads)]

        def read() -> None:
            list(pool.map(lambda start: self._library.probe_stream(start, share), starts))

        with ThreadPoolExecutor(num_threads) as pool:
            read()  # the threads have started and spin, as those of a model do
            return timed(read, times)

    @property
    def stream_bytes(self) -> int:
        return _STREAM_BYTES


class Product:
    """Our product of 2-bit matrices, on one thread."""

    def __init__(self, bundle: Bundle) -> None:
        self._engine = NativeEngine(bundle, num_threads=1)
        self._library = native_library()
        generator = np.random.default_rng(0)
        # One array of all matrices, so that they are in huge pages, as a model's weights are.
        num_bytes = NUM_OUTPUTS * NUM_INPUTS // 4
        room = np.zeros(NUM_MATRICES * num_bytes + 64, np.uint8)
        self._panels = room[-room.ctypes.data % 64 :][: NUM_MATRICES * num_bytes].reshape(NUM_MATRICES, num_bytes)
        self._scales = np.full(NUM_OUTPUTS, 0.02, np.float32)
        self._matrices = [self._matrix(generator, panels) for panels in self._panels]
        self._x_NI = generator.standard_normal((512, NUM_INPUTS)).astype(np.float32)
        self._y_NR = np.zeros((512, NUM_OUTPUTS), np.float32)

    def _matrix(self, generator: np.random.Generator, panels: np.ndarray) -> MatrixStruct:
        codes = np.frombuffer(generator.bytes(len(panels)), np.uint8)
        self._library.oa_pack_panels(codes.ctypes.data, NUM_OUTPUTS, NUM_INPUTS, panels.ctypes.data)
        return MatrixStruct(
            codes=panels.ctypes.data,
            scales=self._scales.ctypes.data,
            num_outputs=NUM_OUTPUTS,
            num_inputs=NUM_INPUTS,
        )

    def multiply(self, num_tokens: int, num_matrices: int = 1) -> None:
        for matrix in self._matrices[:num_matrices]:
            self._library.oa_product(
                self._engine._model.handle, matrix, None, self._x_NI.ctypes.data, num_tokens, self._y_NR.ctypes.data
            )


def gemm(setting: Setting, bundle: Bundle, probe: Probe) -> Figures:
    """`gemm_peak_share` and related figures."""
    product = Product(bundle)
    sides = {f"{count}": lambda count=count: timed(lambda: product.multiply(count), 4) for count in (128, 256, 512)}
    seconds = alternate(sides | {"peak": probe.products}, setting.rounds, 1)
    peak = _ROUNDS_OF_PRODUCTS * _OPERATIONS / undisturbed(seconds.pop("peak"))
    rates = {count: 2 * NUM_OUTPUTS * NUM_INPUTS * int(count) / undisturbed(each) for count, each in sorted(seconds.items())}
    return {
        "gemm_peak_share": rounded(rates["512"] / peak),
        **{f"gemm_peak_share_{count}_tokens": rounded(rate / peak) for count, rate in rates.items() if count != "512"},
        "vnni_peak_gop_s": rounded(peak / 1e9),
    }


def matvec(setting: Setting, bundle: Bundle) -> Figures:
    """One token through the matrix, compared with other libraries."""
    product = Product(bundle)
    sides = {"ours": lambda: timed(lambda: product.multiply(1, NUM_MATRICES), 2)}
    figures: Figures = {}
    workers = []
    for name, python, modules in (
        ("onnxruntime", setting.peer_python, ("onnx", "onnxruntime")),
        ("torch", sys.executable, ("torch",)),
    ):
        missing = [module for module in modules if not can_import(python, module)]
        if missing:
            figures[f"matvec_ratio_{name}"] = None
            figures[f"matvec_{name}_skipped"] = f"{python} has no {', '.join(missing)}"
            continue
        worker = Worker(python, _HERE / "matvec_worker.py", name, str(NUM_OUTPUTS), str(NUM_INPUTS), str(NUM_MATRICES))
        workers.append(worker)
        sides[name] = lambda worker=worker: Times(**{key: tuple(value) for key, value in worker.ask(times=2).items()})
    seconds = {name: undisturbed(each) for name, each in alternate(sides, setting.rounds, 1).items()}
    for worker in workers:
        worker.close()
    figures["matvec_us"] = rounded(seconds["ours"] / NUM_MATRICES * 1e6)
    for name, each in seconds.items():
        if name != "ours":
            figures[f"matvec_ratio_{name}"] = rounded(each / seconds["ours"])
            figures[f"matvec_us_{name}"] = rounded(each / NUM_MATRICES * 1e6)
    return figures
