"""Train an adapter on a bundle from one's own conversations, and write adapters out (report 7, "Adapters").

RUN/  run.json  data/train/  data/eval/  config.json  metrics.jsonl  checkpoints/  NAME.fmadapter/
"""

from __future__ import annotations

import contextlib
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
from openafm.adapters.package import METADATA, Adapter, AdapterAbout, AdapterNotFoundError, open_adapter, write_adapter
from openafm.bundle import Bundle, BundleError, list_bundles, open_bundle, shipped_bundle
from openafm.core.config import Config, dump, from_dict
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file, folder_lock
from openafm.data.documents import ChatDocument, DocumentFiles, NotADocumentError
from openafm.data.loader import LoaderConfig, SourceConfig
from openafm.data.shards import open_shards
from openafm.models.accounting import num_parameters
from openafm.recipes.config import FolderCorpusConfig
from openafm.recipes.corpora import pack_corpus
from openafm.recipes.drafting import draft_run
from openafm.recipes.run import RunInterruptedError, RunResult, run_recipe
from openafm.runtime.decoding.speculation import DraftMismatchError
from openafm.tokenizer.conversation import AssistantTurn
from openafm.training.config import (
    AdamWConfig,
    CheckpointConfig,
    EvaluationConfig,
    StepBudget,
    TrainerConfig,
    first_difference,
)

ONE_THREAD_BELOW = 50_000_000  # parameters: the operations of a smaller model are too short to share out


class NoBaseError(UsageError):
    """The base of an adapter, which is needed, is not on this machine."""


class NoAdapterRunError(UsageError):
    """A run folder in which no adapter was trained."""


@dataclass(frozen=True, kw_only=True)
class AdapterRunConfig(Config):
    """A run of `openafm adapter train`: chat JSONL files at `data` and `evaluation`, the bundle at `base`.

    `batch_size` is the mean number of conversations in a step: short ones share a row.
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
    """Where a run left things. `eval_losses` are nats for each token of the answers, after each epoch."""

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
    """The config of a run on these files; `changes` replace values by key."""
    values = {
        "base": str(base.path.resolve()),
        "base_identity": base.identity,
        "data": str(data.resolve()),
        "evaluation": None if evaluation is None else str(evaluation.resolve()),
    }
    return from_dict(AdapterRunConfig, values | dict(changes or {}))


def train_adapter(config: AdapterRunConfig, folder: Path, name: str) -> AdapterRunResult:
    """Train in `folder` and write `NAME.fmadapter` there; a run that stands in it goes on where it stopped.

    The adapter starts as the recovery adapter that the base carries, else it changes nothing yet.

    Raises:
        AdapterNameError: `name` is none.
        NotADocumentError, NotTextError, InputPathError: a file, or the named line of it, holds no conversation to learn.
        AnotherRunError: the folder holds another run.
        FolderInUseError: another process runs in this folder.
        AdapterWeightsError: the adapter that the base carries has a larger rank.
        BundleMismatchError: the base is not the one that the run started from.
        RunInterruptedError: stopped by SIGTERM or Ctrl-C; all is saved.
    """
    from openafm.training.observability.metrics import read_metrics
    from openafm.training.run import train

    check_name(name)
    base = open_bundle(config.base)
    files = {"train": config.data} | ({} if config.evaluation is None else {"eval": config.evaluation})
    with folder_lock(folder / "data"):
        _check_same_run(config, folder)
        for file in files.values():
            _check_conversations(Path(file))
        with atomic_file(folder / "run.json", "w") as record:
            record.write(dump(config))
        for part, file in files.items():
            corpus = FolderCorpusConfig(name=part, learn="answers", path=file)
            pack_corpus(corpus, folder / "data" / part, base.tokenizer, base.template)
        trainer = _trainer(config, base, folder)
        result = train(trainer, folder)
        if not result.finished:
            raise RunInterruptedError(folder, result)
        made = _trained(folder)
        adapter = write_adapter(
            folder / f"{name}.fmadapter",
            weights=made.weights,
            config=made.config,
            base_signature=made.base_signature,
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
        eval_losses=tuple(line["held_out_loss"] for line in read_metrics(folder) if "held_out_loss" in line),
    )


def export_adapter(
    source: Path, name: str, output: Path, about: AdapterAbout | None = None, draft: str | Path | None = None
) -> Adapter:
    """Write `output`/NAME.fmadapter from a run's folder or from another adapter's; what `about` leaves empty is lost.

    Raises:
        AdapterNameError: `name` is none.
        AdapterNotFoundError: nothing is at `source`.
        NoAdapterRunError: it is neither an adapter nor a run that trained one.
        HalfDraftError, BundleError: the draft is not a whole bundle.
        DraftMismatchError: it does not speak in the base's tokens.
        NoBaseError: the draft cannot be checked, for the base is not on this machine.
    """
    check_name(name)
    if (source / METADATA).is_file():
        found = open_adapter(source)
        made = _Trained(
            weights=found.weights(),
            config=found.config,
            base_signature=found.base_signature,
            base=local_bundle(found.base_signature),
        )
    else:
        made = _trained(source)
    return write_adapter(
        output / f"{name}.fmadapter",
        weights=made.weights,
        config=made.config,
        base_signature=made.base_signature,
        name=name,
        about=about,
        draft=None if draft is None else _checked_draft(draft, made),
    )


def train_draft(
    adapter: Adapter,
    data: Path,
    evaluation: Path | None,
    folder: Path,
    name: str,
    *,
    base: Bundle | None = None,
    size: str = "nano",
    changes: Mapping[str, str] | None = None,
) -> RunResult:
    """Distil the bundle `name`, which drafts for an adapter on its base, on conversations as the adapter learned from.

    Raises:
        NoBaseError: no `base` is given, and the adapter's is not on this machine.
        AdapterMismatchError: `base` is another one.
        NotADocumentError, NotTextError, InputPathError: a file, or the named line of it, holds no conversation to learn.
        UnknownRecipeError, UnknownKeyError, ConfigError: no such size, or a key or value of `changes` that is none.
        Whatever `run_recipe` raises.
    """
    base = base or local_bundle(adapter.base_signature)
    if base is None:
        raise NoBaseError(
            f"the base {adapter.base_signature} of {adapter.path} is not among your bundles, and the draft learns from it; "
            "give it with --base"
        )
    for file in filter(None, (data, evaluation)):
        _check_conversations(file)
    config = draft_run(base, size=size, adapter=adapter, data=data, evaluation=evaluation, changes=changes)
    return run_recipe(config, folder, name)


def local_bundle(signature: str) -> Bundle | None:
    """This user's bundle of this signature, or the shipped one; None if it is not on this machine.

    A bundle that cannot be opened is passed over: it is not the one that is looked for, or of no use as that.
    """
    for folder in (*list_bundles(), shipped_bundle()):
        with contextlib.suppress(BundleError):
            if folder is not None and (bundle := Bundle(folder)).signature == signature:
                return bundle
    return None


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """An adapter's weights by their names in the decoder, and what they belong to; `base` where it is on this machine."""

    weights: Mapping[str, NDArray[np.float32]]
    config: LoRAConfig
    base_signature: str
    base: Bundle | None


