"""Short runs of the vision recipes on drawn images that several benchmarks share."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import Any, Literal

import torch
from shared.finished import Finished

from openafm.bundle import Bundle, open_bundle
from openafm.data.drawing.base import Split
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus
from openafm.data.drawing.generators import generator_config
from openafm.data.images.interleaving import interleave_corpus
from openafm.data.images.packing import ImagePackConfig, Learned
from openafm.data.images.shards import open_image_corpus
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.evaluation.image_text import ImageTextEncoder, zero_shot
from openafm.models.sizes import named_size
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.multimodal_config import ClipConfig, MultimodalConfig
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.run import run_recipe
from openafm.recipes.sources.corpora import CorpusConfig
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig, ImageCorpusConfig, InterleavedCorpusConfig
from openafm.recipes.sources.mixtures import sources
from openafm.recipes.vision.mixtures import RESOLUTIONS
from openafm.training.budgets import StepBudget
from openafm.training.config import PlainStart, VisionStart
from openafm.training.objectives.config import ContrastiveConfig

FEW_TOKENS = 500
"""Vocabulary of quick runs, whose texts are few."""
KINDS, FEW_KINDS = ("charts", "flyers", "scenes", "signs"), ("scenes", "signs")
"""Kinds of drawings of full and of quick runs."""
SCENES, SCENE_TOKENS = ("scenes",), 400
"""The kind whose captions a model distinguishes after minutes of training, and a vocabulary of its few words."""
PackedMode = Literal["drawn", "rapid", "balanced", "high"]


@contextmanager
def home() -> Iterator[Path]:
    """Yield a temporary folder, whose `home` gets the bundles of the runs in the block."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="openafm-") as name:
        os.environ["OPENAFM_HOME"] = str(Path(name) / "home")
        yield Path(name)


def draw(folder: Path, kinds: tuple[str, ...], count: int, split: Split) -> Path:
    """Return an image corpus of `count` English drawings of each kind."""
    generators = tuple(generator_config(kind) for kind in kinds)
    out = folder / f"{'-'.join(kinds)}-{split}"
    draw_corpus(DrawingConfig(generators=generators, languages=("en",), count=count, split=split), out)
    return out


def with_images(config: RunConfig, train: Path, held_out: Path) -> RunConfig:
    """Return a run that reads these image corpora instead of drawing its own."""

    def read(corpus: CorpusConfig) -> CorpusConfig:
        if not isinstance(corpus, DrawnCorpusConfig):
            return corpus
        path = held_out if corpus.name.startswith("held_out") else train
        if isinstance(corpus, InterleavedCorpusConfig):
            interleave_corpus(train, train.with_name(f"{train.name}-interleaved"))
            path = train.with_name(f"{train.name}-interleaved")
        return ImageCorpusConfig(name=corpus.name, path=str(path), packing=corpus.packing)

    return replace(config, corpora=tuple(map(read, config.corpora)))


def with_steps(config: RunConfig, steps: int, seed: int) -> RunConfig:
    """Return a run of this length with this seed."""
    return replace(config, trainer=replace(config.trainer, budget=StepBudget(num_steps=steps), seed=seed))


def with_vocabulary(config: RunConfig, size: int | None) -> RunConfig:
    """Return a run with fewer tokens, for few texts; None or a run that starts from a bundle keeps its own."""
    if size is None or config.tokenizer is None:
        return config
    trainer = replace(config.trainer, model=replace(config.trainer.model, vocab_size=size))
    return replace(config, tokenizer=replace(config.tokenizer, vocab_size=size), trainer=trainer)


def trained(config: RunConfig, folder: Path, name: str) -> Bundle:
    """Return the bundle of a run that is carried out in `folder`."""
    run_recipe(config, folder, name)
    return open_bundle(name)


def contrastive(
    vision: VisionConfig, objective: ContrastiveConfig, train: Path, held_out: Path, steps: int, seed: int
) -> RunConfig:
    """Return the run `vision.clip` at size micro with another encoder or objective; it is not evaluated on the way."""
    config = with_steps(with_images(build_run("vision.clip", "micro"), train, held_out), steps, seed)
    text = named_size("compact.micro")
    trainer = replace(config.trainer, model=ClipConfig.of(text, vision), objective=objective, evaluation=None)
    corpora = tuple(_at_side(corpus, vision.image_side) for corpus in config.corpora)
    return replace(config, trainer=trainer, corpora=corpora)


