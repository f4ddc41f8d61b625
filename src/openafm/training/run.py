"""The door: carry out a training run in a folder, from its start or from where it was interrupted.

output/  config.json  metrics.jsonl  goodput.jsonl  tensorboard/  checkpoints/step-00001200/ ...
         hang-0.txt, when a watchdog has ended the process of rank 0
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from openafm.core.config import dump
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file, folder_lock
from openafm.core.progress import Progress, progress
from openafm.data.shards import read_manifest
from openafm.models.decoder import Decoder
from openafm.training.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointRecord,
    newest_checkpoint,
    newest_whole,
    remove_leftovers,
    set_aside_newer,
)
from openafm.training.checkpoints.writer import checkpoint_writer, write_checkpoint
from openafm.training.config import TimeBudget, TrainerConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes, open_processes
from openafm.training.distributed.watchdog import watchdog
from openafm.training.evaluation import Evaluator
from openafm.training.observability.goodput import FILE as GOODPUT
from openafm.training.observability.goodput import Goodput, Ledger, goodput, read_accounts
from openafm.training.observability.metrics import MetricsLog, metrics_log, read_metrics
from openafm.training.signals import stop_on_signals
from openafm.training.state import TrainingState, fresh_state, resumed_state, skeleton
from openafm.training.trainer import Trainer


class VocabularyMismatchError(UsageError):
    """The data was made with more tokens than the model has."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Where a run stands: `finished` is False when it was asked to stop; the same call goes on with it.

    `stopped_by` is the signal that asked. `loss` is the mean of the last ten logged steps, `held_out_loss` the last one
    measured; `seconds` were spent in steps, `goodput` says in which share of the wall time.
    """

    folder: Path
    finished: bool
    step: int
    num_steps: int
    num_tokens: int
    seconds: float
    loss: float | None
    held_out_loss: float | None
    goodput: Goodput
    stopped_by: int | None = None


def train(config: TrainerConfig, output: Path, *, device: str = "cpu", processes: Processes | None = None) -> TrainingResult:
    """Train into the folder `output`, going on from its newest whole checkpoint if there is one.

    Under torchrun the processes share the run out as `config.parallel` says; the main one writes. `processes` are those that
    the caller has opened already. SIGTERM or one Ctrl-C, to any of them, saves and returns with `finished` False.

    Raises:
        MeshError: the processes, the model and `config.parallel` do not go together.
        FolderInUseError: another run trains into this folder.
        AnotherRunError: the folder holds a run of another config or of other data.
        NonFiniteError: a loss or gradient is not finite; the message names the step and the documents.
        OutOfSpaceError: a checkpoint does not fit on the disk; the one before is whole.
        ShardError: the data cannot be read.
        VocabularyMismatchError: the data holds tokens beyond the model's vocabulary.
        TeacherLogitsError: the run learns from a cache that is missing, damaged or of something else.
        MetricsError: the log of the interrupted run is damaged.
        ElsewhereError: one of these in another process.
    """
    start_s = perf_counter()
    with (
        open_processes(processes) as everyone,
        stop_on_signals() as stop,
        _threads(config.num_threads),
        ExitStack() as opened,
    ):
        parallelism = Parallelism(config.parallel, config.model, everyone, device)
        checkpoints, note = output / "checkpoints", _note if everyone.is_main else _nothing
        everyone.together(lambda: _check(config))
        everyone.main_only(lambda: _claim(output, opened))
        ledger = Ledger(output / GOODPUT if everyone.is_main else None)
        dog = opened.enter_context(
            watchdog(config.watchdog, output / f"hang-{everyone.rank}.txt", lambda: ledger.waiting("hang"))
        )
        loader = everyone.together(lambda: config.data.build(parallelism.data_rank, parallelism.data_world))
        found = newest_checkpoint(checkpoints, config, loader.digest, note, everyone)
        everyone.main_only(lambda: set_aside_newer(checkpoints, -1 if found is None else found.record.step))
        if found is None:
            state = everyone.together(lambda: fresh_state(config, device, parallelism))
        else:
            state = resumed_state(config, device, found, parallelism)
            note(f"going on from step {state.step:,} of {state.num_steps:,} in {output}")
        trainer = everyone.together(lambda: Trainer(config, state, loader))
        evaluator = everyone.together(lambda: _evaluator(trainer, parallelism))
        if found is None and isinstance(config.budget, TimeBudget):
            state.num_steps = _steps_that_fit(trainer, config.budget, start_s)
            write_checkpoint(checkpoints, config, state.snapshot(), loader.digest, everyone)
        writer = opened.enter_context(checkpoint_writer(checkpoints, config, loader.digest, everyone))
        log = everyone.together(lambda: opened.enter_context(_log(config, output, state)))
        bar = opened.enter_context(_bar(state))
        trainer.run(stop, writer, log, evaluator, bar, ledger, dog)
        writer.wait()
        ledger.close()
        result = everyone.main_only(lambda: training_result(output, state, stop.signal))
    note(str(result.goodput))
    return result


def _check(config: TrainerConfig) -> None:
    _check_vocabularies(config)
    config.objective.check(config)


def _claim(output: Path, opened: ExitStack) -> None:
    """Take the folder for this run."""
    opened.enter_context(folder_lock(output))
    remove_leftovers(output / "checkpoints")


def _evaluator(trainer: Trainer, parallelism: Parallelism) -> Evaluator | None:
    config = trainer.config.evaluation
    return None if config is None else Evaluator(config, trainer.objective, parallelism)


@contextmanager
def _log(config: TrainerConfig, output: Path, state: TrainingState) -> Iterator[MetricsLog]:
    """The log of the run, with its config beside it; that of other processes than the main one leads nowhere."""
    if not state.parallelism.is_main:
        with Path(os.devnull).open("w") as nowhere:
            yield MetricsLog(nowhere, None)
        return
    with atomic_file(output / "config.json", "w") as file:
        file.write(dump(config))
    with metrics_log(output, state.step, _note) as log:
        yield log


@contextmanager
def _bar(state: TrainingState) -> Iterator[Progress]:
    with ExitStack() as opened:
        stream = None if state.parallelism.is_main else opened.enter_context(Path(os.devnull).open("w"))
        yield opened.enter_context(progress("training", state.num_steps, stream))


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_trained(output: Path) -> Decoder:
    """The model of a run's newest whole checkpoint, with the averaged weights where the run keeps them.

    Raises:
        CheckpointError: there is none.
    """
    return trained_model(last_checkpoint(output))


def last_checkpoint(output: Path) -> Checkpoint:
    """The newest whole checkpoint of a run, whichever processes wrote it.

    Raises:
        CheckpointError: there is none.
    """
    found = newest_whole(output / "checkpoints", _note)
    if found is None:
        raise CheckpointError(f"{output} holds no whole checkpoint; train into it first")
    return found


def trained_model(checkpoint: Checkpoint) -> Decoder:
    """The model of a verified checkpoint, with the averaged weights where the run keeps them.

    Raises:
        LayoutMismatchError: it holds the tensors of another model than its config describes.
    """
    model = skeleton(checkpoint.config).model
    checkpoint.check_layout({name: p.shape for name, p in model.named_parameters() if p.requires_grad})
    model.load_state_dict(dict(checkpoint.weights()), strict=checkpoint.config.adapter is None)
    return model


def _check_vocabularies(config: TrainerConfig) -> None:
    """A model may have rows to spare; a token without a row would fail steps later, and elsewhere."""
    loaders = [config.data] if config.evaluation is None else [config.data, config.evaluation.data]
    for source in (source for loader in loaders for source in loader.sources):
        vocab_size = read_manifest(Path(source.path)).vocab_size
        if vocab_size > config.model.vocab_size:
            raise VocabularyMismatchError(
                f"the shards in {source.path} have a vocabulary of {vocab_size:,} tokens, the model's vocab_size is "
                f"{config.model.vocab_size:,}; pack the data with the model's tokenizer or enlarge the model's vocabulary"
            )


def _steps_that_fit(trainer: Trainer, budget: TimeBudget, start_s: float) -> int:
    """How many steps fit into what is left of the budget, at the pace of a few steps that are then undone."""
    state = trainer.state
    before = state.snapshot()
    state.num_steps = budget.measured_steps + 1
    step_seconds = []
    for step in range(budget.measured_steps + 1):
        step_start_s = perf_counter()
        trainer.update(trainer.loader.batch(step))
        step_seconds.append(perf_counter() - step_start_s)
    state.restore(before)
    left_s = budget.seconds - (perf_counter() - start_s)
    num_steps = max(1, int(left_s * (1 - budget.reserve) / statistics.median(step_seconds[1:])))
    return state.parallelism.processes.main_only(lambda: num_steps)  # every process has a clock of its own


def training_result(output: Path, state: TrainingState | CheckpointRecord, stopped_by: int | None = None) -> TrainingResult:
    """Where a run stands, or stood at a checkpoint, with what its log says until then."""
    lines = [line for line in read_metrics(output) if line["step"] <= state.step]
    losses = [line["loss"] for line in lines if "loss" in line]
    held_out = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    return TrainingResult(
        folder=output,
        finished=state.step == state.num_steps,
        step=state.step,
        num_steps=state.num_steps,
        num_tokens=state.num_tokens,
        seconds=state.seconds,
        loss=statistics.fmean(losses[-10:]) if losses else None,
        held_out_loss=held_out[-1] if held_out else None,
        goodput=goodput(read_accounts(output / GOODPUT)),
        stopped_by=stopped_by,
    )


def _nothing(line: str) -> None:
    """For the processes that do not speak."""


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
