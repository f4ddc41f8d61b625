"""Observers that report a run: its log, its progress on the terminal, a history in the format of Weights & Biases."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openafm.core.files import room_for
from openafm.core.progress import Progress
from openafm.training.observability.meter import RunMeter
from openafm.training.observability.metrics import MetricsLog
from openafm.training.observers import Observer, StepResult


class ProgressReporter(Observer):
    """Show steps and held-out losses on a progress bar."""

    def __init__(self, bar: Progress, meter: RunMeter) -> None:
        self._bar, self._meter = bar, meter

    def on_step(self, result: StepResult) -> None:
        self._bar.update(result.step, self._meter.status(result.loss))

    def on_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        self._bar.note(f"step {step:,}: held-out loss {losses['held_out_loss']:.4f}")


class MetricsReporter(Observer):
    """Write a line to the log every `log_every` steps and after every evaluation, and pass its values to `listeners`.

    The losses of a line are means over all items since the line before.
    """

    def __init__(self, log: MetricsLog, meter: RunMeter, log_every: int, listeners: Sequence[Observer] = ()) -> None:
        self._log, self._meter, self._log_every, self._listeners = log, meter, log_every, tuple(listeners)
        self._sums, self._count = Counter[str](), 0

    def on_step(self, result: StepResult) -> None:
        self._sums.update({name: mean * result.count for name, mean in {"loss": result.loss, **result.parts}.items()})
        self._count += result.count
        if result.is_due(self._log_every):
            self._write_line(result)

    def _write_line(self, result: StepResult) -> None:
        means = {name: value / max(self._count, 1) for name, value in self._sums.items()}
        self._sums, self._count = Counter(), 0
        tables = {"expert_tokens": self._meter.expert_tokens}
        values = {
            **means,
            "learning_rate": result.learning_rate,
            "gradient_norm": result.gradient_norm,
            "num_tokens": result.total_tokens,
            "seconds": result.total_seconds,
        }
        self._write(result.step, values | self._meter.take(), tables)

    def on_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        self._write(step, losses)

    def _write(self, step: int, values: Mapping[str, float], tables: Mapping[str, Any] | None = None) -> None:
        self._log.write(step, values, tables)
        for listener in self._listeners:
            listener.on_log(step, values)


class WandbHistory(Observer):
    """Append every line of the log to a file in the format of the history that `wandb` keeps of a run."""

    def __init__(self, path: Path) -> None:
        self._path, self._start_s = path, time.time()

    def on_log(self, step: int, values: Mapping[str, float]) -> None:
        now_s = time.time()
        line = {**values, "_step": step, "_timestamp": now_s, "_runtime": now_s - self._start_s}
        with room_for(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class PrintedLines(Observer):
    """Print lines of the log to standard output, as in `step 1,200  loss 0.8132  learning_rate 0.014`."""

    _NAMES = ("loss", "held_out_loss", "learning_rate", "tokens_per_second", "num_tokens", "device_peak_memory_mb")

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last_s = seconds, -float("inf")

    def on_log(self, step: int, values: Mapping[str, float]) -> None:
        if "held_out_loss" not in values:
            if time.monotonic() - self._last_s < self._seconds:
                return
            self._last_s = time.monotonic()
        shown = (f"{name} {_number(values[name])}" for name in self._NAMES if name in values)
        print(f"step {step:,}", *shown, sep="  ", flush=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
