"""The vision recipes end to end at a tiny budget: towers, a text model with their encoder, and its fine-tuning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openafm.bundle import open_bundle
from openafm.models.vision.multimodal_config import ClipConfig, MultimodalConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.training.config import VisionStart

pytest.importorskip("PIL")
FEW = {"trainer.budget.num_tokens": "3000", "trainer.evaluation.every_steps": "1000"}


def few_drawings(recipe: str) -> dict[str, str]:
    """Return changes that draw three charts for each corpus."""
    corpora = prepare_run(recipe, "micro").corpora
    return {f"corpora.{c.name}.drawing.count": "3" for c in corpora if hasattr(c, "drawing")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))


def trained(recipe: str, folder: Path, changes: dict[str, str]) -> str:
    name = f"{recipe}-micro"
    result = run_recipe(prepare_run(recipe, "micro", changes=changes | few_drawings(recipe)), folder / recipe, name)
    assert result.held_out_loss is not None
    return name


@pytest.mark.slow
def test_stages_build_on_each_other(tmp_path: Path) -> None:
    small = {"tokenizer.vocab_size": "400", "trainer.model.vocab_size": "400"}
    clip = open_bundle(trained("vision.clip", tmp_path, FEW | small))
    assert isinstance(clip.config, ClipConfig)

    copies = {"trainer.budget.num_steps": "1", "corpora.copies.num_examples": "20", "corpora.built_in.num_examples": "50"}
    run_recipe(prepare_run("on_device.pretrain", "micro", changes=small | copies), tmp_path / "text", "on_device.sft-micro")
    text = {"corpora.text.num_examples": "20"}
    unmoved = FEW | text | {"trainer.optimizer.learning_rate": "1e-12", "trainer.optimizer.weight_decay": "0"}
    config = prepare_run("on_device.multimodal", "micro")
    assert isinstance(config.trainer.model, MultimodalConfig)
    assert config.trainer.start == VisionStart(bundle=str(clip.path), identity=clip.identity)
    adapted = open_bundle(trained("on_device.multimodal", tmp_path, unmoved))
    before, after = clip.tensors(), adapted.tensors()
    encoder = [name for name in after if name.startswith("vision.")]
    assert encoder
    for name in encoder:
        np.testing.assert_allclose(after[name], before[name], atol=1e-6, err_msg=name)
    decoder = open_bundle("on_device.sft-micro").tensors()
    for name in decoder:
        np.testing.assert_allclose(after[name], decoder[name], atol=1e-6, err_msg=name)

    tuned = open_bundle(trained("on_device.multimodal_sft", tmp_path, FEW | text))
    assert tuned.config == adapted.config
