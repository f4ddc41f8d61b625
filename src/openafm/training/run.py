"""Entry point of training: start or resume a run in a folder.

output/  config.json  metrics.jsonl  goodput.jsonl  tensorboard/  checkpoints/step-00001200/ ...
         hang-0.txt, if a watchdog has ended the process of rank 0
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import torch

from openafm.core.config import dump
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import Progress, progress
from openafm.core.terminal import escaped
from openafm.data.shards.token_shards import read_manifest
from openafm.models.decoder import Decoder
from openafm.training.budgets import DeadlineBudget, TimeBudget
from openafm.training.checkpoints.checkpoint import Checkpoint
from openafm.training.checkpoints.folder import intact_checkpoint, newest_checkpoint, quarantine_newer, remove_incomplete
from openafm.training.checkpoints.record import CheckpointRecord
from openafm.training.checkpoints.writer import checkpoint_writer, write_checkpoint
from openafm.training.config import TrainerConfig
from openafm.training.device import describe_device, device_memory
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import Processes, machine_share, open_processes
from openafm.training.distributed.watchdog import watchdog
from openafm.training.evaluation import Evaluator
from openafm.training.initialization import fresh_state, resumed_state, untrained_model
from openafm.training.observability.goodput import FILE as GOODPUT
from openafm.training.observability.goodput import Goodput, GoodputRecorder, goodput, read_process_times
from openafm.training.observability.meter import RunMeter
from openafm.training.observability.metrics import MetricsLog, metrics_log, read_metrics
from openafm.training.observability.replicas import ReplicaCheck
from openafm.training.observability.reporting import MetricsReporter, ProgressReporter
from openafm.training.observability.samples import Sampler, SampleReporter
from openafm.training.observability.stragglers import StragglerReporter
from openafm.training.observers import Observer
from openafm.training.pace import Pace
from openafm.training.planning.fit import check_memory
from openafm.training.resuming import resume_notes
from openafm.training.signals import stop_on_signals
from openafm.training.state import TrainingState
from openafm.training.trainer import Trainer

LAST_STEPS = 10


class VocabularyMismatchError(UsageError):
    """The data has a larger vocabulary than the model."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The progress of a run. `finished` is False if it was stopped; the same call continues it.

    Attributes:
        stopped_by: the signal that stopped the run, if any.
        seconds: time spent in steps.
        loss: mean of the last `LAST_STEPS` logged steps.
        held_out_loss: the last measured one.
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


