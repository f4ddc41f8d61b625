"""The policy updater: the trainer's source of batches, and observers that publish weights and report steps."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.core.errors import OpenAFMError
from openafm.core.files import room_for
from openafm.core.progress import Progress
from openafm.data.loading.batch import Batch
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.rl.batches import StepBatch, StepFigures, step_batch
from openafm.rl.buffer import ReplayBuffer
from openafm.rl.collapse import CollapseWatch
from openafm.rl.config import SAMPLES, RLConfig
from openafm.rl.events import EventLog
from openafm.rl.images import PromptImages
from openafm.rl.pool import Generators
from openafm.rl.trajectories import Group
from openafm.rl.weights import WeightStore
from openafm.training.checkpoints.folder import checkpoint_paths
from openafm.training.distributed.parallel import Parallelism
from openafm.training.observability.metrics import MetricsLog, read_metrics
from openafm.training.observers import Observer, Phase, StepResult
from openafm.training.state import TrainingState

if TYPE_CHECKING:
    from torch import Tensor


class CountersError(OpenAFMError):
    """The numbers of samples do not add up, which is an error in openafm."""


class ReplaySource:
    """The batches of a run: each holds the groups of one step, as soon as all are in the buffer.

    Every data rank reads all groups and trains on its share of their samples. `generators` and `events` are those of rank 0,
    None on the others.

    Attributes:
        figures: those of the latest batch, None before the first.
        groups: its groups.
    """

    def __init__(
        self,
        config: RLConfig,
        buffer: ReplayBuffer,
        generators: Generators | None,
        events: EventLog | None,
        parallelism: Parallelism,
    ) -> None:
        self._config, self._buffer, self._generators, self._events = config, buffer, generators, events
        self._parallelism, self._max_rows = parallelism, 0
        model = config.trainer.model
        self._images = PromptImages(config.prompts.build(), model) if isinstance(model, MultimodalConfig) else None
        self.figures: StepFigures | None = None
        self.groups: list[Group] = []

    @property
    def digest(self) -> str:
        return self._config.data_digest

    @property
    def fails_together(self) -> bool:
        return True

    @property
    def max_rows(self) -> int:
        return self._max_rows

    def batches(self, start_step: int) -> Generator[Batch]:
        for step in itertools.count(start_step):
            self.groups = self._parallelism.processes.run_main_first(partial(self._read, step))
            # Images are read by the ranks that train on them; an error of one ends the collectives of all.
            assembled = self._parallelism.processes.run_on_all(partial(self._assembled, step))
            self.figures = assembled.figures
            self._max_rows = max(self._parallelism.processes.all_gather(assembled.batch.num_rows))
            yield assembled.batch

    def _assembled(self, step: int) -> StepBatch:
        return step_batch(
            self.groups,
            self._config.objective,
            group_size=self._config.group_size,
            step=step,
            lag=self._config.lag,
            row_tokens=self._config.trainer.data.row_tokens,
            views=None if self._images is None else self._images.views,
            is_rounded=self._config.generator_weights != "full",
            rank=self._parallelism.data_rank,
            world=self._parallelism.data_world,
        )

    def _read(self, step: int) -> list[Group]:
        """Return the groups of a step. Rank 0 waits for them; the other ranks are called once it has them."""
        if self._generators is None or self._events is None:
            first, count = step * self._config.prompts_per_step, self._config.prompts_per_step
            return [self._buffer.read(number) for number in range(first, first + count)]
        with self._events.span("wait"):
            return self._generators.groups(step)


def whole_parameters(state: TrainingState) -> Mapping[str, Tensor]:
    """Return the trainable weights, gathered on the host from all processes, which call it together."""
    parallelism = state.parallelism
    if parallelism.mesh is None:
        return state.parameters
    return {
        name: parallelism.global_view(name, tensor.detach().cpu()).full_tensor() for name, tensor in state.parameters.items()
    }


class WeightPublisher(Observer):
    """Publish the weights after each step; remove the groups that no checkpoint needs. Other ranks only send theirs."""

    def __init__(
        self,
        config: RLConfig,
        folder: Path,
        state: TrainingState,
        weights: WeightStore,
        buffer: ReplayBuffer,
        generators: Generators | None,
        events: EventLog | None,
    ) -> None:
        self._config, self._checkpoints, self._state = config, folder / "checkpoints", state
        self._weights, self._buffer, self._generators, self._events = weights, buffer, generators, events

    def on_step(self, result: StepResult) -> None:
        start = time.time()
        whole = whole_parameters(self._state)
        if self._generators is None or self._events is None:
            return
        self._weights.publish(result.step, whole)
        self._events.add("publish weights", start, time.time())
        self._generators.publish(result.step)
        checkpoints = checkpoint_paths(self._checkpoints)
        if checkpoints:
            oldest = int(checkpoints[-1].name.removeprefix("step-"))
            self._buffer.remove_before(oldest * self._config.prompts_per_step)


@dataclass(kw_only=True)
class Counters:
    """Numbers of samples since the start of the run. `generated` is the sum of the others, checked at every step."""

    generated: int = 0
    trained: int = 0
    stale: int = 0
    dropped: int = 0
    in_flight: int = 0

    def check(self) -> None:
        """Check the sum.

        Raises:
            CountersError: it differs.
        """
        total = self.trained + self.stale + self.dropped + self.in_flight
        if self.generated != total:
            raise CountersError(f"{self.generated} samples were generated, the other counters add up to {total}: {self}")


class StepReporter(Observer):
    """Write a line with the figures and counters of each step, and some of its samples; print warnings."""

    def __init__(
        self,
        config: RLConfig,
        folder: Path,
        source: ReplaySource,
        generators: Generators,
        log: MetricsLog,
        bar: Progress,
        events: EventLog,
    ) -> None:
        self._config, self._folder, self._source, self._generators = config, folder, source, generators
        self._log, self._bar, self._events = log, bar, events
        self._counters = _counters_of(read_metrics(folder))
        self._watch = CollapseWatch()
        self._last_s = time.time()

    def on_phase_start(self, phase: Phase) -> None:
        self._last_s = time.time()

    def on_phase_end(self, phase: Phase) -> None:
        if phase == "checkpoint":
            self._events.add("checkpoint", self._last_s, time.time())
        self._last_s = time.time()

    def on_step(self, result: StepResult) -> None:
        figures = self._source.figures
        assert figures is not None, "a step has a batch"
        self._events.add("update", self._last_s, time.time(), result.num_tokens)
        self._last_s = time.time()
        values = self._values(result, figures)
        self._log.write(result.step, values, {"errors": figures.errors})
        self._write_samples(result.step)
        status = f"reward {figures.reward:.3f} kl {figures.kl:.3f} length {figures.length:.0f} lag {figures.lag:.1f}"
        self._bar.update(result.step, status)
        for warning in self._watch.warnings(result.step, values):
            self._bar.note(f"warning: {warning}")

    def _values(self, result: StepResult, figures: StepFigures) -> dict[str, float]:
        progress, counters = self._generators.progress(result.step), self._counters
        counters.trained += figures.trained
        counters.stale += figures.stale
        counters.dropped += figures.dropped
        counters.generated, counters.in_flight = progress.generated, progress.in_flight
        counters.check()
        plain = {
            name: value for name, value in asdict(figures).items() if name not in ("terms", "kinds", "errors", *_COUNTED)
        }
        return {
            "loss": result.loss,
            **result.parts,
            **plain,
            **{f"term/{name}": value for name, value in figures.terms.items()},
            **{f"kind/{name}": value for name, value in figures.kinds.items()},
            **asdict(counters),
            "replaced": progress.replaced,
            "learning_rate": result.learning_rate,
            "gradient_norm": result.gradient_norm,
            "num_tokens": result.total_tokens,
            "seconds": result.total_seconds,
        }

    def _write_samples(self, step: int) -> None:
        """Append the first sample of some groups."""
        path = self._folder / SAMPLES
        chosen = [each for group in self._source.groups for each in group.trajectories[:1]][: self._config.samples_logged]
        with room_for(path), path.open("a", encoding="utf-8") as file:
            for each in chosen:
                line = {
                    "step": step,
                    "prompt": each.sample.prompt.to_dict(),
                    "text": each.sample.text,
                    "finish_reason": each.sample.finish_reason,
                    "reward": each.score.reward,
                    "terms": dict(each.score.terms),
                    "error": each.score.error,
                    "kl": each.kl,
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


_COUNTED = ("trained", "stale", "dropped")


def _counters_of(lines: list[dict[str, object]]) -> Counters:
    """Return the counters of the last line of the log; zeros without one."""
    last: Mapping[str, object] = lines[-1] if lines else {}
    return Counters(**{name: int(str(last.get(name, 0))) for name in _COUNTED})
