"""Mixture ablation: short runs from one bundle over a grid of the weights of a recipe's sources (report 5.1).

folder/  data/ (packed once)  runs/NUMBER/  ablation.json  ablation.png

A repeated call continues: finished runs are read, an interrupted one resumes.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.bundle import open_bundle
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.core.files import write_json
from openafm.core.folder_lock import folder_lock
from openafm.data.loading.loader import LoaderConfig
from openafm.data.synthetic import SyntheticConfig
from openafm.recipes.compression.formats import corpus_batches
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.corpora import SyntheticCorpusConfig, pack_corpus
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig

if TYPE_CHECKING:
    from openafm.data.loading.batch import Batch
    from openafm.models.decoder import Decoder

_ROW_TOKENS = 1024


class AblationError(UsageError):
    """A source is unknown, a mixture is empty, or the run has no bundle to start from."""


@dataclass(frozen=True, kw_only=True)
class MixtureResult:
    """A short run: the shares of its sources, its training loss and its held-out losses in nats per token, by name.

    A name is a task of the built-in corpus, as in `task event`, or a source of the recipe's evaluation.
    """

    shares: dict[str, float]
    loss: float | None
    held_out: dict[str, float]

    @property
    def mean_held_out(self) -> float:
        """Return the mean of the held-out losses, each with the same weight."""
        return sum(self.held_out.values()) / len(self.held_out)


def ablate_mixtures(
    config: RunConfig, weights: Mapping[str, Sequence[float]], folder: Path, *, num_steps: int, num_examples: int = 40
) -> list[MixtureResult]:
    """Train each mixture of the grid for `num_steps` steps and return the results in the order of the grid.

    `weights` has the tried weights of sources; other sources keep theirs, and a weight of 0 leaves the source out. Held-out
    losses are means over `num_examples` examples of each task of the built-in corpora, and those of the recipe's evaluation.

    Raises:
        AblationError: a source is unknown, a mixture is empty, the run starts from no bundle, or nothing is held out.
        AnotherRunError: the folder holds an ablation of another config.
        Other errors of packing and training.
    """
    if config.trainer.from_bundle is None:
        raise AblationError(
            f"{config.recipe} starts from no bundle, so that runs differ in more than the mixture; use --from"
        )
    mixtures = grid(config.trainer.data, weights)
    bundle = open_bundle(config.trainer.from_bundle)
    tasks = _tasks(config)
    if not tasks and config.trainer.evaluation is None:
        raise AblationError("nothing is held out: the recipe has no evaluation and no built-in corpus; name one with --eval")
    with folder_lock(folder):
        for corpus in config.corpora_read:
            pack_corpus(corpus, folder / "data" / corpus.name, bundle.tokenizer, bundle.template)
        held_out = {f"task {name}": corpus_batches(bundle, task, num_examples, _ROW_TOKENS) for name, task in tasks.items()}
        results = [
            _run(_trainer(config.trainer, mixture, folder, num_steps), folder / "runs" / str(number), held_out)
            for number, mixture in enumerate(mixtures)
        ]
        write_json(
            folder / "ablation.json", {"recipe": config.recipe, "steps": num_steps, "runs": list(map(asdict, results))}
        )
        _draw(results, folder)
    return results


def grid(loader: LoaderConfig, weights: Mapping[str, Sequence[float]]) -> list[LoaderConfig]:
    """Return the loader with each combination of the weights, divided by their sum.

    Raises:
        AblationError: a source is unknown, has no weights, or a mixture is empty.
    """
    names = [source.name for source in loader.sources]
    for name, tried in weights.items():
        if name not in names:
            raise AblationError(f"the recipe has no source '{name}'{nearest(name, names)}")
        if not tried or min(tried) < 0:
            raise AblationError(f"weights of '{name}' must be 0 or more, got {list(tried)}")
    loaders = []
    for chosen in itertools.product(*weights.values()):
        changed = dict(zip(weights, chosen, strict=True))
        shares = {source.name: changed.get(source.name, source.weight) for source in loader.sources}
        total = sum(shares.values())
        if total == 0:
            raise AblationError(f"a mixture without sources: {changed}; give one of them a weight above 0")
        sources = tuple(replace(each, weight=shares[each.name] / total) for each in loader.sources if shares[each.name])
        loaders.append(replace(loader, sources=sources))
    return loaders


def _tasks(config: RunConfig) -> dict[str, SyntheticConfig]:
    """Return held-out examples of each task of the built-in corpora, in the languages of all of them."""
    corpora = [corpus.synthetic for corpus in config.corpora_read if isinstance(corpus, SyntheticCorpusConfig)]
    names = sorted({task for corpus in corpora for task, weight in corpus.tasks.items() if weight > 0})
    languages = {language: 1.0 for corpus in corpora for language, weight in corpus.languages.items() if weight > 0}
    return {name: SyntheticConfig(split="held_out", tasks={name: 1.0}, languages=languages) for name in names}


def _trainer(trainer: TrainerConfig, mixture: LoaderConfig, folder: Path, num_steps: int) -> TrainerConfig:
    """Return the short run of a mixture on the packed data of `folder`."""
    evaluation = trainer.evaluation
    if evaluation is not None:
        evaluation = replace(evaluation, data=_located(evaluation.data, folder), every_steps=num_steps)
    data = _located(mixture, folder)
    return replace(trainer, data=data, evaluation=evaluation, budget=StepBudget(num_steps=num_steps))


def _located(loader: LoaderConfig, folder: Path) -> LoaderConfig:
    data = folder.resolve() / "data"
    return replace(loader, sources=tuple(replace(each, path=str(data / each.path)) for each in loader.sources))


def _run(trainer: TrainerConfig, folder: Path, held_out: Mapping[str, Sequence[Batch]]) -> MixtureResult:
    from openafm.training.observability.metrics import read_metrics
    from openafm.training.run import load_trained, train

    result = train(trainer, folder)
    model = load_trained(folder)
    losses = {name: _mean_loss(model, batches) for name, batches in held_out.items()}
    evaluated = [line for line in read_metrics(folder) if "held_out_loss" in line]
    if evaluated:
        losses |= {key: value for key, value in evaluated[-1].items() if key.startswith("held_out_loss")}
    shares = {source.name: round(source.weight, 4) for source in trainer.data.sources}
    return MixtureResult(shares=shares, loss=result.loss, held_out=losses)


def _mean_loss(model: Decoder, batches: Sequence[Batch]) -> float:
    import torch

    from openafm.training.objectives.base import NextToken

    objective, total, count = NextToken(), 0.0, 0
    with torch.no_grad():
        for batch in batches:
            losses = objective(model, batch)
            total, count = total + losses.total.item(), count + losses.count
    return total / count


def _draw(results: Sequence[MixtureResult], folder: Path) -> None:
    """Plot the held-out losses of the mixtures into `ablation.png`, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes: Any = figure.subplots()
    labels = [mixture_name(result.shares) for result in results]
    for name in results[0].held_out:
        axes.plot(labels, [result.held_out[name] for result in results], marker="o", linewidth=1.2, label=name)
    axes.set(ylabel="held-out loss (nats per token)", xlabel="shares of the sources")
    axes.tick_params(axis="x", labelrotation=30)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "ablation.png", dpi=120)


def mixture_name(shares: Mapping[str, float]) -> str:
    """Return shares as text, as in `english 80%, multilingual 20%`."""
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
