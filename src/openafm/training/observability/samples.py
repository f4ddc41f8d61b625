"""Texts that the model generates during a run, in its log, in TensorBoard and on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from openafm.core.progress import Progress
from openafm.core.terminal import escaped
from openafm.models.decoder import Decoder
from openafm.training.evaluation import averaged_weights
from openafm.training.observability.metrics import MetricsLog
from openafm.training.observers import Observer, StepResult
from openafm.training.state import TrainingState

SHOWN_CHARACTERS = 100
"""Most characters of a text on the terminal; the log has all."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A prompt, the text that the model generated after it, and the text that follows in the data, if known."""

    prompt: str
    text: str
    expected: str = ""


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Generate samples from the model every `every_steps` steps and at the last one. The model must not be divided."""

    every_steps: int
    generate: Callable[[Decoder], Sequence[Sample]]


class SampleReporter(Observer):
    """Generate samples, with the averaged weights if the run keeps them, and report them."""

    def __init__(self, sampler: Sampler, state: TrainingState, log: MetricsLog, bar: Progress) -> None:
        self._sampler, self._state, self._log, self._bar = sampler, state, log, bar

    def on_step(self, result: StepResult) -> None:
        if not result.is_due(self._sampler.every_steps):
            return
        with averaged_weights(self._state):
            samples = self._sampler.generate(self._state.model)
        self._log.write_samples(result.step, [asdict(sample) for sample in samples])
        for sample in samples:
            end = _brief(sample.prompt[-SHOWN_CHARACTERS:])
            expected = f"  (data: {_brief(sample.expected)})" if sample.expected else ""
            self._bar.note(f"step {result.step:,}: {end} -> {_brief(sample.text)}{expected}")


def _brief(text: str) -> str:
    shown = text[:SHOWN_CHARACTERS] + ("..." if len(text) > SHOWN_CHARACTERS else "")
    return escaped(json.dumps(shown, ensure_ascii=False))
