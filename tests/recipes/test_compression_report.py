"""The comparison of bundles: equal examples, all bits counted, retention against the uncompressed bundle."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_sources import QUICK, write_source

from openafm.adapters.config import LoRAConfig
from openafm.bundle import Bundle, BundleNotFoundError, RecoveryAdapter, bundle_place, open_bundle, write_bundle
from openafm.bundle.describe import describe_bundle
from openafm.core.errors import UsageError
from openafm.evaluation.held_out import TASKS, HeldOutScores, TaskScore
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import compression_config
from openafm.recipes.compression.report import (
    BundleReport,
    compression_report,
    held_out_loss,
    with_retention,
)

pytestmark = pytest.mark.xdist_group("compression_report")

KEYS = {
    "name",
    "path",
    "signature",
    "numerics",
    "bits_per_weight",
    "adapter_bits_per_weight",
    "bytes",
    "loss",
    "exact_match",
    "tasks",
    "kv_bytes_per_token",
    "kv_bytes_at_4096",
    "retention",
    "change",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def bundles(home: Path) -> list[Bundle]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAFM_HOME", str(home))
        source = write_source(bundle_place("tiny"), context_length=2048)
        compress(source, compression_config("int2"), "tiny-int2")
        compress(source, compression_config("astc", QUICK), "tiny-astc")
        return [source, open_bundle("tiny-int2"), open_bundle("tiny-astc")]


@pytest.fixture(autouse=True)
def short_answers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the module's data home, and cut the answers of untrained models."""
    monkeypatch.setenv("OPENAFM_HOME", str(home))
    for module in ("events", "held_out", "calculator", "tool_requests"):
        monkeypatch.setattr(f"openafm.evaluation.{module}.MAX_TOKENS", 4)


def scores(**by_task: tuple[float, float]) -> HeldOutScores:
    """Return held-out scores from (score, best baseline) by task."""
    return HeldOutScores(
        tasks={
            name: TaskScore(
                score=score,
                metric="exact",
                num_examples=4,
                languages={"en": score},
                baselines={"constant": baseline},
                values=(score,) * 4,
            )
            for name, (score, baseline) in by_task.items()
        }
    )


@pytest.mark.long
def test_a_report_on_an_uncompressed_and_two_compressed_bundles(bundles: list[Bundle]) -> None:
    report = compression_report(["tiny", bundles[1].path, "tiny-astc"], num_examples=1).to_dict()
    assert report["num_examples"] == 1
    plain, int2, astc = rows = report["bundles"]
    for row, bundle in zip(rows, bundles, strict=True):
        described = describe_bundle(bundle)
        assert row.keys() == KEYS
        assert (row["name"], row["path"], row["signature"]) == (bundle.name, str(bundle.path), bundle.signature)
        assert row["bits_per_weight"] == described.bits_per_weight
        assert (row["kv_bytes_per_token"], row["kv_bytes_at_4096"]) == (
            described.kv_bytes_per_token,
            described.kv_bytes_at_4096,
        )
        assert row["tasks"].keys() == set(TASKS)
        assert row["retention"]["reference"] == "tiny"
        assert math.isfinite(row["loss"])
    assert plain["bits_per_weight"] == 32 > astc["bits_per_weight"] > int2["bits_per_weight"]
    assert plain["bytes"] > astc["bytes"] > int2["bytes"]
    assert astc["adapter_bits_per_weight"] > 0 == int2["adapter_bits_per_weight"]
    assert int2["numerics"]["weights"] == "int2_balanced"
    assert len({row["loss"] for row in rows}) == 3
    assert set(plain["retention"]["tasks"].values()) <= {1.0}


def test_retention_is_relative_to_the_first_uncompressed_bundle(
    bundles: list[Bundle],
) -> None:
    plain, int2, astc = bundles
    measured = [
        BundleReport(bundle=int2, loss=2.0, scores=scores(a=(0.4, 0.1), b=(0.5, 0.45), c=(0.1, 0), d=(0.3, 0.1))),
        BundleReport(bundle=plain, loss=1.0, scores=scores(a=(0.8, 0.1), b=(0.5, 0.45), c=(0, 0), d=(0.4, 0.1))),
        BundleReport(bundle=astc, loss=1.1, scores=scores(a=(0.8, 0.1), b=(0.4, 0.45), c=(0, 0), d=(0.6, 0.1))),
    ]
    retained = [report.retention for report in with_retention(measured)]
    assert all(r is not None and r.reference == "tiny" and r.well_above == ("a", "d") for r in retained)
    assert [r.tasks for r in retained if r] == [
        pytest.approx({"a": 0.5, "b": 1, "d": 0.75}),
        {"a": 1, "b": 1, "d": 1},
        pytest.approx({"a": 1, "b": 0.8, "d": 1.5}),
    ]
    assert [r.mean for r in retained if r] == pytest.approx([0.625, 1, 1.25])
    changes = [{name: c and round(c.mean, 6) for name, c in report.change.items()} for report in with_retention(measured)]
    assert changes == [{"a": -0.4, "b": 0, "c": 0.1, "d": -0.1}, {}, {"a": 0, "b": -0.1, "c": 0, "d": 0.2}]
    assert all(report.retention is None for report in with_retention([measured[0], measured[2]]))
    hopeless = replace(measured[1], scores=scores(a=(0.1, 0.1)))
    (alone,) = with_retention([hopeless])
    assert alone.retention is not None
    assert alone.retention.mean is None


def test_the_loss_includes_the_adapter(tmp_path: Path, bundles: list[Bundle]) -> None:
    plain = bundles[0]
    adapter = RecoveryAdapter(
        config=LoRAConfig(rank=1, targets=("query",)),
        weights={
            f"layers.{layer}.attention.query.lora.{part}": np.ones((1, 32) if part == "a" else (32, 1), np.float32)
            for layer in range(3)
            for part in "ab"
        },
    )
    adapted = write_bundle(
        tmp_path / "adapted",
        config=plain.config,
        tokenizer=plain.tokenizer,
        template=plain.template,
        tensors=plain.tensors(),
        recovery=adapter,
    )
    assert adapted.signature == plain.signature
    assert held_out_loss(adapted, 4) != held_out_loss(plain, 4)
    assert held_out_loss(plain, 4) == held_out_loss(plain, 4)


def test_invalid_calls_fail_before_measuring(bundles: list[Bundle]) -> None:
    with pytest.raises(UsageError, match="at least one bundle"):
        compression_report([])
    with pytest.raises(UsageError, match="at least one example"):
        compression_report(["tiny"], num_examples=0)
    with pytest.raises(BundleNotFoundError, match="did you mean 'tiny-int2'"):
        compression_report(["tiny", "tiny-int"])