def train(
    config: TrainerConfig,
    output: Path,
    *,
    processes: Processes | None = None,
    observers: Sequence[Observer] = (),
    sampler: Sampler | None = None,
    verify_data: bool = False,
) -> TrainingResult:
    """Train in the folder `output`, from its newest intact checkpoint if it has one. More steps extend a finished run.

    Under torchrun the processes divide the run according to `config.parallel`; rank 0 writes. A caller that has opened the
    processes, for the device of the config, passes them. SIGTERM or one Ctrl-C to any process saves and returns with
    `finished` False. `observers` receive the events of the run after its own observers. Rank 0 reports the samples of
    `sampler`, for which the weights must not be divided over processes. A file of the data is compared with its digest
    before it is first read; with `verify_data` all files are, before the first step.

    Raises:
        DeviceError: the device of the config is absent or differs between processes.
        DeviceMemoryError: a step needs more memory than the device has free.
        MeshError: the processes, the model and `config.parallel` do not fit together.
        FolderInUseError: another run trains in this folder.
        AnotherRunError: the folder holds a run of another config or on other data.
        DamagedCheckpointError: the folder has checkpoints, but all are damaged.
        NonFiniteError: a loss or gradient is not finite; the message names the step and the documents.
        OutOfSpaceError: a checkpoint does not fit on the disk; the previous one is intact.
        ShardError: the data cannot be read.
        VocabularyMismatchError: the data has a larger vocabulary than the model.
        TeacherLogitsError: the cached teacher logits are missing, damaged or of another run.
        MetricsError: the log of the interrupted run is damaged.
        RemoteRankError: another process raised one of these.
    """
    start_s = perf_counter()
    with (
        open_processes(processes, config.device) as ranks,
        stop_on_signals() as stop,
        _threads(config.num_threads),
        ExitStack() as opened,
    ):
        device = str(ranks.device)
        parallelism = Parallelism(config.parallel, config.model, ranks, device)
        checkpoints, note = output / "checkpoints", _note if ranks.is_main else _no_note
        recorder = GoodputRecorder(output / GOODPUT if ranks.is_main else None)
        watching = opened.enter_context(
            watchdog(config.watchdog, output / f"hang-{ranks.rank}.txt", lambda: recorder.write_waiting("hang"))
        )
        ranks.run_on_all(lambda: _check(config, ranks))
        ranks.run_on_main(lambda: _lock_folder(output, opened))
        recorder.open()
        ranks.run_on_all(lambda: config.data.prepare(*machine_share(), verify=verify_data))  # each machine does all of it
        loader = ranks.run_on_all(
            lambda: config.data.build(parallelism.data_rank, parallelism.data_world, verification="first_use")
        )
        found = newest_checkpoint(checkpoints, config, loader.digest, note, ranks)
        if found is None:
            state = ranks.run_on_all(lambda: fresh_state(config, device, parallelism))
        else:
            ranks.run_on_main(lambda: quarantine_newer(checkpoints, found.record.step))
            state = resumed_state(config, device, found, parallelism)
            for line in resume_notes(found.config, config, found.record.num_steps):
                note(line)
            note(f"resuming at step {state.step:,} of {state.num_steps:,} in {output}")
        trainer = ranks.run_on_all(lambda: Trainer(config, state, loader))
        evaluator = _evaluator(trainer, parallelism)
        if found is None and isinstance(config.budget, TimeBudget):
            state.num_steps = _steps_that_fit(trainer, config.budget, start_s)
            write_checkpoint(checkpoints, config, state.snapshot(), loader.digest, ranks)
        writer = opened.enter_context(checkpoint_writer(checkpoints, config, loader.digest, ranks))
        log = ranks.run_on_all(lambda: opened.enter_context(_log(config, output, state)))
        bar = opened.enter_context(_bar(state))
        dtype = config.precision.compute_dtype(ranks.device.type)
        meter = RunMeter(dtype, device, parallelism.shape, lambda: recorder.goodput)
        if ranks.device.type != "cpu":
            note(f"computing on {describe_device(ranks.device)} in {str(dtype).removeprefix('torch.')}")
        callbacks = [callback.build(output) for callback in config.callbacks] if ranks.is_main else []
        listeners = [*callbacks, *observers]
        reporters: list[Observer] = [ProgressReporter(bar, meter), MetricsReporter(log, meter, config.log_every, listeners)]
        if sampler is not None and ranks.is_main:
            reporters.append(SampleReporter(sampler, state, log, bar))
        if config.stragglers is not None:
            reporters.append(StragglerReporter(config.stragglers, ranks, note))
        if config.replica_check is not None:
            reporters.append(ReplicaCheck(config.replica_check, state.parameters, parallelism.shape, ranks))
        pace = Pace(config.budget, state, start_s) if isinstance(config.budget, DeadlineBudget) else None
        trainer.run([recorder, watching, meter, *reporters, writer, stop, *listeners], evaluator, pace)
        writer.wait()
        recorder.close()
        stopped_by = next((number for number in ranks.all_gather(stop.signal) if number is not None), None)
        result = ranks.run_on_main(lambda: training_result(output, state, stopped_by))
    note(str(result.goodput))
    return result


def _check(config: TrainerConfig, ranks: Processes) -> None:
    _check_vocabularies(config)
    config.objective.check(config)
    config.precision.check_device(ranks.device)
    sizes = device_memory(ranks.device)
    if sizes is not None and config.device.check_memory:
        check_memory(config, ranks.world, sizes[0])


