"""Carry out a recipe: tokenizer, token shards, training, bundle. Every station that stands is reused.

RUN/  run.json  tokenizer.json  data/<source>/  config.json  metrics.jsonl  checkpoints/  [teacher_logits/]
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from openafm.adapters.package import open_adapter
from openafm.bundle import FULL_PRECISION, Bundle, Numerics, RecoveryAdapter, open_bundle, write_bundle
from openafm.bundle.store import bundle_place
from openafm.compression.errors import UncompressibleModelError
from openafm.core.config import dump, from_dict, override
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_file, folder_lock
from openafm.data.loader import LoaderConfig, SourceConfig
from openafm.recipes.card import model_card
from openafm.recipes.config import FolderCorpusConfig, RunConfig, build_run, find_recipe
from openafm.recipes.corpora import TOKENIZER_EXAMPLES, pack_corpus, texts_of_corpus
from openafm.recipes.drafting import DraftReport, held_out_conversations, measure_draft, taught_by
from openafm.recipes.teaching import settled
from openafm.tokenizer.bpe import Tokenizer, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.template import BaseChatTemplate
from openafm.training.config import TrainerConfig, first_difference
from openafm.training.objectives.config import CachedDistillationConfig, DistillationConfig

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder
    from openafm.training.run import TrainingResult

DRAFTED_CONVERSATIONS = 16  # by which a draft model is judged when its run ends


class StartBundleError(UsageError):
    """A recipe that starts from a bundle was given none, or the one that it is to write."""


class RunInterruptedError(OpenAFMError):
    """The run was asked to stop before its end; what it has is saved. SIGTERM ends in exit code 0, Ctrl-C in 130."""

    shared = True

    def __init__(self, folder: Path, result: TrainingResult) -> None:
        super().__init__(
            f"stopped at step {result.step:,} of {result.num_steps:,}; saved in {folder}, the same command goes on"
        )
        self.exit_code = 130 if result.stopped_by == signal.SIGINT else 0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Where a run left things. A draft model's acceptance is that of its drafts, greedy, on held-out conversations.

    `goodput` is the share of the wall time since the first start that went into steps; `lost_seconds` went elsewhere.
    """

    bundle: str
    signature: str
    run_folder: str
    steps: int
    tokens: int
    train_seconds: float
    loss_first: float | None
    loss_last: float | None
    held_out_loss: float | None
    goodput: float
    lost_seconds: dict[str, float]
    acceptance: float | None = None
    target_passes_per_token: float | None = None
    plain_passes_per_token: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Without the figures of draft models where it is none."""
        optional = ("acceptance", "target_passes_per_token", "plain_passes_per_token")
        return {key: value for key, value in asdict(self).items() if value is not None or key not in optional}


def prepare_run(
    recipe: str,
    size: str,
    *,
    start: str | None = None,
    data: Path | None = None,
    changes: Mapping[str, str] | None = None,
) -> RunConfig:
    """The resolved config of a recipe: from a bundle, on a folder of the user's own, with single values changed.

    A recipe that starts from another one's bundle and is given none takes the one that stands under its default name; so
    does one that is taught by another one's.

    Raises:
        UnknownRecipeError, UnknownKeyError, ConfigError: the message names the nearest valid name.
        BundleNotFoundError: `start` names no bundle.
        UncompressibleModelError: `start` has few bits, and the recipe trains its weights.
        UpcyclingError: the recipe upcycles `start`, which is not dense.
        TeacherError: the teacher reads another vocabulary than `start`.
    """
    config = build_run(recipe, size)
    start = start or _left_by(find_recipe(recipe).starts_from, size)
    if start is not None and isinstance(config.trainer.objective, DistillationConfig):
        config = taught_by(config, open_bundle(start))
    elif start is not None:
        bundle = open_bundle(start)
        if bundle.numerics.is_compressed and config.trainer.adapter is None:
            raise UncompressibleModelError(
                f"{bundle.name} is compressed ({bundle.numerics.weights}): its weights can no longer be trained; start from"
                " the bundle that it was made of, or train an adapter"
            )
        model = bundle.config
        if find_recipe(recipe).lengthens:
            model = replace(model, context_length=max(model.context_length, config.trainer.model.context_length))
        trainer = replace(
            config.trainer,
            from_bundle=str(bundle.path.resolve()),
            from_identity=bundle.identity,
            model=model,
            data=_within(config.trainer.data, model.context_length),
        )
        if trainer.adapter is not None and bundle.recovery_adapter is not None:
            trainer = replace(trainer, adapter=bundle.recovery_adapter.config)
        config = replace(config, tokenizer=None, trainer=trainer)
    if data is not None:
        corpus = FolderCorpusConfig(name="own", learn=config.corpora[0].learn, path=str(data.resolve()))
        sources = (SourceConfig(name="own", path="own"),)
        loader = replace(config.trainer.data, sources=sources)
        config = replace(config, corpora=(corpus,), trainer=replace(config.trainer, data=loader, evaluation=None))
    return settled(override(config, changes or {}), _left_by(find_recipe(recipe).taught_by, size))


def default_name(recipe: str, size: str) -> str:
    """What the bundle of a recipe is called unless told otherwise."""
    return f"{recipe}-{size}"


def _left_by(recipe: str | None, size: str) -> str | None:
    """The bundle that a recipe has left under its default name, if it stands."""
    if recipe is None or not (bundle_place(default_name(recipe, size)) / "config.json").is_file():
        return None
    return str(bundle_place(default_name(recipe, size)))


def run_recipe(config: RunConfig, folder: Path, name: str) -> RunResult:
    """Run to the end and write the bundle `name`; a run that stands in `folder` goes on where it stopped.

    Under torchrun the main process makes the data and writes the bundle, all train, and all return the same result.

    Raises:
        MeshError: the processes, the model and `trainer.parallel` do not go together.
        StartBundleError: the recipe starts from a bundle and was given none, or the one called `name`.
        FolderInUseError: another process runs in this folder.
        AnotherRunError: the folder holds a run of another config.
        RunInterruptedError: stopped by SIGTERM or Ctrl-C; all is saved.
        Whatever its stations raise, each with the file it is about.
    """
    from openafm.training.distributed.processes import open_processes
    from openafm.training.run import train

    check_name(config, name)
    with open_processes() as everyone, ExitStack() as opened:
        trainer = _located_trainer(config.trainer, folder)
        trainer.parallel.shape(everyone.world)
        trainer.parallel.check_model(trainer.model)
        everyone.run_on_main(lambda: _prepare(config, folder, opened))
        result = train(trainer, folder, processes=everyone)
        if not result.finished:
            raise RunInterruptedError(folder, result)
        return everyone.run_on_main(lambda: _finish(config, trainer, folder, name, result))


def check_name(config: RunConfig, name: str) -> None:
    """Refuse to write over what a run starts from.

    Raises:
        StartBundleError: the bundle `name` is that.
    """
    if config.start is not None and Path(config.start).resolve() == bundle_place(name).resolve():
        raise StartBundleError(
            f"'{name}' is the bundle that the run starts from, which stays as it is; choose another --name"
        )


def _prepare(config: RunConfig, folder: Path, opened: ExitStack) -> None:
    """Take the run folder, and make the tokenizer, the token shards and a teacher's logits unless they stand there."""
    from openafm.training.objectives.teacher_logits import write_teacher_logits

    opened.enter_context(folder_lock(folder / "data"))
    _check_same_run(config, folder)
    tokenizer, template = _tokenizer(config, folder)
    objective = config.trainer.objective
    if isinstance(objective, CachedDistillationConfig):
        objective.open()  # a teacher that is missing is told before the minutes that packing may take
    with atomic_file(folder / "run.json", "w") as file:
        file.write(dump(config))
    for corpus in config.corpora_read:
        pack_corpus(corpus, folder / "data" / corpus.name, tokenizer, template)
    if isinstance(objective, CachedDistillationConfig):
        write_teacher_logits(_located_trainer(config.trainer, folder))