@dataclass(frozen=True, kw_only=True)
class ContrastiveRuns:
    """Contrastive runs on one drawn corpus in `folder`, scored on held-out drawings; `vocabulary` for `with_vocabulary`.

    Runs in `finished` are not repeated.
    """

    folder: Path
    kinds: tuple[str, ...] = KINDS
    count: int
    vocabulary: int | None = None
    finished: Finished = field(default_factory=Finished)

    @property
    def num_documents(self) -> int:
        return len(self.kinds) * self.count

    @cached_property
    def train(self) -> Path:
        return draw(self.folder, self.kinds, self.count, "train")

    @cached_property
    def held_out(self) -> Path:
        return draw(self.folder, self.kinds, max(20, self.count // 8), "held_out")

    def scores(self, vision: VisionConfig, objective: ContrastiveConfig, steps: int, seed: int, name: str) -> dict[str, Any]:
        """Return the zero-shot accuracy after a run in the folder `name`, and its steps."""

        def run() -> dict[str, Any]:
            bundle = trained(self._config(vision, objective, steps, seed), self.folder / name, name)
            found = zero_shot(ImageTextEncoder(bundle), open_image_corpus(self.held_out))
            return found.to_dict() | {"steps": steps}

        setting = (self.kinds, self.count, self.vocabulary, steps)
        result: dict[str, Any] = self.finished.result(name, setting, run)
        return result

    def rate(self, vision: VisionConfig, objective: ContrastiveConfig, name: str) -> float:
        """Return the pairs per CPU second, measured in the folder `name`."""

        def run() -> float:
            config = self._config(vision, objective, 1, 0)
            trained(config, self.folder / name, name)  # packs the data
            return pairs_per_cpu_second(config, self.folder / name, 2 if self.count < 1000 else 8)

        return float(self.finished.result(name, (self.kinds, self.count, self.vocabulary), run))

    def _config(self, vision: VisionConfig, objective: ContrastiveConfig, steps: int, seed: int) -> RunConfig:
        return with_vocabulary(contrastive(vision, objective, self.train, self.held_out, steps, seed), self.vocabulary)


def mean_accuracy(scores: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean zero-shot accuracy of runs in both directions."""
    return statistics.fmean((each["image_to_text"] + each["text_to_image"]) / 2 for each in scores)


def pairs_per_cpu_second(config: RunConfig, folder: Path, steps: int) -> float:
    """Return the pairs of images and texts whose gradients are computed in a CPU second, after the run was packed."""
    sources = tuple(
        SourceConfig(name=source.name, path=str(folder / "data" / source.name)) for source in config.trainer.data.sources
    )
    loader = LoaderConfig(
        sources=sources, rows_per_step=config.trainer.data.rows_per_step, row_tokens=config.trainer.data.row_tokens
    ).build()
    model, objective = config.trainer.model.build(), config.trainer.objective.build()
    num_pairs, seconds = 0, 0.0
    for step in range(steps + 1):
        batch = loader.batch(step)
        start = process_time()
        losses = objective(model, batch)
        losses.total.backward()
        if step:  # the first step warms up
            seconds += process_time() - start
            num_pairs += losses.count
        model.zero_grad()
    return num_pairs / seconds


def _at_side(corpus: CorpusConfig, side: int) -> CorpusConfig:
    if not isinstance(corpus, ImageCorpusConfig):
        return corpus
    packing = replace(corpus.packing, resolution=replace(corpus.packing.resolution, side=side))
    return replace(corpus, packing=packing)


def multimodal(
    size: str,
    train: Path,
    held_out: Path,
    *,
    learn: tuple[Learned, ...],
    mode: PackedMode,
    steps: int,
    seed: int,
    eyes: Bundle | None = None,
) -> RunConfig:
    """Return a run of a compact decoder with vision on image corpora: every source in one mode, or drawn.

    The encoder starts with the weights of `eyes`, everything else from scratch.
    """
    config = with_steps(build_run("vision.joint", size), steps, seed)
    resolution, model = RESOLUTIONS[size], config.trainer.model
    assert isinstance(model, MultimodalConfig)
    corpora = tuple(
        ImageCorpusConfig(
            name=name, path=str(path), packing=ImagePackConfig(source=name, learn=learn, resolution=resolution, mode=mode)
        )
        for name, path in (("images", train), ("held_out", held_out))
    )
    trainer = replace(
        config.trainer,
        model=replace(model, modes=tuple(map(resolution.mode, ("balanced", "high", "rapid")))),
        data=replace(config.trainer.data, sources=sources(images=1.0)),
        start=PlainStart() if eyes is None else VisionStart(bundle=str(eyes.path), identity=eyes.identity),
        evaluation=None,
    )
    return replace(config, corpora=corpora, trainer=trainer)
