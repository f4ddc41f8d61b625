"""Train the stages within the minutes of a borrowed machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F

from openafm.bundle import open_bundle
from openafm.core.config import override
from openafm.core.errors import UsageError
from openafm.core.executors import LocalExecutor, num_cores
from openafm.core.files import write_json
from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import ClipConfig, LettersModelConfig, MultimodalConfig
from openafm.recipes.borrowed.config import BorrowedConfig
from openafm.recipes.borrowed.outbox import Outbox
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.consolidation import consolidate_run
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import RunInterruptedError, RunResult, located, run_recipe
from openafm.recipes.sources.corpora import CorpusConfig, SyntheticCorpusConfig, pack_corpus
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.training.budgets import DeadlineBudget
from openafm.training.checkpoints.folder import checkpoint_paths
from openafm.training.config import CheckpointConfig, CompileConfig, PrintedLinesConfig, TrainerConfig
from openafm.training.device import describe_device
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import last_checkpoint

EXAMPLES_PER_SECOND = 600
"""Of the built-in corpus and requests that people wrote, generated and encoded by one core."""
CHECKPOINT_SECONDS = 60.0
RESERVE = 0.03
"""Share of a stage's time for its last checkpoint and bundle."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Packing:
    """The corpora of a stage, to pack into its run folder."""

    corpora: tuple[CorpusConfig, ...]
    folder: Path
    tokenizer: Tokenizer


def train_borrowed(config: BorrowedConfig, out: Path, work: Path, say: Say) -> dict[str, Any]:
    """Train the stages, write `pieces/` and `figures.json` into `out`, and return the figures.

    Pieces appear with the first checkpoint of the second stage and are replaced with each of the next ones. The same call
    continues after a kill, with new minutes.

    Raises:
        RoomError: the bundles do not fit the pieces.
        RunInterruptedError: SIGTERM or Ctrl-C; the pieces are those of the last step.
        Errors as `run_recipe`.
    """
    end_s = perf_counter() + 60 * config.minutes - config.end_seconds
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    say(f"torch {torch.__version__} on {describe_device(device)}, {num_cores()} cores, {60 * config.minutes:.0f} s")
    source = open_bundle(config.tokenizer)
    model = first_model(config, source.tokenizer.vocab_size)
    outbox = Outbox(config, model, work, out / "pieces")
    figures: dict[str, Any] = {"device": describe_device(device), "torch": torch.__version__, "stages": {}}
    bundle = None
    with packed_ahead(config, work, source.tokenizer) as packings:
        for number, (stage, share) in enumerate(config.stages.items()):
            folder, name = work / stage, f"borrowed-{stage}"
            run = stage_run(config, stage, bundle, model, source.path / "tokenizer.json", device, say)
            packings[stage].result()
            left = share / sum(list(config.stages.values())[number:]) * (end_s - perf_counter())
            run = replace(run, trainer=with_deadline(run.trainer, folder, left))
            say(f"{stage}: {left:.0f} s" if left > 0 else f"{stage}: no time is left; it ends after a step")
            is_kept = stage in config.kept_stages
            with outbox.following(folder, stage, name, say) if is_kept else nullcontext():
                try:
                    result = run_recipe(run, folder, name)
                except RunInterruptedError:
                    if is_kept:
                        outbox.put(open_bundle(consolidate_run(folder, name).bundle), stage)
                    raise
            bundle = result.bundle
            if is_kept:
                outbox.put(open_bundle(bundle), stage)
            figures["stages"][stage] = stage_figures(run, folder, result)
            write_json(out / "figures.json", figures)
            say(f"{stage}: {json.dumps(figures['stages'][stage])}")
    return figures


def stage_run(
    config: BorrowedConfig,
    stage: str,
    bundle: str | None,
    model: DecoderConfig,
    tokenizer_file: Path,
    device: torch.device,
    say: Say,
) -> RunConfig:
    """Return the run of a stage: the first one from fresh weights, the next ones from `bundle`."""
    run = prepare_run(stage, config.size, start=bundle)
    run = replace(run, corpora=stage_corpora(config, stage))
    trainer = replace(
        run.trainer,
        checkpoint=CheckpointConfig(every_seconds=CHECKPOINT_SECONDS),
        callbacks=(*run.trainer.callbacks, PrintedLinesConfig()),
    )
    if bundle is None:
        trainer = replace(trainer, model=model)
        run = replace(run, tokenizer_file=str(tokenizer_file.resolve()))
    if stage not in config.kept_stages:
        return replace(run, trainer=trainer)
    rows = config.rows or (config.gpu_rows if device.type == "cuda" else trainer.data.rows_per_step)
    trainer = replace(trainer, data=replace(trainer.data, rows_per_step=rows))
    if device.type == "cuda" and trainer.qat is None and trainer.adapter is None and compiles(device, say):
        trainer = replace(trainer, compile=CompileConfig())
    return override(replace(run, trainer=trainer), config.changes)


