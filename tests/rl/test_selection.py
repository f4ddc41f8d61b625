"""Prompt selection: neighborhoods keep their share, languages keep theirs, exact neighbors, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from reward_bundles import write_reward_bundle
from tiny_bundles import write_tiny_bundle

from openafm.cli.main import run
from openafm.core.config import ConfigError
from openafm.rl import selection
from openafm.rl.rewards.reward_model import LocalRewardModel, NotARewardModelError
from openafm.rl.selection import (
    PromptFeatures,
    SelectionConfig,
    SelectionError,
    nearest_neighbors,
    select_at_random,
    select_prompts,
)
from openafm.tokenizer.conversation import Conversation, UserTurn

PER_CLUSTER = 40


def clusters(num_clusters: int = 5, seed: int = 0) -> PromptFeatures:
    """Clusters of prompts whose cohesion differs more between clusters than inside one."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(num_clusters, 16)) * 5
    cluster = np.repeat(np.arange(num_clusters), PER_CLUSTER)
    cohesion = 0.15 * cluster[:, None] + rng.uniform(0, 0.1, (len(cluster), 2))
    return PromptFeatures(
        embeddings_PE=(centers[cluster] + rng.normal(size=(len(cluster), 16))).astype(np.float32),
        cohesion_P2=cohesion.astype(np.float32),
        languages=("en",) * len(cluster),
    )


def test_every_neighborhood_keeps_its_share_of_the_most_cohesive_prompts() -> None:
    features = clusters()
    found = select_prompts(features, SelectionConfig(share=0.25, num_neighbors=PER_CLUSTER))
    chosen = np.array(found.chosen)
    assert len(chosen) == 50
    assert np.bincount(chosen // PER_CLUSTER).tolist() == [10] * 5
    for cluster in range(5):
        members = np.arange(cluster * PER_CLUSTER, (cluster + 1) * PER_CLUSTER)
        best = members[np.argsort(-found.scores_P[members])[:10]]
        assert set(best) == set(chosen[chosen // PER_CLUSTER == cluster])


def test_languages_keep_their_share() -> None:
    features = clusters()
    languages = tuple("en" if index % 5 else "de" for index in range(len(features.languages)))
    mixed = PromptFeatures(embeddings_PE=features.embeddings_PE, cohesion_P2=features.cohesion_P2, languages=languages)
    chosen = select_prompts(mixed, SelectionConfig(share=0.5)).chosen
    assert [languages[index] for index in chosen].count("de") == 20
    random = select_at_random(languages, 0.5)
    assert [languages[index] for index in random].count("de") == 20
    assert len(chosen) == len(random) == 100


def test_neighbors_are_exact_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = clusters().embeddings_PE
    centered = embeddings - embeddings.mean(0)
    unit = centered / np.linalg.norm(centered, axis=1, keepdims=True)
    expected = np.argsort(-(unit @ unit.T), axis=1)[:, :7]
    monkeypatch.setattr(selection, "_BLOCK_ELEMENTS", 7 * len(embeddings))
    found = nearest_neighbors(embeddings, 7)
    assert [set(row) for row in found] == [set(row) for row in expected]
    assert nearest_neighbors(embeddings[:3], 7).shape == (3, 3)


def test_wrong_inputs_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    features = clusters()
    with pytest.raises(SelectionError, match="each prompt needs one of each"):
        PromptFeatures(embeddings_PE=features.embeddings_PE[:3], cohesion_P2=features.cohesion_P2, languages=("en",) * 3)
    with pytest.raises(SelectionError, match="not finite"):
        PromptFeatures(
            embeddings_PE=features.embeddings_PE * np.inf, cohesion_P2=features.cohesion_P2, languages=features.languages
        )
    for values in ({"share": 0.0}, {"num_neighbors": 1}, {"ranking_weight": 2.0}):
        with pytest.raises(ConfigError):
            SelectionConfig(**values)
    monkeypatch.setattr(selection, "MAX_EXACT", 10)
    with pytest.raises(SelectionError, match="200 prompts in 'en' are more than the 10"):
        select_prompts(features, SelectionConfig())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    return write_reward_bundle(folder / "selection", write_tiny_bundle(folder / "base"), has_cohesion=True).path


def prompts(path: Path, count: int) -> Path:
    lines = [
        {"messages": [{"role": "user", "content": f"the cat {number}"}], "kind": "chat", "language": "en"}
        for number in range(count)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_features_do_not_depend_on_the_other_prompts(model: Path) -> None:
    scorer = LocalRewardModel.open(model)
    chats = [Conversation(turns=(UserTurn(text=text),)) for text in ("the cat", "the dog sat on the mat", "no")]
    together, alone = scorer.prompt_features(chats), scorer.prompt_features(chats[1:2])
    np.testing.assert_allclose(together.embeddings_PE[1], alone.embeddings_PE[0], atol=1e-5)
    np.testing.assert_allclose(together.cohesion_P2[1], alone.cohesion_P2[0], atol=1e-5)


def test_the_command_writes_the_chosen_prompts(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    prompts(folder / "a.jsonl", 12)
    out = tmp_path / "selected.jsonl"
    assert (
        run(["rl", "select-prompts", str(folder), "--model", str(model), "--out", str(out), "--share", "0.25", "--json"])
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert (result["prompts"], result["chosen"]) == (12, 3)
    assert result["mean_cohesion_chosen"] >= result["mean_cohesion"]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(set(line) == {"messages", "kind", "truth", "language", "cohesion"} for line in lines)
    np.save(tmp_path / "other.npy", np.random.default_rng(0).normal(size=(11, 4)))
    arguments = ["rl", "select-prompts", str(folder), "--model", str(model), "--embeddings", str(tmp_path / "other.npy")]
    assert run(arguments) == 2
    assert "11 embeddings, 12 cohesion scores" in capsys.readouterr().err


def test_a_model_without_cohesion_heads_is_refused(tmp_path: Path) -> None:
    bundle = write_reward_bundle(tmp_path / "reward", write_tiny_bundle(tmp_path / "base"))
    with pytest.raises(NotARewardModelError, match=r"on_device\.selection_model"):
        LocalRewardModel(bundle).prompt_features([Conversation(turns=(UserTurn(text="x"),))])
