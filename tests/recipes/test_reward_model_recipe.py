"""The recipe of reward models: simulated graders or the user's preferences, from a bundle to a bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_bundles import write_tiny_bundle

from openafm.bundle import Bundle, bundle_place, open_bundle
from openafm.core.config import ConfigError
from openafm.data.preferences import PreferenceError
from openafm.models.reward_config import RewardModelConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.recipes.sources.own_data import read_data
from openafm.recipes.sources.preferences import PreferencesCorpusConfig
from openafm.rl.rewards.reward_model import LocalRewardModel
from openafm.tokenizer.conversation import AssistantTurn, Conversation, UserTurn

QUICK = {
    "trainer.budget": '{"type": "StepBudget", "num_steps": 3}',
    "trainer.data.row_tokens": "500",
    "trainer.data.rows_per_step": "2",
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    return write_tiny_bundle(bundle_place("base"))


def preferences(path: Path, count: int) -> Path:
    lines = [
        {"prompt": f"the {i}", "chosen": "the cat", "rejected": "the dog", "grades": {"chosen": 5}} for i in range(count)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_own_preferences_train_a_bundle_that_gives_rewards(tmp_path: Path, base: Bundle) -> None:
    file = preferences(tmp_path / "preferences.jsonl", 40)
    config = prepare_run("on_device.reward_model", "micro", start="base", data=file, changes=QUICK)
    (corpus,) = config.corpora
    assert isinstance(corpus, PreferencesCorpusConfig)
    assert corpus.held_out == 0.1
    result = run_recipe(config, tmp_path / "run", "reward")
    assert result.held_out_loss is not None
    bundle = open_bundle("reward")
    assert isinstance(bundle.config, RewardModelConfig)
    chat = Conversation(turns=(UserTurn(text="the 1"), AssistantTurn(text="the cat")))
    assert len(LocalRewardModel(bundle).rewards([chat])) == 1
    again = prepare_run("on_device.reward_model", "micro", start="reward", data=file, changes=QUICK)  # trained further
    assert run_recipe(again, tmp_path / "further", "further").steps == 3


def test_simulated_graders_train_without_data(tmp_path: Path, base: Bundle) -> None:
    changes = QUICK | {"corpora.preferences.num_examples": "200", "corpora.preferences.graders.noise": "0.1"}
    config = prepare_run("on_device.selection_model", "micro", start="base", changes=changes)
    trained = run_recipe(config, tmp_path / "run", "selection")
    bundle = open_bundle("selection")
    assert trained.steps == 3
    assert isinstance(bundle.config, RewardModelConfig)
    assert bundle.config.has_cohesion
    card = (bundle.path / "card.md").read_text()
    assert "graders who prefer the worse answer in 10% of the pairs" in card


def test_data_that_is_no_preferences_is_refused(tmp_path: Path, base: Bundle) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    config = prepare_run("on_device.reward_model", "micro", start="base", data=file, changes=QUICK)
    with pytest.raises(PreferenceError, match=r"chats\.jsonl:1: a line needs 'chosen' and 'rejected'"):
        run_recipe(config, tmp_path / "run", "reward")
    data = replace(read_data(file), eval=str(file))
    with pytest.raises(ConfigError, match="remove 'eval'"):
        prepare_run("on_device.reward_model", "micro", start="base", data=data)