def _lock_folder(output: Path, opened: ExitStack) -> None:
    opened.enter_context(folder_lock(output))
    remove_incomplete(output / "checkpoints")


def _evaluator(trainer: Trainer, parallelism: Parallelism) -> Evaluator | None:
    config = trainer.config.evaluation
    return None if config is None else Evaluator(config, trainer.objective, parallelism)


@contextmanager
def _log(config: TrainerConfig, output: Path, state: TrainingState) -> Iterator[MetricsLog]:
    """Write the config and open the log of the run; ranks other than 0 get a log that discards its lines."""
    if not state.parallelism.is_main:
        with Path(os.devnull).open("w") as discarded:
            yield MetricsLog(discarded, None)
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
    """Return the model of a run's newest intact checkpoint, with the averaged weights if the run keeps them.

    Raises:
        CheckpointError: the run has no intact checkpoint.
    """
    return trained_model(last_checkpoint(output))


def last_checkpoint(output: Path) -> Checkpoint:
    """Return the newest intact checkpoint of a run, written by any number of processes.

    Raises:
        CheckpointError: the run has no intact checkpoint.
    """
    return intact_checkpoint(output / "checkpoints", _note)


def trained_model(checkpoint: Checkpoint) -> Decoder:
    """Return the model of a verified checkpoint, with the averaged weights if the run keeps them.

    Raises:
        CheckpointError: the checkpoint's tensors do not fit the model of its config.
    """
    model = untrained_model(checkpoint.config).model
    checkpoint.check_layout({name: p.shape for name, p in model.named_parameters() if p.requires_grad})
    model.load_state_dict(dict(checkpoint.weights()), strict=checkpoint.config.adapter is None)
    return model


def _check_vocabularies(config: TrainerConfig) -> None:
    """Refuse data with tokens that have no row in the embedding: they would fail later, with an index error."""
    loaders = [config.data] if config.evaluation is None else [config.data, config.evaluation.data]
    for source in (source for loader in loaders for source in loader.sources):
        vocab_size = read_manifest(source.path).vocab_size
        if vocab_size > config.model.vocab_size:
            raise VocabularyMismatchError(
                f"the shards in {source.path} have a vocabulary of {vocab_size:,} tokens, the model's vocab_size is "
                f"{config.model.vocab_size:,}; pack the data with the model's tokenizer or raise vocab_size"
            )


def _steps_that_fit(trainer: Trainer, budget: TimeBudget, start_s: float) -> int:
    """Return how many steps fit into the rest of the budget, measured on a few steps that are then undone."""
    state = trainer.state
    before = state.snapshot()
    state.num_steps = budget.measured_steps + 1
    step_seconds = []
    with closing(trainer.source.batches(0)) as batches:
        for batch in islice(batches, budget.measured_steps + 1):
            step_start_s = perf_counter()
            trainer.update(batch)
            step_seconds.append(perf_counter() - step_start_s)
    state.restore(before)
    left_s = budget.seconds - (perf_counter() - start_s)
    num_steps = max(1, int(left_s * (1 - budget.reserve) / statistics.median(step_seconds[1:])))
    return state.parallelism.processes.run_on_main(lambda: num_steps)  # clocks differ between processes


def training_result(output: Path, state: TrainingState | CheckpointRecord, stopped_by: int | None = None) -> TrainingResult:
    """Return the progress of a run, or of a checkpoint, with the losses logged until then."""
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
        loss=statistics.fmean(losses[-LAST_STEPS:]) if losses else None,
        held_out_loss=held_out[-1] if held_out else None,
        goodput=goodput(read_process_times(output / GOODPUT)),
        stopped_by=stopped_by,
    )


def _no_note(line: str) -> None:
    """Discard notes of ranks other than 0."""


def _note(line: str) -> None:
    print(escaped(line), file=sys.stderr, flush=True)
