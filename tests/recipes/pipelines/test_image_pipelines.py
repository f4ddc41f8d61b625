"""Pipelines of image data: golden dumps, and pipelines from the user's code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openafm.core.config import dump, from_dict, to_dict
from openafm.data.pairs.config import PairsConfig
from openafm.recipes.config import UnknownRecipeError
from openafm.recipes.pipelines.images import IMAGE_PIPELINES, build_image_pipeline

GOLDEN = Path(__file__).parents[1] / "golden_pipelines"


@pytest.mark.parametrize("name", IMAGE_PIPELINES)
def test_pipeline_equals_its_golden_dump(name: str) -> None:
    config = build_image_pipeline(name)
    assert from_dict(PairsConfig, to_dict(config)) == config
    file = GOLDEN / f"{name}.json"
    if os.environ.get("OPENAFM_UPDATE_GOLDEN"):
        file.write_text(dump(config), encoding="utf-8")
    assert file.read_text(encoding="utf-8") == dump(config)


def test_a_pipeline_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from openafm.data.pairs.config import PairsConfig\n"
        "from openafm.recipes.pipelines.images import recipe\n"
        "def pairs_only() -> PairsConfig:\n    return replace(recipe(), recipe='', interleaved=None)\n"
    )
    config = build_image_pipeline(f"{file}:pairs_only")
    assert (config.recipe, config.interleaved, config.plugins) == ("mine.pairs_only", None, (str(file),))
    with pytest.raises(UnknownRecipeError, match="returns a PairsConfig"):
        build_image_pipeline(f"{file}:other")
    with pytest.raises(UnknownRecipeError, match=r"images\.recipe"):
        build_image_pipeline("image.recipe")
