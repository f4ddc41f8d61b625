"""Reinforcement learning of a policy: start or resume a run in a folder.

output/  rl.json  metrics.jsonl  samples.jsonl  buffer/  weights/  checkpoints/  events/

A step: generators sample the groups of its prompts, score them and write them to the buffer (`generator.py`); the source
waits for them and packs a batch (`updater.py`, `batches.py`, `packing.py`); the trainer updates the policy; an observer
publishes the weights and admits the tasks of a later step (`pool.py`); another writes the figures.

This process is the policy updater, or under torchrun one of several that update the policy together. Generators are worker
processes that rank 0 starts, or, for `num_generators` 0, rank 0 itself between two updates.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from openafm.bundle import Bundle, open_bundle
from openafm.core.config import dump, from_dict
from openafm.core.errors import UsageError
from openafm.core.executors import ExecutorConfig, LocalConfig
from openafm.core.files import atomic_file
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import progress
from openafm.core.regular_files import read_document
from openafm.core.terminal import escaped
from openafm.rl.batches import StepFigures
from openafm.rl.buffer import ReplayBuffer
from openafm.rl.config import CONFIG, RLConfig
from openafm.rl.engines import check_rounding
from openafm.rl.events import UPDATER, EventLog
from openafm.rl.pool import GeneratorPool, Generators, InlineGenerator
from openafm.rl.updater import ReplaySource, StepReporter, WeightPublisher, whole_parameters
from openafm.rl.weights import WeightStore
from openafm.training.checkpoints.folder import newest_checkpoint, quarantine_newer, remove_incomplete
from openafm.training.checkpoints.record import AnotherRunError
from openafm.training.checkpoints.writer import checkpoint_writer
from openafm.training.device import DeviceConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes, open_processes
from openafm.training.initialization import fresh_state, resumed_state
from openafm.training.observability.metrics import metrics_log
from openafm.training.observers import Observer
from openafm.training.resuming import first_difference
from openafm.training.signals import stop_on_signals
from openafm.training.state import TrainingState
from openafm.training.trainer import Trainer


class PolicyRunError(UsageError):
    """The run has no bundle to start from, or no number of steps."""


@dataclass(frozen=True, kw_only=True)
class RLResult:
    """The progress of a run. `finished` is False if it was stopped; the same call continues it.

    `figures` are those of the last step, None without a step. `replaced` counts the generators that died or hung.
    """

    folder: Path
    finished: bool
    step: int
    num_steps: int
    seconds: float
    figures: StepFigures | None
    replaced: int
    stopped_by: int | None


def train_policy(
    config: RLConfig,
    folder: Path,
    *,
    num_generators: int = 0,
    executor: ExecutorConfig | None = None,
    processes: Processes | None = None,
) -> RLResult:
    """Train in `folder`, from its newest intact checkpoint if it has one. SIGTERM or one Ctrl-C saves and returns.

    Under torchrun the processes update the policy together, divided as `config.trainer.parallel` says; rank 0 starts the
    generators and writes. All processes read the buffer, so the folder is shared.

    Args:
        num_generators: worker processes that generate beside the updates; 0 is the synchronous loop in this process.
        executor: where they run; local processes by default.
        processes: those of the run, if the caller has opened them.

    Raises:
        PolicyRunError: the config lacks a start bundle or a number of steps.
        RoundedPolicyError: the generators cannot round the weights of this policy.
        MeshError: the processes, the model and `config.trainer.parallel` do not fit together.
        AnotherRunError: the folder holds a run of another config.
        FolderInUseError: another process runs in this folder.
        RemoteRankError: another process of the run raised an error.
        OpenAFMError: errors of training, of the files of the run, and of prompts and rewards.
    """
    bundle = _start_bundle(config)
    config = _resolved(config, bundle)
    check_rounding(config, bundle)
    with open_processes(processes, updater_device(config)) as ranks, stop_on_signals() as stop, ExitStack() as opened:
        parallelism = Parallelism(config.trainer.parallel, config.trainer.model, ranks, str(ranks.device))
        ranks.run_on_main(lambda: _open_folder(config, folder, opened))
        buffer, weights = ReplayBuffer(folder / "buffer", bundle.tokenizer.digest), WeightStore(folder / "weights")
        state = _state(config, folder, parallelism)
        whole = whole_parameters(state)
        if ranks.is_main:
            weights.remove_above(state.step)  # a resumed run computes them again
            if state.step:
                weights.publish(state.step, whole)
        generators = ranks.run_on_all(
            lambda: (
                opened.enter_context(_generators(config, folder, buffer, state.step, num_generators, executor))
                if ranks.is_main
                else None
            )
        )
        events = EventLog(folder, UPDATER) if ranks.is_main else None
        source = ReplaySource(config, buffer, generators, events, parallelism)
        writer = opened.enter_context(checkpoint_writer(folder / "checkpoints", config.trainer, source.digest, ranks))
        observers: list[Observer] = [WeightPublisher(config, folder, state, weights, buffer, generators, events)]
        if generators is not None and events is not None:
            log = opened.enter_context(metrics_log(folder, state.step, lambda _: None))
            bar = opened.enter_context(progress("policy", state.num_steps))
            observers.append(StepReporter(config, folder, source, generators, log, bar, events))
        Trainer(config.trainer, state, source).run([*observers, writer, stop])
        writer.wait()
        return RLResult(
            folder=folder,
            finished=state.step == state.num_steps,
            step=state.step,
            num_steps=state.num_steps,
            seconds=state.seconds,
            figures=source.figures,
            replaced=0 if generators is None else generators.progress(state.step).replaced,
            stopped_by=next((number for number in ranks.all_gather(stop.signal) if number is not None), None),
        )


def updater_device(config: RLConfig) -> DeviceConfig:
    """Return the device of the updates: a CPU unless `trainer.device` names another."""
    return DeviceConfig(kind="cpu") if config.trainer.device.kind == "auto" else config.trainer.device


def _start_bundle(config: RLConfig) -> Bundle:
    if config.trainer.from_bundle is None:
        raise PolicyRunError(f"{config.recipe} starts from a fine-tuned bundle: name one with --from BUNDLE")
    if config.trainer.budget.steps(config.trainer.data) is None:
        raise PolicyRunError("a run needs a number of steps: set trainer.budget to a StepBudget")
    return open_bundle(config.trainer.from_bundle)


def _resolved(config: RLConfig, bundle: Bundle) -> RLConfig:
    """Return the config with the values that depend on the start bundle."""
    objective = replace(config.objective, num_tokens=bundle.tokenizer.vocab_size)
    trainer = replace(
        config.trainer,
        model=bundle.config,
        from_bundle=str(bundle.path.resolve()),
        from_identity=bundle.identity,
        objective=objective,
    )
    return replace(config, trainer=trainer)


def _open_folder(config: RLConfig, folder: Path, opened: ExitStack) -> None:
    opened.enter_context(folder_lock(folder))
    _write_config(config, folder)
    remove_incomplete(folder / "checkpoints")


def _write_config(config: RLConfig, folder: Path) -> None:
    """Write the config, which generators read.

    Raises:
        AnotherRunError: the folder holds a run of another config.
    """
    path = folder / CONFIG
    if path.is_file():
        found = from_dict(RLConfig, json.loads(read_document(path)))
        difference = first_difference(found, config, ignored=config.NEUTRAL)
        if difference is not None:
            raise AnotherRunError(f"{folder} holds a run of another config: {difference}; choose another --output")
    with atomic_file(path, "w") as file:
        file.write(dump(config))


def _state(config: RLConfig, folder: Path, parallelism: Parallelism) -> TrainingState:
    checkpoints, ranks = folder / "checkpoints", parallelism.processes
    device, note = str(ranks.device), _note if ranks.is_main else _no_note
    found = newest_checkpoint(checkpoints, config.trainer, config.data_digest, note, ranks)
    if found is None:
        return ranks.run_on_all(lambda: fresh_state(config.trainer, device, parallelism))
    ranks.run_on_main(lambda: quarantine_newer(checkpoints, found.record.step))
    state = resumed_state(config.trainer, device, found, parallelism)
    note(f"resuming at step {state.step:,} of {state.num_steps:,} in {folder}")
    return state


def _generators(
    config: RLConfig,
    folder: Path,
    buffer: ReplayBuffer,
    start_step: int,
    num_generators: int,
    executor: ExecutorConfig | None,
) -> Generators:
    if num_generators == 0:
        return InlineGenerator(config, folder.resolve(), buffer, start_step)
    return GeneratorPool(
        config,
        folder.resolve(),
        buffer,
        start_step,
        executor=(executor or LocalConfig(num_workers=num_generators)).build(),
        num_generators=num_generators,
        note=_note,
    )


def _note(line: str) -> None:
    print(escaped(line), file=sys.stderr, flush=True)


def _no_note(line: str) -> None:
    """Discard notes of ranks other than 0."""
