"""Annotation projects as prompts of reinforcement learning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.annotation.environments.project import read_project, write_sample
from openafm.recipes.tool_environments import ProjectPromptsConfig
from openafm.tokenizer.conversation import ConversationError, Instructions


def test_the_reference_calls_reach_the_truth_and_nothing_else_does(tmp_path: Path) -> None:
    write_sample("shop", tmp_path / "shop")
    source = ProjectPromptsConfig(path=str(tmp_path / "shop")).build()
    scenarios = read_project(tmp_path / "shop").scenarios
    for number, scenario in enumerate(scenarios):
        prompt = source.prompt(number)
        assert isinstance(prompt.conversation.turns[0], Instructions)
        assert len(prompt.conversation.turns[0].tools) == 10
        environment = source.environment(prompt)
        assert environment is not None
        changes = environment.state != prompt.truth["state"]
        for call in scenario.calls:
            environment.call(call)
        assert environment.state == prompt.truth["state"]
        assert changes == (scenario.id not in ("zu-spaet", "lined"))
    assert source.prompt(len(scenarios)) == source.prompt(0)


def test_scenarios_that_differ_in_their_start_alone_have_their_own_environments(tmp_path: Path) -> None:
    write_sample("shop", tmp_path / "shop")
    first = read_project(tmp_path / "shop").scenarios[0].to_dict()
    lines = [first | {"id": "a"}, first | {"id": "b", "start": {"orders": []}}]
    (tmp_path / "shop" / "scenarios" / "service.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    source = ProjectPromptsConfig(path=str(tmp_path / "shop")).build()
    sizes = []
    for number in range(2):
        environment = source.environment(source.prompt(number))
        assert environment is not None
        orders = environment.state["orders"]
        assert isinstance(orders, list)
        sizes.append(len(orders))
    assert sizes[0] > 0 == sizes[1]


def test_a_project_without_reference_calls_is_refused(tmp_path: Path) -> None:
    write_sample("shop", tmp_path / "shop")
    (tmp_path / "shop" / "scenarios" / "service.jsonl").write_text('{"id": "a", "query": "Hello"}\n')
    with pytest.raises(ConversationError, match="no scenario with reference calls"):
        ProjectPromptsConfig(path=str(tmp_path / "shop")).build()


def test_the_digest_follows_the_files(tmp_path: Path) -> None:
    write_sample("shop", tmp_path / "shop")
    config = ProjectPromptsConfig(path=str(tmp_path / "shop"))
    before = config.digest
    (tmp_path / "shop" / "policy.md").write_text("Other.")
    assert config.digest != before
