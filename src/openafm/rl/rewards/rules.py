"""Rules: rewards that a function of one sample computes, in a worker process under limits of the kernel.

Parsers of formulas and of JSON can hang on text of a model, and cannot be interrupted from another thread. A worker that
exceeds its limit is killed; its sample gets a score with an error.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from openafm.core.executors import LocalExecutor, num_cores
from openafm.core.worker_process import Failure, LimitsConfig, unit
from openafm.rl.rewards.base import Reward, RewardConfig, failed, scored
from openafm.rl.trajectories import Sample, Score

Rule: TypeAlias = Callable[[Sample], float]
_MAX_WORKERS = 4
_WALL_PER_CPU = 4.0
"""Wall time allowed per second of CPU time: a busy machine is slow, a sleeping rule must end."""


@dataclass(frozen=True, kw_only=True)
class RuleConfig(RewardConfig):
    """Base of rules. A subclass implements `rule`, which is called in a worker process.

    Attributes:
        time_limit: CPU seconds for one sample; four times that in wall time.
        memory_mb: limit on the heap of a worker.
    """

    time_limit: float = 10.0
    memory_mb: int = 2048

    def __post_init__(self) -> None:
        self.require(self.time_limit > 0, f"time_limit must be above 0, got {self.time_limit}")
        self.require(self.memory_mb > 0, f"memory_mb must be above 0, got {self.memory_mb}")

    @abstractmethod
    def rule(self) -> Rule:
        """Return the function that scores a sample. What it raises becomes the error of the sample's score."""

    def build(self) -> Reward:
        return IsolatedRule(self)


class IsolatedRule:
    """Score samples in worker processes that all rules of this process share."""

    def __init__(self, config: RuleConfig) -> None:
        seconds = config.time_limit
        self._config = config
        self._limits = LimitsConfig(cpu_seconds=seconds, wall_seconds=_WALL_PER_CPU * seconds, memory_mb=config.memory_mb)

    def __call__(self, samples: Sequence[Sample]) -> list[Score]:
        items = [(index, self._config, sample) for index, sample in enumerate(samples)]
        scores: dict[int, Score] = {}
        try:
            for outcome in _executor().map(_score, items, self._limits):
                failure, score = outcome.failure, outcome.result
                scores[outcome.item[0]] = self._ended(failure) if failure is not None or score is None else score
        except Exception as error:  # the samples cannot be sent to a worker, or the rule cannot be imported there
            reason = f"{type(error).__name__}: {error}"
            return [scores.get(index, failed(self._config.name, reason)) for index in range(len(samples))]
        return [scores[index] for index in range(len(samples))]

    def _ended(self, failure: Failure | None) -> Score:
        if failure is None:
            return failed(self._config.name, "the worker returned no score")
        if failure.reason in ("cpu_time", "wall_time"):
            return failed(self._config.name, f"no result within the time limit of {self._config.time_limit:g} s")
        return failed(self._config.name, f"the worker process ended: {failure.detail}")


def _score(item: tuple[int, RuleConfig, Sample]) -> Score:
    """Score one sample; runs in a worker."""
    _, config, sample = item
    rule = _rule(config)  # may import libraries, which the time limit must not count
    with unit(0):
        try:
            return scored(config.name, float(rule(sample)))
        except Exception as error:  # a rule is arbitrary code, and its input is text of a model
            return failed(config.name, f"{type(error).__name__}: {error}")


_rules: dict[str, Rule] = {}


def _rule(config: RuleConfig) -> Rule:
    key = repr(config)
    if key not in _rules:
        _rules[key] = config.rule()
    return _rules[key]


_lock = threading.Lock()


@functools.cache
def _new_executor(process: int) -> LocalExecutor:
    executor = LocalExecutor(min(_MAX_WORKERS, num_cores()))
    atexit.register(executor.close)
    return executor


def _executor() -> LocalExecutor:
    """Return the workers of this process; a forked process must not use those of its parent."""
    with _lock:
        return _new_executor(os.getpid())
