"""Golden dumps of every recipe show a changed default as a diff. `make golden` rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openafm.core.config import dump, from_dict, to_dict
from openafm.recipes.catalog import RECIPES, build_run
from openafm.recipes.config import RunConfig

GOLDEN = Path(__file__).parent / "golden"
RUNS = [(recipe.name, size) for recipe in RECIPES for size in recipe.sizes]


@pytest.mark.parametrize(("recipe", "size"), RUNS)
def test_recipe_equals_its_golden_dump(recipe: str, size: str) -> None:
    text = dump(build_run(recipe, size))
    file = GOLDEN / f"{recipe}-{size}.json"
    if os.environ.get("OPENAFM_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(("recipe", "size"), RUNS)
def test_recipe_round_trips_through_json(recipe: str, size: str) -> None:
    config = build_run(recipe, size)
    assert from_dict(RunConfig, to_dict(config)) == config


def test_no_golden_dump_without_a_recipe() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == {f"{recipe}-{size}" for recipe, size in RUNS}
