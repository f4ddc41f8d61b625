"""What a run reports about itself: one JSON line per logged step, and the same for TensorBoard where it is installed.

Imports no tensor library until something is measured or written.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_file, room_for

if TYPE_CHECKING:
    import torch

FILE = "metrics.jsonl"


class MetricsError(OpenAFMError):
    """A log with a line that is none."""


class Scalars(Protocol):
    """The one thing that is asked of TensorBoard's writer."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...


class MetricsLog:
    """Appends to `metrics.jsonl` of a run's folder, each line on disk before the next step."""

    def __init__(self, file: Any, scalars: Scalars | None) -> None:
        self._file, self._scalars = file, scalars

    def write(self, step: int, values: Mapping[str, float], tables: Mapping[str, Any] | None = None) -> None:
        """One line: `step`, the values by name, and what there is of tables, which are for this log alone."""
        rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in values.items()}
        filled = {name: table for name, table in (tables or {}).items() if table}
        self._file.write(json.dumps({"step": step, **rounded, **filled}) + "\n")
        self._file.flush()
        if self._scalars is not None:
            for name, value in values.items():
                self._scalars.add_scalar(name, value, step)


@contextmanager
def metrics_log(folder: Path, step: int, note: Callable[[str], None]) -> Iterator[MetricsLog]:
    """Open the log of a run that goes on after `step`: what an interrupted run logged beyond it is dropped."""
    kept = [line for line in read_metrics(folder) if line["step"] <= step]
    with atomic_file(folder / FILE, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in kept)
    with room_for(folder / FILE), (folder / FILE).open("a", encoding="utf-8") as file:
        if importlib.util.find_spec("tensorboard") is None:
            note("TensorBoard is not installed, metrics go to metrics.jsonl only; for it install openafm[metrics]")
            yield MetricsLog(file, None)
            return
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1) as scalars:
            yield MetricsLog(file, scalars)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, in order; a last line that a killed run left unfinished is dropped.

    Raises:
        MetricsError: another line is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return []
    return [_parse(line, path, number) for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1)]


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise MetricsError(f"line {number} of {path} is not JSON: {error}; remove the line") from error
    if not isinstance(values, dict) or not isinstance(values.get("step"), int):
        raise MetricsError(f"line {number} of {path} is not an object with a whole number as its step; remove the line")
    return values


@cache
def peak_flops_per_second(dtype: torch.dtype, device: str, seconds: float = 0.05) -> float:
    """What this machine reaches in products of square matrices, measured once per process with the threads in use."""
    import torch

    size = 1024 if device == "cpu" else 8192  # large enough that an accelerator's launch does not count
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))

    def product_seconds() -> float:
        start_s = perf_counter()
        torch.matmul(a, b)
        if device != "cpu":
            torch.accelerator.synchronize()
        return perf_counter() - start_s

    product_seconds()  # sets the libraries up
    best_s, end_s = product_seconds(), perf_counter() + seconds
    while perf_counter() < end_s:
        best_s = min(best_s, product_seconds())
    return 2 * size**3 / best_s


def peak_memory_mb() -> float | None:
    """The most memory this process has held, in MiB; None on systems that do not tell, as Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
