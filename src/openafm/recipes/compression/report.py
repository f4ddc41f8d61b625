"""Compare bundles on the same held-out examples: size, loss, scores, retention (report 6, Table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openafm.bundle import Bundle, open_bundle
from openafm.bundle.describe import stored_bits
from openafm.core.config import to_dict
from openafm.core.errors import UsageError
from openafm.core.progress import progress
from openafm.data.synthetic import SyntheticConfig
from openafm.evaluation.harness.statistics import Difference
from openafm.evaluation.held_out import TASKS, HeldOutScores, held_out_scores
from openafm.models.accounting import kv_bytes
from openafm.recipes.compression.compress import weight_bytes
from openafm.recipes.compression.formats import corpus_batches
from openafm.recipes.sources.data_config import DataConfig
from openafm.recipes.sources.own_data import data_of, sample_batches

LOSS_EXAMPLES = 4
"""Conversations in the loss per scored example of a task."""
ROW_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Scores divided by those of the first uncompressed bundle, the reference.

    `tasks` omits those in which the reference scores 0. `mean` is over the tasks in `well_above`, in which the reference is
    well above the baselines; None without such a task.
    """

    reference: str
    tasks: dict[str, float]
    well_above: tuple[str, ...]

    @property
    def mean(self) -> float | None:
        kept = [self.tasks[task] for task in self.well_above]
        return sum(kept) / len(kept) if kept else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "reference": self.reference,
            "mean": self.mean,
            "tasks": self.tasks,
            "well_above_baselines": list(self.well_above),
        }


@dataclass(frozen=True, kw_only=True)
class BundleReport:
    """The measurements of a bundle. `loss` is in nats per answer token; compare it between equal tokenizers only.

    `change` is the difference of each task's score to that of the uncompressed bundle, on the same examples.
    """

    bundle: Bundle
    loss: float
    scores: HeldOutScores
    retention: Retention | None = None
    change: Mapping[str, Difference | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        bundle, bits = self.bundle, stored_bits(self.bundle)
        return {
            "name": bundle.name,
            "path": str(bundle.path),
            "signature": bundle.signature,
            "numerics": to_dict(bundle.numerics),
            "bits_per_weight": bits.total,
            "adapter_bits_per_weight": bits.adapter,
            "bytes": weight_bytes(bundle),
            "loss": self.loss,
            **self.scores.to_dict(),
            "kv_bytes_per_token": kv_bytes(bundle.config, bundle.numerics.kv, num_tokens=1),
            "kv_bytes_at_4096": kv_bytes(bundle.config, bundle.numerics.kv, num_tokens=4096),
            "retention": None if self.retention is None else self.retention.to_dict(),
            "change": {name: None if change is None else change.to_dict() for name, change in self.change.items()},
        }


@dataclass(frozen=True, kw_only=True)
class CompressionReport:
    """The measurements of bundles on `num_examples` examples of every task."""

    num_examples: int
    bundles: tuple[BundleReport, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"num_examples": self.num_examples, "bundles": [report.to_dict() for report in self.bundles]}


def compression_report(names: Sequence[str | Path], num_examples: int = 50) -> CompressionReport:
    """Measure bundles, given by name or path, on the same examples and in the numerics that each declares.

    Raises:
        UsageError: no bundles or no examples.
        BundleNotFoundError, BundleError: a bundle is missing or damaged; raised before anything is measured.
    """
    from openafm.framework.backends.system_model import SystemLanguageModel

    bundles = [open_bundle(name) for name in names]
    if not bundles:
        raise UsageError("a report needs at least one bundle, by name or path")
    if num_examples < 1:
        raise UsageError(f"a report needs at least one example of each task, got {num_examples}")
    for bundle in bundles:
        bundle.verify()
    data = data_of(bundles[0])
    measured = []
    for bundle in bundles:
        loss = held_out_loss(bundle, LOSS_EXAMPLES * num_examples, data)
        with progress(f"score {bundle.name}", len(TASKS) * num_examples) as bar:
            model = SystemLanguageModel(bundle=bundle.path)
            scores = held_out_scores(model, num_examples=num_examples, on_each=bar.update)
        measured.append(BundleReport(bundle=bundle, loss=loss, scores=scores))
    return CompressionReport(num_examples=num_examples, bundles=with_retention(measured))


def with_retention(measured: Sequence[BundleReport]) -> tuple[BundleReport, ...]:
    """Return the reports with retention, if one of the bundles is uncompressed."""
    reference = next((report for report in measured if not report.bundle.numerics.is_compressed), None)
    if reference is None:
        return tuple(measured)
    return tuple(
        replace(report, retention=_retention(report, reference), change=_change(report, reference)) for report in measured
    )


def held_out_loss(bundle: Bundle, num_examples: int, data: DataConfig | None = None) -> float:
    """Return the mean cross entropy, in nats, of the target tokens in held-out rows of `data` or of the built-in corpus."""
    import torch

    from openafm.bundle.decoder import load_decoder
    from openafm.training.objectives.base import NextToken

    if data is None:
        batches = corpus_batches(bundle, SyntheticConfig(split="held_out"), num_examples, ROW_TOKENS)
    else:
        batches = sample_batches(bundle, data, num_examples, ROW_TOKENS, held_out=True)
    decoder = load_decoder(bundle, adapter=bundle.recovery_adapter)
    objective, total, count = NextToken(), 0.0, 0
    with progress(f"loss of {bundle.name}", len(batches)) as bar, torch.no_grad():
        for done, batch in enumerate(batches, start=1):
            losses = objective(decoder, batch)
            total, count = total + losses.total.item(), count + losses.count
            bar.update(done)
    return total / count


def _change(report: BundleReport, reference: BundleReport) -> dict[str, Difference | None]:
    if report is reference:
        return {}
    return {name: task.change_from(reference.scores.tasks[name]) for name, task in report.scores.tasks.items()}


def _retention(report: BundleReport, reference: BundleReport) -> Retention:
    full = reference.scores.tasks
    return Retention(
        reference=reference.bundle.name,
        tasks={name: task.score / full[name].score for name, task in report.scores.tasks.items() if full[name].score > 0},
        well_above=tuple(name for name, task in full.items() if task.is_well_above_baselines),
    )