def first_model(config: BorrowedConfig, vocab_size: int) -> DecoderConfig:
    """Return the model of the first stage: the recipe's with this vocabulary if that has vision, else a text decoder."""
    first = build_run(next(iter(config.stages)), config.size).trainer.model
    if isinstance(first, MultimodalConfig | LettersModelConfig):
        if config.model:
            raise UsageError(
                f"--model {config.model} is a text decoder, the first stage trains a model with vision; leave --model out"
            )
        return replace(first, vocab_size=vocab_size)
    if isinstance(first, ClipConfig):
        raise UsageError(
            f"{next(iter(config.stages))} trains no decoder; start with a stage whose model has one, as vision.joint"
        )
    return replace(named_size(config.model or f"on_device.{config.size}"), vocab_size=vocab_size)


def stage_corpora(config: BorrowedConfig, stage: str) -> tuple[CorpusConfig, ...]:
    """Return the corpora of a stage: the training part of the built-in one with the examples and requests of `config`, and
    `config.num_drawings` training drawings of each kind."""
    num_examples = config.num_examples or round(num_cores() * EXAMPLES_PER_SECOND * config.generate_seconds)
    corpora = []
    for corpus in build_run(stage, config.size).corpora:
        if isinstance(corpus, SyntheticCorpusConfig) and corpus.synthetic.split == "train":
            synthetic = replace(corpus.synthetic, natural=config.natural and str(Path(config.natural).resolve()))
            corpus = replace(corpus, synthetic=synthetic, num_examples=num_examples)
        if isinstance(corpus, DrawnCorpusConfig) and corpus.drawing.split == "train" and config.num_drawings:
            corpus = replace(corpus, drawing=replace(corpus.drawing, count=config.num_drawings))
        corpora.append(corpus)
    return tuple(corpora)


@contextmanager
def packed_ahead(config: BorrowedConfig, work: Path, tokenizer: Tokenizer) -> Iterator[dict[str, Future[None]]]:
    """Pack the corpora of all stages, in order, in processes of their own while the stages before train."""
    with LocalExecutor(1) as executor, ThreadPoolExecutor(1) as thread:

        def pack(packing: Packing) -> None:
            for outcome in executor.map(pack_stage, [packing]):
                if outcome.failure is not None:
                    raise RuntimeError(f"packing {packing.folder} failed: {outcome.failure}")

        futures = {}
        for stage in config.stages:
            read = {source.name for source in build_run(stage, config.size).sources}
            corpora = tuple(corpus for corpus in stage_corpora(config, stage) if corpus.name in read)
            futures[stage] = thread.submit(pack, Packing(corpora, work / stage, tokenizer))
        try:
            yield futures
        finally:
            for future in futures.values():
                future.cancel()
            executor.close()  # ends a packing, for which the thread waits


def pack_stage(packing: Packing) -> None:
    """Pack the corpora of a stage as its run would."""
    for corpus in packing.corpora:
        pack_corpus(corpus, packing.folder / "data" / corpus.name, packing.tokenizer, ChatTemplate())


def with_deadline(trainer: TrainerConfig, folder: Path, left: float) -> TrainerConfig:
    """Return the run with `left` seconds from now, in addition to those of an interrupted call.

    The reserve is a share of `left` alone: a share of all seconds would use up the new ones after some calls.
    """
    spent = last_checkpoint(folder).record.seconds if checkpoint_paths(folder / "checkpoints") else 0.0
    return replace(trainer, budget=DeadlineBudget(seconds=max(1.0, spent / (1 - RESERVE) + left), reserve=RESERVE))


def compiles(device: torch.device, say: Say) -> bool:
    """Return True if torch.compile works here: it needs Triton and a C compiler."""
    try:
        torch.compile(F.silu)(torch.ones(8, device=device))
    except Exception as error:  # any library of the compiler may fail, and the run does not need it
        say(f"without torch.compile: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        return False
    torch._dynamo.config.suppress_errors = True  # what it cannot compile later is computed eagerly
    return True


def stage_figures(run: RunConfig, folder: Path, result: RunResult) -> dict[str, Any]:
    """Return what a stage did and how fast it was, over the second half of its log."""
    lines = [line for line in read_metrics(folder) if "tokens_per_second" in line]
    rates = [line["tokens_per_second"] for line in lines[len(lines) // 2 :]]
    peaks = [line[key] for line in lines for key in ("device_peak_memory_mb", "peak_memory_mb") if key in line]
    loader = located(run.trainer, folder).data.build(verification="first_use")
    return {
        "steps": result.steps,
        "tokens": result.tokens,
        "epochs": {source: round(epochs, 2) for source, epochs in loader.epochs(result.steps).items()},
        "seconds": round(result.train_seconds, 1),
        "tokens_per_second": round(sorted(rates)[len(rates) // 2]) if rates else None,
        "peak_memory_mb": round(max(peaks)) if peaks else None,
        "loss": result.loss_last,
        "held_out_loss": result.held_out_loss,
        "compiled": run.trainer.compile is not None,
        "goodput": round(result.goodput, 3),
    }
