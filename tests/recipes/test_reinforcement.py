"""Reinforcement-learning recipes: golden dumps, and the choice of the start bundle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_bundles import write_tiny_bundle
from tiny_policies import tiny_policy_run, write_prompts

from openafm.bundle.store import bundle_place
from openafm.core.config import dump, from_dict, to_dict
from openafm.recipes.config import UnknownRecipeError
from openafm.recipes.reinforcement import RL_RECIPES, NoSamplesError, build_rl_run, prepare_rl_run, run_rl_recipe
from openafm.recipes.run import StartBundleError
from openafm.rl.config import RLConfig

GOLDEN = Path(__file__).parent / "golden_rl"
RUNS = [(recipe.name, size) for recipe in RL_RECIPES for size in recipe.sizes]


@pytest.mark.parametrize(("recipe", "size"), RUNS)
def test_recipe_equals_its_golden_dump(recipe: str, size: str) -> None:
    config = build_rl_run(recipe, size)
    file = GOLDEN / f"{recipe}-{size}.json"
    if os.environ.get("OPENAFM_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(dump(config), encoding="utf-8")
    assert file.read_text(encoding="utf-8") == dump(config)
    assert from_dict(RLConfig, to_dict(config)) == config


def test_a_run_takes_the_model_of_its_start_bundle(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "start")
    config = prepare_rl_run("on_device.rlhf", "micro", start=str(bundle.path), lag=3, changes={"max_tokens": "20"})
    assert config.trainer.model == bundle.config
    assert config.trainer.from_identity == bundle.identity
    assert (config.lag, config.max_tokens, config.trainer.data.row_tokens) == (3, 20, 512)


def test_a_run_whose_samples_are_all_dropped_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    config = tiny_policy_run(tmp_path, num_steps=2)
    write_prompts(tmp_path / "prompts.jsonl", messages=[{"role": "user", "content": "the cat and the dog " * 300}])
    with pytest.raises(NoSamplesError, match=r"16 of 16 were dropped; no bundle .* 16 times: .*the context window 512"):
        run_rl_recipe(config, tmp_path / "run", "policy")
    assert not bundle_place("policy").exists()


def test_unknown_names_and_missing_bundles_are_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path))
    with pytest.raises(UnknownRecipeError, match=r"did you mean 'on_device\.rlhf'"):
        build_rl_run("on_device.rlhff")
    with pytest.raises(UnknownRecipeError, match="sizes: micro, nano"):
        build_rl_run("on_device.rlhf", "huge")
    with pytest.raises(StartBundleError, match="name one with --from BUNDLE"):
        prepare_rl_run("on_device.rlhf", "micro")
