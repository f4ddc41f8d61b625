"""Train an adapter on chat files: `openafm adapter train`.

RUN/  run.json  data/train/  [data/eval/]  config.json  metrics.jsonl  checkpoints/  NAME.fmadapter/
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.metadata import check_name
from openafm.adapters.package import AdapterPackage, write_adapter
from openafm.bundle import Bundle, open_bundle
from openafm.core.config import Config, dump, from_dict
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file
from openafm.core.folder_lock import folder_lock
from openafm.data.documents import ChatDocument, DocumentFiles, NotADocumentError
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.token_shards import open_shards
from openafm.models.accounting import num_parameters
from openafm.recipes.adapters.export import local_bundle, trained_adapter
from openafm.recipes.drafting import draft_run
from openafm.recipes.run import RunInterruptedError, RunResult, run_recipe
from openafm.recipes.sources.corpora import FolderCorpusConfig, pack_corpus
from openafm.tokenizer.conversation import AssistantTurn
from openafm.training.budgets import StepBudget
from openafm.training.config import CheckpointConfig, EvaluationConfig, TrainerConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.resuming import first_difference

ONE_THREAD_BELOW = 50_000_000
"""Parameters below which one thread trains faster than several."""


@dataclass(frozen=True, kw_only=True)
class AdapterRunConfig(Config):
    """A run of `openafm adapter train` on the chat JSONL files `data` and `evaluation` and the bundle `base`.

    `batch_size` is the mean number of conversations in a step; short ones share a row.
    """

    ANY_VALUE_RESUMES: ClassVar[tuple[str, ...]] = ("checkpoint",)

    base: str
    base_identity: str
    data: str
    evaluation: str | None = None
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    epochs: int = 5
    learning_rate: float = 1e-3
    batch_size: int = 4
    seed: int = 0
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        self.require(self.epochs > 0, f"epochs must be at least 1, got {self.epochs}")
        self.require(self.batch_size > 0, f"batch_size must be at least 1, got {self.batch_size}")
        self.require(self.learning_rate > 0, f"learning_rate must be above 0, got {self.learning_rate}")


@dataclass(frozen=True, kw_only=True)
class AdapterRunResult:
    """The outputs of a finished run and its figures. `eval_losses` are in nats per answer token, one for each epoch."""

    adapter: str
    identifier: str
    base: str
    rank: int
    run_folder: str
    conversations: int
    steps: int
    tokens: int
    train_seconds: float
    loss_last: float | None
    eval_losses: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def adapter_run(
    base: Bundle, data: Path, evaluation: Path | None, changes: Mapping[str, Any] | None = None
) -> AdapterRunConfig:
    """Return the config of a run on these files; `changes` replace values by key."""
    values = {
        "base": str(base.path.resolve()),
        "base_identity": base.identity,
        "data": str(data.resolve()),
        "evaluation": None if evaluation is None else str(evaluation.resolve()),
    }
    return from_dict(AdapterRunConfig, values | dict(changes or {}))


def train_adapter(config: AdapterRunConfig, folder: Path, name: str) -> AdapterRunResult:
    """Train in `folder` and write `NAME.fmadapter` there. A run in `folder` continues from its last checkpoint.

    The adapter starts from the base's recovery adapter, or from zero if the base has none.

    Raises:
        AdapterNameError: `name` is not a valid adapter name.
        NotADocumentError, NotTextError, InputPathError: a file, or the named line of it, holds no conversation to learn.
        AnotherRunError: the folder holds another run.
        FolderInUseError: another process runs in this folder.
        AdapterWeightsError: the base's recovery adapter has a larger rank.
        BundleMismatchError: the base has changed since the run started.
        NotGenerativeError: the base encodes images only.
        RunInterruptedError: SIGTERM or Ctrl-C stopped the run; its state is saved.
    """
    from openafm.training.observability.metrics import read_metrics
    from openafm.training.run import train

    check_name(name)
    base = open_bundle(config.base)
    base.check_generates()
    files = {"train": config.data} | ({} if config.evaluation is None else {"eval": config.evaluation})
    for file in files.values():  # before the lock, which creates the folder
        _check_conversations(Path(file))
    with folder_lock(folder / "data"):
        _check_same_run(config, folder)
        with atomic_file(folder / "run.json", "w") as record:
            record.write(dump(config))
        for part, file in files.items():
            corpus = FolderCorpusConfig(name=part, learn="answers", path=file)
            pack_corpus(corpus, folder / "data" / part, base.tokenizer, base.template)
        trainer = _trainer(config, base, folder)
        result = train(trainer, folder)
        if not result.finished:
            raise RunInterruptedError(folder, result)
        trained = trained_adapter(folder)
        adapter = write_adapter(
            folder / f"{name}.fmadapter",
            weights=trained.weights,
            config=trained.config,
            base_signature=trained.base_signature,
            name=name,
        )
    return AdapterRunResult(
        adapter=str(adapter.path),
        identifier=adapter.identifier,
        base=base.name,
        rank=adapter.config.rank,
        run_folder=str(folder),
        conversations=len(_lengths(folder / "data" / "train")),
        steps=result.step,
        tokens=result.num_tokens,
        train_seconds=result.seconds,
        loss_last=result.loss,
        eval_losses=tuple(
            line["held_out_loss"] for line in read_metrics(folder) if line["step"] and "held_out_loss" in line
        ),
    )


def train_draft(
    adapter: AdapterPackage,
    data: Path,
    evaluation: Path | None,
    folder: Path,
    name: str,
    *,
    base: Bundle | None = None,
    size: str = "nano",
    changes: Mapping[str, str] | None = None,
) -> RunResult:
    """Distill a draft model for an adapter on its base, on conversations like those it was trained on.

    Raises:
        UsageError: no `base` is given and the adapter's base is not on this machine.
        AdapterMismatchError: `base` is not the adapter's base.
        NotADocumentError, NotTextError, InputPathError: a file, or the named line of it, holds no conversation to learn.
        UnknownRecipeError, UnknownKeyError, ConfigError: an unknown size, or an unknown key or invalid value in `changes`.
        Errors of `run_recipe`.
    """
    base = base or local_bundle(adapter.base_signature)
    if base is None:
        raise UsageError(
            f"the draft learns from the base {adapter.base_signature} of {adapter.path}, which is not on this machine;"
            " name it with --base"
        )
    for file in filter(None, (data, evaluation)):
        _check_conversations(file)
    config = draft_run(base, size=size, adapter=adapter, data=data, evaluation=evaluation, changes=changes)
    return run_recipe(config, folder, name)


def _trainer(config: AdapterRunConfig, base: Bundle, folder: Path) -> TrainerConfig:
    """Return the run on packed data: epochs as steps, an evaluation on all held-out data after each epoch."""
    loader = _loader(config, "train", folder, base.config.context_length)
    num_steps = math.ceil(loader.build().steps_per_epoch())
    evaluation = None
    if config.evaluation is not None:
        held_out = LoaderConfig(sources=(_source("eval", folder),), rows_per_step=1, row_tokens=loader.row_tokens)
        num_rows = held_out.build().sources[0].num_rows
        evaluation = EvaluationConfig(data=held_out, every_steps=num_steps, num_batches=num_rows)
    return TrainerConfig(
        model=base.config,
        data=loader,
        budget=StepBudget(num_steps=config.epochs * num_steps),
        optimizer=AdamWConfig(learning_rate=config.learning_rate, weight_decay=0.0),
        evaluation=evaluation,
        checkpoint=config.checkpoint,
        from_bundle=config.base,
        from_identity=config.base_identity,
        adapter=config.lora,
        num_threads=1 if num_parameters(base.config) < ONE_THREAD_BELOW else None,
        seed=config.seed,
    )


def _loader(config: AdapterRunConfig, part: str, folder: Path, context_length: int) -> LoaderConfig:
    """Return a loader whose rows hold the longest conversation and whose steps hold `batch_size` of mean length."""
    lengths = _lengths(folder / "data" / part)
    step_tokens = round(config.batch_size * float(lengths.mean()))
    row_tokens = min(context_length, max(step_tokens, int(lengths.max())))
    return LoaderConfig(
        sources=(_source(part, folder),),
        rows_per_step=max(1, round(step_tokens / row_tokens)),
        row_tokens=row_tokens,
        seed=config.seed,
    )


def _source(part: str, folder: Path) -> SourceConfig:
    return SourceConfig(name=part, path=str((folder / "data" / part).resolve()))


def _lengths(shards: Path) -> NDArray[np.int64]:
    opened = open_shards(shards)
    return np.concatenate([np.diff(opened.offsets(shard)) for shard in range(opened.num_shards)])


def _check_conversations(file: Path) -> None:
    """Check every line before training: it must be a conversation with an assistant's turn to learn."""
    is_empty = True
    for document in DocumentFiles(file):
        is_empty = False
        if not isinstance(document, ChatDocument):
            raise NotADocumentError(f"{document.read_from} is a text; an adapter learns from conversations under 'messages'")
        if not any(isinstance(turn, AssistantTurn) for turn in document.conversation.turns):
            raise NotADocumentError(f"{document.read_from} is a conversation without an assistant's turn to learn")
    if is_empty:
        raise NotADocumentError(f"{file} holds no conversation; use chat JSONL with one conversation per line")


def _check_same_run(config: AdapterRunConfig, folder: Path) -> None:
    from openafm.training.checkpoints.record import AnotherRunError

    record = folder / "run.json"
    if not record.is_file() or not (folder / "checkpoints").is_dir():
        return
    values = json.loads(record.read_text(encoding="utf-8"))
    if "base_identity" not in values:
        raise AnotherRunError(f"{folder} holds a run of a recipe; choose another --output")
    difference = first_difference(from_dict(AdapterRunConfig, values), config, ignored=AdapterRunConfig.ANY_VALUE_RESUMES)
    if difference is not None:
        raise AnotherRunError(f"{folder} holds another run: {difference}; choose another --output or remove it")
