"""Carry out a run: tokenizer, token shards, training, bundle. A stage whose output exists is skipped.

RUN/  run.json  tokenizer.json  data/<source>/  config.json  metrics.jsonl  checkpoints/  [teacher_logits/]
"""

from __future__ import annotations

import hashlib
import itertools
import json
import signal
import statistics
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.bundle.store import bundle_place
from openafm.core.config import dump, from_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_file
from openafm.core.folder_lock import folder_lock
from openafm.core.regular_files import read_document
from openafm.data.drawing.generators import load_built_in
from openafm.data.loading.loader import LanguagesConfig, LoaderConfig
from openafm.data.shards.files import address_of
from openafm.data.shards.token_shards import read_manifest
from openafm.recipes.card import model_card
from openafm.recipes.catalog import RECIPES
from openafm.recipes.config import RunConfig
from openafm.recipes.drafting import DraftReport, held_out_conversations, measure_draft
from openafm.recipes.sources.corpora import TOKENIZER_EXAMPLES, pack_corpus
from openafm.recipes.sources.own_data import write_data
from openafm.recipes.trained_weights import trained_weights
from openafm.tokenizer.bpe import Tokenizer, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.template import BaseChatTemplate
from openafm.training.config import TrainerConfig, VisionStart
from openafm.training.resuming import first_difference, resume_difference
from openafm.training.signals import PREEMPTED

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder
    from openafm.training.distributed.processes import Processes
    from openafm.training.observability.samples import Sampler
    from openafm.training.run import TrainingResult

DRAFTED_CONVERSATIONS = 16
"""Conversations on which the acceptance of a draft model is measured at the end of its run."""


class StartBundleError(UsageError):
    """The run needs a bundle to start from, or would overwrite the one it starts from."""


class ConfigsDifferError(UsageError):
    """The processes of a run have different configs."""

    shared = True


class NoRunError(UsageError):
    """The folder holds no run of a recipe."""


class Interrupted(Protocol):
    """The progress of a run that was stopped."""

    @property
    def step(self) -> int: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def stopped_by(self) -> int | None: ...


