"""The log of a run: averaged losses, losses per source, callbacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_run, write_corpus

from openafm.core.config import from_dict, to_dict
from openafm.training.config import CallbackConfig, EvaluationConfig, TrainerConfig, WandbHistoryConfig
from openafm.training.observability.metrics import read_metrics
from openafm.training.observers import Observer, StepResult
from openafm.training.run import load_trained, train


class Recorder(Observer):
    """Record every event, and request a stop at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.results: list[StepResult] = []
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.events: list[str] = []
        self._stop_at = stop_at

    def on_phase_start(self, phase: str) -> None:
        self.events.append(phase)

    def on_step(self, result: StepResult) -> None:
        self.events.append(f"step {result.step}")
        self.results.append(result)

    def on_log(self, step: int, values: Mapping[str, float]) -> None:
        self.logged.append((step, values))

    @property
    def requests_stop(self) -> bool:
        return self._stop_at is not None and len(self.results) == self._stop_at


def test_logged_losses_are_means_since_the_line_before(tmp_path: Path) -> None:
    recorder = Recorder()
    train(tiny_run(write_corpus(tmp_path / "corpus"), num_steps=7, log_every=3), tmp_path / "run", observers=[recorder])
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [3, 6, 7]
    for line, steps in zip(lines, (slice(0, 3), slice(3, 6), slice(6, 7)), strict=True):
        results = recorder.results[steps]
        mean = sum(r.loss * r.count for r in results) / sum(r.count for r in results)
        assert line["loss"] == pytest.approx(mean, rel=1e-5)
        assert len({r.count for r in recorder.results}) > 1, "an unweighted mean would differ"
    assert [step for step, _ in recorder.logged] == [3, 6, 7]
    assert recorder.logged[0][1]["loss"] == pytest.approx(lines[0]["loss"], rel=1e-5)


def test_an_observer_sees_the_events_in_order_and_can_stop_the_run(tmp_path: Path) -> None:
    recorder = Recorder(stop_at=2)
    result = train(tiny_run(write_corpus(tmp_path / "corpus")), tmp_path / "run", observers=[recorder])
    assert not result.finished
    assert recorder.events == ["data_wait", "step 1", "data_wait", "step 2", "checkpoint"]
    assert train(tiny_run(write_corpus(tmp_path / "corpus")), tmp_path / "run").finished


@pytest.fixture(scope="module")
def two_sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainerConfig, Path]:
    folder = tmp_path_factory.mktemp("two")
    first, second = (write_corpus(folder / name, num_documents=30, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    sources = tuple(replace(corpus.sources[0], name=name, weight=0.5) for corpus, name in ((first, "a"), (second, "b")))
    evaluation = EvaluationConfig(data=replace(first, sources=sources), every_steps=3, num_batches=2)
    config = tiny_run(write_corpus(folder / "corpus"), num_steps=3, evaluation=evaluation)
    config = replace(config, callbacks=(WandbHistoryConfig(),))
    train(config, folder / "run")
    return config, folder / "run"


def test_held_out_losses_start_before_the_first_step_and_are_split_by_source(
    two_sources: tuple[TrainerConfig, Path],
) -> None:
    config, run = two_sources
    lines = [line for line in read_metrics(run) if "held_out_loss" in line]
    assert [line["step"] for line in lines] == [0, 3]
    assert config.evaluation is not None
    model, objective, loader = load_trained(run), config.objective.build(), config.evaluation.data.build()
    for source in ("a", "b"):
        total = count = 0.0
        for step in range(2):
            batch = loader.batch(step)
            rows = [d.row for d, origin in zip(batch.documents, batch.origins, strict=True) if origin.source == source]
            for row in sorted(set(rows)):
                with torch.no_grad():
                    losses = objective(model, batch.rows(row, row + 1))
                total, count = total + losses.total.item(), count + losses.count
        assert lines[-1][f"held_out_loss/{source}"] == pytest.approx(total / count, rel=1e-4)


def test_the_wandb_history_has_the_lines_of_the_log(two_sources: tuple[TrainerConfig, Path]) -> None:
    _, run = two_sources
    history = [json.loads(line) for line in (run / "wandb-history.jsonl").read_text().splitlines()]
    assert [line["_step"] for line in history] == [line["step"] for line in read_metrics(run)]
    assert history[1]["loss"] == pytest.approx(read_metrics(run)[1]["loss"], rel=1e-5)
    assert all(line["_timestamp"] > line["_runtime"] >= 0 for line in history)


@dataclass(frozen=True, kw_only=True)
class StopAtConfig(CallbackConfig):
    step: int

    def build(self, folder: Path) -> Observer:
        return Recorder(self.step)


def test_a_callback_is_a_config_of_its_own(tmp_path: Path) -> None:
    config = tiny_run(write_corpus(tmp_path / "corpus"), callbacks=(StopAtConfig(step=4),))
    assert from_dict(TrainerConfig, to_dict(config)) == config
    assert train(config, tmp_path / "run").step == 4
