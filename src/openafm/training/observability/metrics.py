"""The log of a run: one JSON line per logged step, and the same values for TensorBoard if it is installed.

Imports no tensor library before the first measurement.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A line of the log is not a JSON object with a step."""


class BoardWriter(Protocol):
    """The part of TensorBoard's SummaryWriter that the log uses."""

    @property
    def file_writer(self) -> Any: ...

    def add_text(self, tag: str, text_string: str, global_step: int) -> None: ...


class MetricsLog:
    """Append lines to a run's `metrics.jsonl`; each is flushed before the next step."""

    def __init__(self, file: Any, board: BoardWriter | None) -> None:
        self._file, self._board = file, board

    def write(self, step: int, values: Mapping[str, float], tables: Mapping[str, Any] | None = None) -> None:
        """Write one line: the step, values by name, and non-empty tables, which TensorBoard does not get."""
        rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in values.items()}
        filled = {name: table for name, table in (tables or {}).items() if table}
        self._write_line({"step": step, **rounded, **filled})
        if self._board is not None:
            # One event for the line: each event wakes the thread of the writer, for which the next step then waits.
            from tensorboard.compat.proto.summary_pb2 import Summary

            scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._board.file_writer.add_summary(Summary(value=scalars), step)

    def write_samples(self, step: int, samples: Sequence[Mapping[str, str]]) -> None:
        """Write one line with the texts that the model generated at a step."""
        self._write_line({"step": step, "samples": [dict(sample) for sample in samples]})
        if self._board is not None:
            for number, sample in enumerate(samples):
                text = "\n\n".join(f"    {name}: {text!r}" for name, text in sample.items())  # Markdown's preformatted text
                self._board.add_text(f"samples/{number}", text, step)

    def _write_line(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


@contextmanager
def metrics_log(folder: Path, step: int, note: Callable[[str], None]) -> Iterator[MetricsLog]:
    """Open the log of a run that continues after `step`; lines of later steps are removed."""
    kept = [line for line in read_metrics(folder) if line["step"] <= step] if step else []
    with atomic_file(folder / FILE, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in kept)
    with room_for(folder / FILE), (folder / FILE).open("a", encoding="utf-8") as file:
        if importlib.util.find_spec("tensorboard") is None:
            note(
                "TensorBoard is not installed: metrics are written to metrics.jsonl only; install openafm[metrics] for both"
            )
            yield MetricsLog(file, None)
            return
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1) as board:
            yield MetricsLog(file, board)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log in order, without a last line that a killed run left unfinished.

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


def peak_flops_per_second(dtype: torch.dtype, device: str) -> float:
    """Return the peak rate of a device: its maker's for a known card, else that of matrix products, measured."""
    import torch

    from openafm.training.device import describe_device
    from openafm.training.planning.chips import chip_of_card

    chip = chip_of_card(describe_device(torch.device(device)))
    stated = None if chip is None else dict(chip.flops).get("bfloat16" if dtype is torch.bfloat16 else "float32")
    return stated or measured_flops_per_second(dtype, device)


@cache
def measured_flops_per_second(dtype: torch.dtype, device: str, seconds: float = 0.05) -> float:
    """Return the peak rate of square matrix products on this machine, measured once per process at its thread count."""
    import torch

    def product_seconds(size: int) -> float:
        a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
        start_s = perf_counter()
        torch.matmul(a, b)
        if device != "cpu":
            torch.accelerator.synchronize()
        return perf_counter() - start_s

    size = 256 if device == "cpu" else 8192  # large enough to hide an accelerator's launch time
    product_seconds(size)  # the first call initializes libraries
    # A CPU without bfloat16 units needs seconds for a product of 1024.
    while size < 1024 and product_seconds(size) < 0.01:
        size *= 2
    best_s, end_s = product_seconds(size), perf_counter() + seconds
    while perf_counter() < end_s:
        best_s = min(best_s, product_seconds(size))
    return 2 * size**3 / best_s


def peak_memory_mb() -> float | None:
    """Return the peak resident memory of this process in MiB; None where the system does not report it (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def peak_device_memory_mb(device: str) -> dict[str, float]:
    """Return the peaks of the memory that tensors use on a GPU and that the allocator holds, in MiB; empty without one.

    The peaks are those since the start of the process.
    """
    import torch

    if torch.device(device).type != "cuda":
        return {}
    return {
        "device_peak_memory_mb": torch.cuda.max_memory_allocated(device) / (1 << 20),
        "device_reserved_memory_mb": torch.cuda.max_memory_reserved(device) / (1 << 20),
    }
