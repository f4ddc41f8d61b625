"""Mixture ablation: the grid of weights, and short runs that share their data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_bundles import write_tiny_bundle

from openafm.cli.training.ablate import parse_weights
from openafm.core.errors import UsageError
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.recipes.ablation import AblationError, ablate_mixtures, grid
from openafm.recipes.prepare import prepare_run
from openafm.training.observability.metrics import read_metrics

LOADER = LoaderConfig(
    sources=(
        SourceConfig(name="english", path="english", weight=0.25),
        SourceConfig(name="others", path="others", weight=0.75),
    ),
    rows_per_step=2,
    row_tokens=64,
)


def test_the_grid_has_every_combination_and_zero_leaves_a_source_out() -> None:
    found = grid(LOADER, {"english": [1.0, 0.0], "others": [1.0, 3.0]})
    assert [[(each.name, each.weight) for each in loader.sources] for loader in found] == [
        [("english", 0.5), ("others", 0.5)],
        [("english", 0.25), ("others", 0.75)],
        [("others", 1.0)],
        [("others", 1.0)],
    ]
    assert [each.weight for each in grid(LOADER, {"english": [0.5]})[0].sources] == [0.4, 0.6]  # the other keeps 0.75


def test_wrong_weights_are_errors() -> None:
    with pytest.raises(AblationError, match="no source 'englsh'; did you mean 'english'"):
        grid(LOADER, {"englsh": [1.0]})
    with pytest.raises(AblationError, match="must be 0 or more"):
        grid(LOADER, {"english": [-1.0]})
    with pytest.raises(AblationError, match="a mixture without sources"):
        grid(LOADER, {"english": [0.0], "others": [0.0]})
    assert parse_weights(["a=1,2", "b=0"]) == {"a": [1.0, 2.0], "b": [0.0]}
    for texts in (["a"], ["a=x"], ["a=1", "a=2"]):
        with pytest.raises(UsageError, match="--weight"):
            parse_weights(texts)


@pytest.mark.slow
def test_mixtures_are_trained_from_one_bundle_and_compared(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "start")
    changes = {f"corpora.{name}.num_examples": "30" for name in ("english", "multilingual", "copies", "held_out")}
    changes["corpora.mixed.num_examples"] = "30"
    config = prepare_run("on_device.sft_multilingual", "micro", start=str(bundle.path), changes=changes)
    weights = {"english": [1.0, 0.0]}
    results = ablate_mixtures(config, weights, tmp_path / "ablation", num_steps=2, num_examples=2)
    assert "english" in results[0].shares
    assert "english" not in results[1].shares
    assert results[0].held_out.keys() == results[1].held_out.keys() >= {"task event", "held_out_loss"}
    assert results[0].held_out["task event"] != results[1].held_out["task event"]
    stored = json.loads((tmp_path / "ablation" / "ablation.json").read_text())
    assert stored["runs"][0]["held_out"] == results[0].held_out
    again = ablate_mixtures(config, weights, tmp_path / "ablation", num_steps=2, num_examples=2)
    assert again == results
    assert len(read_metrics(tmp_path / "ablation" / "runs" / "0")) >= 1