def _trained(folder: Path) -> _Trained:
    """Those of the newest whole checkpoint of a run."""
    from openafm.adapters.lora import adapter_weights
    from openafm.training.run import load_trained

    if not folder.exists():
        raise AdapterNotFoundError(f"nothing is at {folder}; give a run's folder or an adapter's")
    if not (folder / "checkpoints").is_dir():
        raise NoAdapterRunError(f"{folder} is neither an adapter nor the folder of a run; it has no checkpoints")
    config = from_dict(TrainerConfig, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    if config.adapter is None or config.from_bundle is None:
        raise NoAdapterRunError(f"no adapter was trained in {folder}; `openafm adapter train` trains one")
    weights = {name: weight.numpy() for name, weight in adapter_weights(load_trained(folder)).items()}
    base = open_bundle(config.from_bundle)
    return _Trained(weights=weights, config=config.adapter, base_signature=base.signature, base=base)


def _trainer(config: AdapterRunConfig, base: Bundle, folder: Path) -> TrainerConfig:
    """The run on packed data: epochs as steps, evaluation at the end of each on all that there is."""
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
    """Rows that hold the longest conversation, and `batch_size` conversations of mean length in all rows of a step."""
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
    return np.concatenate([np.diff(offsets) for offsets in open_shards(shards).offsets])


def _check_conversations(file: Path) -> None:
    """Every line must be a conversation with an answer to learn: all lines, before anything is trained."""
    is_empty = True
    for document in DocumentFiles(file):
        is_empty = False
        if not isinstance(document, ChatDocument):
            raise NotADocumentError(f"{document.read_from}: a text; an adapter learns from conversations, under 'messages'")
        if not any(isinstance(turn, AssistantTurn) for turn in document.conversation.turns):
            raise NotADocumentError(f"{document.read_from}: a conversation without an answer of the assistant to learn")
    if is_empty:
        raise NotADocumentError(f"{file} holds no conversation; give chat JSONL, one conversation in a line")


def _check_same_run(config: AdapterRunConfig, folder: Path) -> None:
    from openafm.training.checkpoints.checkpoint import AnotherRunError

    record = folder / "run.json"
    if not record.is_file() or not (folder / "checkpoints").is_dir():
        return
    values = json.loads(record.read_text(encoding="utf-8"))
    if "base_identity" not in values:
        raise AnotherRunError(f"{folder} holds a run of a recipe; choose another --output")
    difference = first_difference(from_dict(AdapterRunConfig, values), config, ignored=AdapterRunConfig.ANY_VALUE_RESUMES)
    if difference is not None:
        raise AnotherRunError(f"{folder} holds another run: {difference}; choose another --output or remove it")


def _checked_draft(draft: str | Path, made: _Trained) -> Path:
    bundle = open_bundle(draft)
    if made.base is None:
        raise NoBaseError(
            f"the base {made.base_signature} is not on this machine: whether {bundle.path} drafts for it cannot be told"
        )
    same_rows = bundle.config.vocab_size == made.base.config.vocab_size
    if not same_rows or bundle.tokenizer.digest != made.base.tokenizer.digest:
        raise DraftMismatchError(
            f"{bundle.path} has another tokenizer than the base {made.base.name}; train a draft for this base"
        )
    bundle.verify()
    return bundle.path