def _finish(config: RunConfig, trainer: TrainerConfig, folder: Path, name: str, result: TrainingResult) -> RunResult:
    """Write the bundle of a run that has come to its end."""
    from openafm.training.run import load_trained

    bundle = write_trained(config, trainer, folder, name, load_trained(folder), result)
    return _result(bundle, folder, result, _draft_report(config, bundle))


def write_trained(
    config: RunConfig, trainer: TrainerConfig, folder: Path, name: str, model: Decoder, result: TrainingResult
) -> Bundle:
    """Write the bundle `name` of a model that was trained in `folder`; `result` is for its card."""
    tokenizer, template = _tokenizer(config, folder)
    made = _trained_weights(trainer, model)
    return write_bundle(
        bundle_place(name),
        config=trainer.model,
        tokenizer=tokenizer,
        template=template,
        tensors=made.tensors,
        numerics=made.numerics,
        recovery=made.recovery,
        card=model_card(name, config, result),
    )


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """What a bundle holds beside config, tokenizer and template."""

    tensors: Mapping[str, NDArray[Any]]
    numerics: Numerics = FULL_PRECISION
    recovery: RecoveryAdapter | None = None


def _trained_weights(trainer: TrainerConfig, model: Decoder) -> _Weights:
    """As they are, packed after quantization-aware training, or the base as it was with the adapter beside it."""
    from openafm.adapters.lora import adapter_weights
    from openafm.compression.deploy import packed_tensors

    if trainer.adapter is not None and trainer.from_bundle is not None:
        base = open_bundle(trainer.from_bundle)
        weights = {name: weight.numpy() for name, weight in adapter_weights(model).items()}
        recovery = RecoveryAdapter(config=trainer.adapter, weights=weights)
        return _Weights(tensors=base.tensors(), numerics=base.numerics, recovery=recovery)
    if trainer.qat is not None:
        return _Weights(tensors=packed_tensors(model), numerics=trainer.qat.numerics)
    return _Weights(tensors={name: tensor.numpy() for name, tensor in model.state_dict().items()})