class RunInterruptedError(OpenAFMError):
    """The run stopped before its end and is saved. The exit code is 0 after SIGTERM, 130 after Ctrl-C, 75 after SIGUSR1."""

    shared = True

    def __init__(self, folder: Path, result: Interrupted) -> None:
        super().__init__(
            f"stopped at step {result.step:,} of {result.num_steps:,}; saved in {folder}, repeat the command to continue"
        )
        codes = {signal.SIGINT: 130, getattr(signal, "SIGUSR1", None): PREEMPTED}
        self.exit_code = codes.get(result.stopped_by, 0)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The outputs of a finished run and its figures.

    `goodput` is the share of the wall time since the first start that was spent in steps; `lost_seconds` is the rest by
    cause; `starts` is above 1 if a process was killed or stopped. `loss_last` is a mean of the last ten logged steps, as is
    `cross_entropy_last`, the part of a loss that is the data's, if it has others, such as the divergence from a teacher. The
    acceptance and the passes per token are those of a draft model on held-out conversations, greedy.
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
    starts: int
    cross_entropy_last: float | None = None
    acceptance: float | None = None
    target_passes_per_token: float | None = None
    plain_passes_per_token: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON, without those that other runs have."""
        optional = ("cross_entropy_last", "acceptance", "target_passes_per_token", "plain_passes_per_token")
        return {key: value for key, value in asdict(self).items() if value is not None or key not in optional}


def run_recipe(config: RunConfig, folder: Path, name: str, *, verify_data: bool = False) -> RunResult:
    """Train to the end in `folder` and write the bundle `name`. A run in `folder` continues from its last checkpoint.

    Under torchrun the main process packs the data and writes the bundle; all processes train and return the same result.
    `verify_data` compares all token shards with their digests before the first step, instead of each before it is read.

    Raises:
        DeviceError: the device of `trainer.device` is absent or differs between processes.
        MeshError: the processes, the model and `trainer.parallel` do not fit together.
        StartBundleError: the recipe needs a bundle to start from, or `name` is that bundle.
        FolderInUseError: another process runs in this folder.
        AnotherRunError: the folder holds a run of another config.
        RunInterruptedError: SIGTERM or Ctrl-C stopped the run; its state is saved.
        Other errors of packing, training and writing name the file that they concern.
    """
    from openafm.training.distributed.processes import open_processes
    from openafm.training.run import train

    check_name(config, name)
    with open_processes(config=config.trainer.device) as everyone, ExitStack() as opened:
        _check_equal(config, everyone)
        config.trainer.parallel.shape(everyone.world)
        config.trainer.parallel.check_model(config.trainer.model)
        everyone.run_on_all(lambda: config.trainer.precision.check_device(everyone.device))  # before the data is packed
        everyone.run_on_main(lambda: _prepare(config, folder, str(everyone.device), opened))
        trainer = located(config.trainer, folder)
        sampler = None if config.samples is None or not everyone.is_main else _sampler(config, trainer, folder)
        result = train(trainer, folder, processes=everyone, sampler=sampler, verify_data=verify_data)
        if not result.finished:
            raise RunInterruptedError(folder, result)
        return everyone.run_on_main(lambda: _finish(config, trainer, folder, name, result))


def _check_equal(config: RunConfig, everyone: Processes) -> None:
    """Check that all processes have the same config.

    Raises:
        ConfigsDifferError: they do not; equal on all processes.
    """
    digests = everyone.all_gather(hashlib.sha256(dump(config).encode()).hexdigest())
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is not None:
        raise ConfigsDifferError(
            f"rank {other} has another config than rank 0; run the same command, with the same data, on all nodes"
        )


def check_name(config: RunConfig, name: str) -> None:
    """Check that the bundle `name` is not the one that the run starts from.

    Raises:
        StartBundleError: it is.
    """
    if config.start is not None and Path(config.start).resolve() == bundle_place(name).resolve():
        raise StartBundleError(f"the run starts from the bundle '{name}' and must not overwrite it; choose another --name")


def read_run(folder: Path) -> RunConfig:
    """Return the config of the run in `folder`.

    Raises:
        NoRunError: the folder holds no run of a recipe.
        UnknownKindError: the run uses a kind whose plugin is not loaded.
    """
    record = folder / "run.json"
    if not record.is_file():
        raise NoRunError(f"{folder} holds no run of a recipe: it has no run.json; `openafm train` makes one")
    load_built_in()
    return from_dict(RunConfig, json.loads(read_document(record)))


def write_trained(
    config: RunConfig, trainer: TrainerConfig, folder: Path, name: str, model: Decoder, result: TrainingResult
) -> Bundle:
    """Write the bundle `name` of a model that was trained in `folder`; `result` goes into its card."""
    tokenizer, template = _tokenizer(config, folder)
    weights = trained_weights(trainer, model)
    bundle = write_bundle(
        bundle_place(name),
        config=trainer.model,
        tokenizer=tokenizer,
        template=template,
        tensors=weights.tensors,
        numerics=weights.numerics,
        recovery=weights.recovery,
        card=model_card(name, config, result),
    )
    if config.data is not None:
        write_data(bundle, config.data)
    return bundle


def _prepare(config: RunConfig, folder: Path, device: str, opened: ExitStack) -> None:
    """Lock the run folder; train the tokenizer, pack the corpora and prepare the objective unless that is done.

    A teacher computes its logits on `device`.
    """
    _check_tokenizer(config)  # before the lock, which creates the folder
    _warn_about_vision(config)
    opened.enter_context(folder_lock(folder / "data"))
    _check_same_run(config, folder)
    tokenizer, template = _tokenizer(config, folder)
    config.trainer.objective.check_inputs()
    for corpus in config.corpora_read:
        pack_corpus(corpus, folder / "data" / corpus.name, tokenizer, template)
        _warn_about_languages(config, corpus.name, folder)
    with atomic_file(folder / "run.json", "w") as file:
        file.write(dump(config))
    trainer = located(config.trainer, folder)
    trainer.objective.prepare(trainer, device)


def _sampler(config: RunConfig, trainer: TrainerConfig, folder: Path) -> Sampler:
    assert config.samples is not None
    tokenizer, template = _tokenizer(config, folder)
    evaluation = trainer.evaluation
    return config.samples.build(trainer.data if evaluation is None else evaluation.data, tokenizer, template)


def _warn_about_vision(config: RunConfig) -> None:
    """Print a warning if a vision encoder that an earlier stage trains starts from random weights."""
    needed = next((recipe.sees_with for recipe in RECIPES if recipe.name == config.recipe), None)
    if needed is not None and config.trainer.start == VisionStart():
        print(
            f"warning: the vision encoder starts from random weights; train {needed} first, or name its bundle with"
            " trainer.start.bundle",
            file=sys.stderr,
        )


def _warn_about_languages(config: RunConfig, name: str, folder: Path) -> None:
    """Print a warning if a source that is sampled by language has documents without one."""
    if not any(isinstance(source, LanguagesConfig) and source.name == name for source in config.trainer.data.sources):
        return
    counts: Counter[str] = Counter()
    for shard in read_manifest(folder / "data" / name).shards:
        counts.update(shard.languages)
    untagged = counts[""] + counts["und"]
    if untagged:
        print(
            f"warning: {untagged:,} of {counts.total():,} documents of '{name}' have no language and are sampled as one; tag"
            " them with a 'language' in JSONL, in the data description, or in the name of the file or folder (de.txt, de/)",
            file=sys.stderr,
        )


def _finish(config: RunConfig, trainer: TrainerConfig, folder: Path, name: str, result: TrainingResult) -> RunResult:
    from openafm.training.run import load_trained

    bundle = write_trained(config, trainer, folder, name, load_trained(folder), result)
    return _result(bundle, folder, result, _draft_report(config, bundle))


def _check_same_run(config: RunConfig, folder: Path) -> None:
    """Refuse another config before anything in the folder is changed."""
    from openafm.training.checkpoints.record import AnotherRunError

    if not (folder / "run.json").is_file() or not (folder / "checkpoints").is_dir():
        return
    found = read_run(folder)
    difference = first_difference(found, config, ignored=("trainer", *config.NEUTRAL)) or resume_difference(
        found.trainer, config.trainer
    )
    if difference is not None:
        raise AnotherRunError(f"{folder} holds a run of another config: {difference}; choose another --output or remove it")


def _check_tokenizer(config: RunConfig) -> None:
    """Check that the run has a tokenizer: the start bundle's, a file's, or one to train.

    Raises:
        StartBundleError: it has none, because the recipe needs a start bundle.
    """
    if config.start is not None or config.tokenizer_file is not None or config.tokenizer is not None:
        return
    needed = next((recipe.starts_from for recipe in RECIPES if recipe.name == config.recipe), None)
    of_recipe = f" of {needed}" if needed else ""
    before = f", or train {needed} first" if needed else ""
    raise StartBundleError(f"{config.recipe} starts from a bundle{of_recipe}: name one with --from BUNDLE{before}")


def _tokenizer(config: RunConfig, folder: Path) -> tuple[Tokenizer, BaseChatTemplate]:
    """Return the start bundle's tokenizer, the given file's, the one in the run folder, or one trained on the corpora."""
    given = None if config.tokenizer_file is None else Tokenizer.load(Path(config.tokenizer_file))
    if config.start is not None:
        bundle = open_bundle(config.start)
        if given is not None and given.digest != bundle.tokenizer.digest:
            raise StartBundleError(
                f"{bundle.name} has another tokenizer than {config.tokenizer_file}; leave that out, or pre-train with it"
            )
        return bundle.tokenizer, bundle.template
    if given is not None:
        return given, ChatTemplate()
    assert config.tokenizer is not None, "checked by _check_tokenizer"
    file = folder / "tokenizer.json"
    if file.is_file() and (tokenizer := Tokenizer.load(file)).vocab_size == config.tokenizer.vocab_size:
        return tokenizer, ChatTemplate()
    texts = itertools.chain.from_iterable(corpus.texts() for corpus in config.corpora)
    tokenizer = train_tokenizer(config.tokenizer, itertools.islice(texts, 4 * TOKENIZER_EXAMPLES))
    tokenizer.save(file)
    return tokenizer, ChatTemplate()


def located(trainer: TrainerConfig, folder: Path) -> TrainerConfig:
    """Return the same run with all relative paths resolved against the run folder."""
    if trainer.evaluation is not None:
        data = _located_loader(trainer.evaluation.data, folder)
        trainer = replace(trainer, evaluation=replace(trainer.evaluation, data=data))
    return replace(trainer, data=_located_loader(trainer.data, folder), objective=trainer.objective.located(folder))


def _located_loader(loader: LoaderConfig, folder: Path) -> LoaderConfig:
    sources = tuple(replace(source, path=_located_data(folder / "data", source.path)) for source in loader.sources)
    return replace(loader, sources=sources)


def _located_data(data: Path, source: str) -> str:
    """Return the folder of a source, or its address if its entry in the run folder is a link to object storage."""
    name, _, rest = source.partition("/")
    address = address_of(data / name)
    return str((data / source).resolve()) if address is None else f"{address}/{rest}".rstrip("/")


def _draft_report(config: RunConfig, bundle: Bundle) -> DraftReport | None:
    """Return the measurements of a draft model; None for other models."""
    target = config.trainer.objective.draft_target()
    if target is None:
        return None
    conversations = held_out_conversations(config, DRAFTED_CONVERSATIONS)
    return measure_draft(bundle, target.bundle, conversations, target.adapter)


def _result(bundle: Bundle, folder: Path, result: TrainingResult, report: DraftReport | None) -> RunResult:
    from openafm.training.observability.metrics import read_metrics
    from openafm.training.run import LAST_STEPS

    lines = read_metrics(folder)
    losses = [line["loss"] for line in lines if "loss" in line]
    entropies = [line["cross_entropy"] for line in lines if "cross_entropy" in line]
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
        starts=result.goodput.starts,
        cross_entropy_last=statistics.fmean(entropies[-LAST_STEPS:]) if entropies else None,
        acceptance=None if report is None else report.acceptance,
        target_passes_per_token=None if report is None else report.target_passes_per_token,
        plain_passes_per_token=None if report is None else report.plain_passes_per_token,
    )
