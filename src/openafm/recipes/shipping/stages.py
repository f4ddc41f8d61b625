"""The training stages of the shipped model, and what their run folders record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openafm.bundle import Bundle, open_bundle
from openafm.core.config import override, to_dict
from openafm.core.errors import UsageError
from openafm.core.files import data_home
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import NoRunError, read_run, run_recipe
from openafm.recipes.shipping.card import Stage

SIZE = "nano"
NATURAL_KEY = "corpora.built_in.synthetic.natural"
STAGES = ("on_device.pretrain", "on_device.sft", "on_device.qat", "on_device.recovery_adapter")


@dataclass(frozen=True, kw_only=True)
class TrainedStages:
    """The bundles before compression, after it and with the recovery adapter, and the run folders in order.

    `former` are the stages of the shipped model whose decoded weights (`openafm compress decode`) start these runs.
    """

    uncompressed: Bundle
    compressed: Bundle
    recovered: Bundle | None
    runs: tuple[Path, ...]
    former: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        if self.uncompressed.config != self.compressed.config:
            raise UsageError(f"{self.compressed.path} was not compressed from {self.uncompressed.path}")
        if not self.compressed.numerics.is_compressed:
            raise UsageError(f"{self.compressed.path} is not compressed; pass the bundle of on_device.qat")
        if self.recovered is None:
            return
        if self.recovered.recovery_adapter is None:
            raise UsageError(f"{self.recovered.path} has no recovery adapter; leave it out with --without-adapter")
        if self.recovered.signature != self.compressed.signature:
            raise UsageError(
                f"{self.recovered.path} has an adapter for {self.recovered.signature}, and {self.compressed.path} is "
                f"{self.compressed.signature}; train an adapter for it or leave it out with --without-adapter"
            )

    @property
    def best(self) -> Bundle:
        """Return the bundle to ship."""
        return self.recovered or self.compressed


def train_all(with_adapter: bool, natural: Path | None = None) -> TrainedStages:
    """Run the stages, each from the bundle of the one before. Finished stages are skipped. Errors as `run_recipe`.

    `natural` is the folder of requests that people wrote; without it the model is trained on the built-in corpus alone.
    """
    changes = {} if natural is None else {NATURAL_KEY: str(natural.resolve())}
    bundles: list[Bundle] = []
    runs: list[Path] = []
    for recipe in STAGES if with_adapter else STAGES[:-1]:
        stage = recipe.removeprefix("on_device.")
        config = prepare_run(recipe, SIZE, start=str(bundles[-1].path) if bundles else None, changes=changes)
        runs.append(data_home() / "runs" / "ship" / stage)
        bundles.append(open_bundle(run_recipe(config, runs[-1], f"{SIZE}-{stage}").bundle))
    _, uncompressed, compressed, *recovered = bundles
    return TrainedStages(
        uncompressed=uncompressed,
        compressed=compressed,
        recovered=recovered[0] if recovered else None,
        runs=tuple(runs),
    )


def open_trained(
    bundles: Sequence[str], runs: Sequence[Path], with_adapter: bool, former: Path | None = None
) -> TrainedStages:
    """Return the stages from existing bundles: before compression, after it and, `with_adapter`, with the adapter.

    `former` is the results file of the shipped model that the runs continue; they then need no pre-training.

    Raises:
        UsageError: too few or too many bundles or runs, or they do not belong together.
        BundleNotFoundError, BundleError: a bundle cannot be opened.
    """
    expected = 3 if with_adapter else 2
    if len(bundles) != expected or len(runs) < expected + (former is None):
        raise UsageError(
            f"expected {expected} bundles (SFT QAT{' RECOVERED' * with_adapter}) and the {expected + 1} or more run folders "
            f"of all stages with --runs, got {len(bundles)} and {len(runs)}"
        )
    uncompressed, compressed, *recovered = map(open_bundle, bundles)
    return TrainedStages(
        uncompressed=uncompressed,
        compressed=compressed,
        recovered=recovered[0] if recovered else None,
        runs=tuple(runs),
        former=() if former is None else _former_stages(former),
    )


def _former_stages(results: Path) -> tuple[Stage, ...]:
    """Return all stages of a results file, those of its own former model first."""
    try:
        values = json.loads(results.read_text(encoding="utf-8"))
        found = [*values.get("former", ()), *values["stages"]]
        return tuple(Stage(**(stage | {"data": tuple(stage["data"])})) for stage in found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{results} is not the results file of a shipped model: {error}") from error


def read_stage(run: Path) -> Stage:
    """Return what a run folder records of a stage.

    Raises:
        UsageError: the folder holds no run of a recipe with a checkpoint.
    """
    from openafm.training.checkpoints.checkpoint import open_checkpoint
    from openafm.training.checkpoints.folder import checkpoint_paths
    from openafm.training.checkpoints.record import CheckpointError
    from openafm.training.observability.metrics import read_metrics

    try:
        config = read_run(run)
        record = open_checkpoint(checkpoint_paths(run / "checkpoints")[0]).record
    except (NoRunError, OSError, ValueError, IndexError, CheckpointError) as error:
        raise UsageError(f"{run} is not the folder of a run with a checkpoint: {error}") from error
    lines = read_metrics(run)
    losses = [line["loss"] for line in lines if "loss" in line][-10:]
    held_out_losses = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    sources = {source.name for source in config.trainer.data.sources}
    return Stage(
        recipe=config.recipe,
        size=SIZE,
        steps=record.step,
        tokens=record.num_tokens,
        seconds=record.seconds,
        loss=sum(losses) / len(losses) if losses else None,
        held_out_loss=held_out_losses[-1] if held_out_losses else None,
        data=tuple(corpus.description for corpus in config.corpora if corpus.name in sources),
        changes=changes_from_recipe(config),
    )


def changes_from_recipe(config: RunConfig) -> dict[str, str]:
    """Return the differences from the recipe in the form of `--set`: dotted keys to JSON.

    The folder of natural requests is left out, since it is a path of one machine.
    """
    recipe = build_run(config.recipe, SIZE)
    if config.trainer.from_bundle is not None:  # these values come from the bundle
        trainer = replace(
            recipe.trainer,
            from_bundle=config.trainer.from_bundle,
            from_identity=config.trainer.from_identity,
            model=config.trainer.model,
        )
        recipe = replace(recipe, tokenizer=None, trainer=trainer)
    if any(corpus.name == "built_in" for corpus in config.corpora):
        config = override(config, {NATURAL_KEY: '""'})
    return {key: json.dumps(value, ensure_ascii=False) for key, value in _differences("", to_dict(config), to_dict(recipe))}


def _differences(key: str, found: Any, expected: Any) -> Iterator[tuple[str, Any]]:
    """Yield the smallest parts that differ and can be set: values, or whole configs of another type."""
    if found == expected:
        return
    values, others = _by_name(found), _by_name(expected)
    if values.keys() == others.keys() and values and values.get("type") == others.get("type"):
        for name in values:
            yield from _differences(f"{key}.{name}" if key else name, values[name], others[name])
    else:
        yield key, found


def _by_name(value: Any) -> dict[str, Any]:
    """Return the parts of a value that can be set: of an object, or of a list of objects that have names."""
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        return {each["name"]: each for each in value}
    return value if isinstance(value, dict) else {}
