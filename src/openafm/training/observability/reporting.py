"""Observers that report a run: its log, and its progress on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Write a line to the log every `log_every` steps and after every evaluation."""

    def __init__(self, log: MetricsLog, meter: RunMeter, log_every: int) -> None:
        self._log, self._meter, self._log_every = log, meter, log_every

    def on_step(self, result: StepResult) -> None:
        if not result.is_due(self._log_every):
            return
        tables = {"expert_tokens": self._meter.expert_tokens}
        values = {
            "loss": result.loss,
            **result.parts,
            "learning_rate": result.learning_rate,
            "gradient_norm": result.gradient_norm,
            "num_tokens": result.total_tokens,
            "seconds": result.total_seconds,
        }
        self._log.write(result.step, values | self._meter.take(), tables)

    def on_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        self._log.write(step, losses)