def _check_same_run(config: RunConfig, folder: Path) -> None:
    """Refuse another config before anything of the run that stands is touched."""
    from openafm.training.checkpoints.checkpoint import AnotherRunError

    record = folder / "run.json"
    if not record.is_file() or not (folder / "checkpoints").is_dir():
        return
    found = from_dict(RunConfig, json.loads(record.read_text(encoding="utf-8")))
    difference = first_difference(found, config, ignored=("trainer",)) or first_difference(
        found.trainer, config.trainer, ignored=TrainerConfig.ANY_VALUE_RESUMES
    )
    if difference is not None:
        raise AnotherRunError(f"{folder} holds a run of another config: {difference}; choose another --output or remove it")


def _tokenizer(config: RunConfig, folder: Path) -> tuple[Tokenizer, BaseChatTemplate]:
    """The starting bundle's, else the one in the run folder, else one trained on the corpora."""
    start = config.start
    needed = find_recipe(config.recipe).starts_from
    if start is not None:
        bundle = open_bundle(start)
        return bundle.tokenizer, bundle.template
    if config.tokenizer is None:
        raise StartBundleError(
            f"{config.recipe} starts from a bundle of {needed}: give one with --from BUNDLE, or train {needed} first"
        )
    file = folder / "tokenizer.json"
    if file.is_file() and (tokenizer := Tokenizer.load(file)).vocab_size == config.tokenizer.vocab_size:
        return tokenizer, ChatTemplate()
    texts = itertools.islice(itertools.chain.from_iterable(map(texts_of_corpus, config.corpora)), 4 * TOKENIZER_EXAMPLES)
    tokenizer = train_tokenizer(config.tokenizer, texts)
    tokenizer.save(file)
    return tokenizer, ChatTemplate()


def _within(loader: LoaderConfig, context_length: int) -> LoaderConfig:
    return replace(loader, row_tokens=min(loader.row_tokens, context_length))


def _located_trainer(trainer: TrainerConfig, folder: Path) -> TrainerConfig:
    if trainer.evaluation is not None:
        trainer = replace(trainer, evaluation=replace(trainer.evaluation, data=_located(trainer.evaluation.data, folder)))
    if isinstance(trainer.objective, CachedDistillationConfig):
        cache = str((folder / trainer.objective.cache).resolve())
        trainer = replace(trainer, objective=replace(trainer.objective, cache=cache))
    return replace(trainer, data=_located(trainer.data, folder))


def _located(loader: LoaderConfig, folder: Path) -> LoaderConfig:
    """The same loader with the sources' paths below the run folder."""
    sources = tuple(replace(source, path=str((folder / "data" / source.path).resolve())) for source in loader.sources)
    return replace(loader, sources=sources)


def _draft_report(config: RunConfig, draft: Bundle) -> DraftReport | None:
    """What a draft model is worth to its teacher; None for all other models."""
    objective = config.trainer.objective
    if not isinstance(objective, DistillationConfig) or objective.teacher is None:
        return None
    adapter = None if objective.adapter is None else open_adapter(Path(objective.adapter))
    return measure_draft(
        draft, open_bundle(objective.teacher), held_out_conversations(config, DRAFTED_CONVERSATIONS), adapter
    )


def _result(bundle: Bundle, folder: Path, result: TrainingResult, report: DraftReport | None) -> RunResult:
    from openafm.training.observability.metrics import read_metrics

    losses = [line["loss"] for line in read_metrics(folder) if "loss" in line]
    return RunResult(
        bundle=str(bundle.path),
        signature=bundle.signature,
        run_folder=str(folder),
        steps=result.step,
        tokens=result.num_tokens,
        train_seconds=result.seconds,
        loss_first=losses[0] if losses else None,
        loss_last=result.loss,
        held_out_loss=result.held_out_loss,
        goodput=result.goodput.share,
        lost_seconds={cause: round(seconds, 3) for cause, seconds in result.goodput.lost.items()},
        acceptance=None if report is None else report.acceptance,
        target_passes_per_token=None if report is None else report.target_passes_per_token,
        plain_passes_per_token=None if report is None else report.plain_passes_per_token,
    )
