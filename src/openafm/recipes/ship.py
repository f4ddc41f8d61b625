"""The model that comes with the package, from nothing: four recipes, scores, card, bundle.

    python -m openafm.recipes.ship    # hours on two cores; killed at any point, the same command goes on
    python -m openafm.recipes.ship --from-bundles SFT QAT RECOVERED --runs PRETRAIN SFT QAT RECOVERY

The second form trains nothing: it takes bundles that `openafm train` made, and their run folders for the card.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openafm.bundle import Bundle, RecoveryAdapter, open_bundle, write_bundle
from openafm.bundle.describe import describe_bundle, stored_bits
from openafm.bundle.store import SHIPPED_HOME, SHIPPED_NAME
from openafm.core.config import from_dict, to_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import data_home, write_json
from openafm.core.progress import progress
from openafm.evaluation import held_out
from openafm.evaluation.held_out import HeldOutScores, TaskScore
from openafm.framework.model import SystemLanguageModel
from openafm.recipes.card import describe_corpus
from openafm.recipes.config import RunConfig, build_run
from openafm.recipes.run import prepare_run, run_recipe
from openafm.recipes.shipped_card import ModelScores, ShippedResults, Stage, shipped_card

SIZE = "nano"
STAGES = ("on_device.pretrain", "on_device.sft", "on_device.qat", "on_device.recovery_adapter")
MAX_BYTES = 6_000_000
NUM_EXAMPLES = 320  # of each task


class ShippedSizeError(OpenAFMError):
    """The bundle is larger than what the package may carry."""


class ShippedPartsError(UsageError):
    """Bundles or run folders that are not the stages of one model."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the stages left: the model before compression, after it, with its adapter, and their run folders in order."""

    uncompressed: Bundle
    compressed: Bundle
    recovered: Bundle | None
    runs: tuple[Path, ...]

    def __post_init__(self) -> None:
        if self.uncompressed.config != self.compressed.config:
            raise ShippedPartsError(f"{self.compressed.path} is not what {self.uncompressed.path} was compressed to")
        if not self.compressed.numerics.is_compressed:
            raise ShippedPartsError(f"{self.compressed.path} is not compressed; give the bundle of on_device.qat")
        if self.recovered is None:
            return
        if self.recovered.recovery_adapter is None:
            raise ShippedPartsError(f"{self.recovered.path} carries no adapter; leave it out with --without-adapter")
        if self.recovered.signature != self.compressed.signature:
            raise ShippedPartsError(
                f"{self.recovered.path} carries an adapter for {self.recovered.signature}, and {self.compressed.path} is "
                f"{self.compressed.signature}; train one for it or leave it out with --without-adapter"
            )

    @property
    def best(self) -> Bundle:
        """The one that ships."""
        return self.recovered or self.compressed


def train_all(with_adapter: bool) -> Trained:
    """Carry out the stages, each from the bundle before it; what stands from an earlier call is reused.

    Raises:
        Whatever `run_recipe` raises.
    """
    bundles: list[Bundle] = []
    runs: list[Path] = []
    for recipe in STAGES if with_adapter else STAGES[:-1]:
        stage = recipe.removeprefix("on_device.")
        config = prepare_run(recipe, SIZE, start=str(bundles[-1].path) if bundles else None)
        runs.append(data_home() / "runs" / "ship" / stage)
        bundles.append(open_bundle(run_recipe(config, runs[-1], f"{SIZE}-{stage}").bundle))
    _, uncompressed, compressed, *recovered = bundles
    return Trained(
        uncompressed=uncompressed,
        compressed=compressed,
        recovered=recovered[0] if recovered else None,
        runs=tuple(runs),
    )


def open_trained(bundles: Sequence[str], runs: Sequence[Path], with_adapter: bool) -> Trained:
    """The stages from bundles that are trained already: before compression, after it and, with an adapter, that one.

    Raises:
        ShippedPartsError: too few or too many, or they do not belong together.
        BundleNotFoundError, BundleError: one of them cannot be opened.
    """
    expected = 3 if with_adapter else 2
    if len(bundles) != expected or len(runs) != expected + 1:
        raise ShippedPartsError(
            f"expected {expected} bundles (SFT QAT{' RECOVERED' * with_adapter}) and the {expected + 1} run folders of all "
            f"stages with --runs, got {len(bundles)} and {len(runs)}"
        )
    uncompressed, compressed, *recovered = map(open_bundle, bundles)
    return Trained(
        uncompressed=uncompressed,
        compressed=compressed,
        recovered=recovered[0] if recovered else None,
        runs=tuple(runs),
    )


def ship(trained: Trained, out: Path, results_file: Path, num_examples: int = NUM_EXAMPLES) -> ShippedResults:
    """Score the models and write the bundle with its card at `out` and the results as JSON.

    Raises:
        ShippedSizeError: more than `MAX_BYTES` in all; nothing was written.
        ShippedPartsError: a run folder is not one of the stages'.
        BundleError: `out` holds something else.
    """
    for bundle in (trained.uncompressed, trained.best):
        bundle.verify()
    with tempfile.TemporaryDirectory() as folder:
        draft = write_like(trained.best, Path(folder) / out.name)
        draft.card_file.unlink()
        files = _files(draft.path)
        check_size(files)
        results = ShippedResults(
            description=replace(describe_bundle(draft), path=None),
            uncompressed_bits_per_weight=stored_bits(trained.uncompressed).total,
            embedding_bytes=sum(t.data.nbytes for n, t in draft.stored_tensors.items() if n.split(".")[0] == "embedding"),
            files=files,
            stages=tuple(read_stage(run) for run in trained.runs),
            num_examples=num_examples,
            scores=score_models(trained, num_examples),
        )
    card = shipped_card(results)
    check_size(files | {"card.md": len(card.encode())})
    write_like(trained.best, out, card)
    write_json(results_file, results.to_dict())
    return results
