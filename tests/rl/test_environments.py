"""Prompts of environments: a function of their number, with truths that the recipes' rewards score as right."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from openafm.core.config import ConfigError
from openafm.data.synthetic import SyntheticConfig
from openafm.rl.environments.corpus import CorpusPromptsConfig
from openafm.rl.environments.texts import CopyEditConfig, FormatConfig
from openafm.rl.prompt_sources import PromptMixtureConfig, PromptSourceConfig
from openafm.rl.prompts import RLPrompt
from openafm.rl.rewards.exact import ExactMatchConfig
from openafm.rl.trajectories import Sample
from openafm.tokenizer.conversation import AssistantTurn, ToolCall, UserTurn


def answered(prompt: RLPrompt, text: str) -> Sample:
    turns = (AssistantTurn(text=text),)
    return Sample(prompt=prompt, turns=turns, text=text, finish_reason="stop", num_tokens=3, state={})


@pytest.mark.parametrize("config", [CopyEditConfig(), FormatConfig(), CorpusPromptsConfig()], ids=lambda c: type(c).__name__)
def test_prompts_depend_on_their_number_alone(config: PromptSourceConfig) -> None:
    one, other = config.build(), config.build()
    other.prompt(7)
    assert [one.prompt(number) for number in range(5)] == [other.prompt(number) for number in range(5)]


def test_difficulty_rises_with_the_number() -> None:
    config = CopyEditConfig(levels=4, prompts_per_level=10)
    assert [config.level(number) for number in (0, 9, 10, 39, 1000)] == [1, 1, 2, 4, 4]
    source = config.build()
    texts = [str(source.prompt(number).conversation.turns[0].text) for number in range(60)]
    assert all(text.startswith("Copy: ") for text in texts[:10])
    assert {text.split()[1] for text in texts[30:]} >= {"in", "without", "with"}
    with pytest.raises(ConfigError, match="levels and prompts_per_level"):
        CopyEditConfig(levels=0)


def test_structured_prompts_have_a_value_and_may_hide_the_grammar() -> None:
    guided, plain = (CorpusPromptsConfig(is_guided=guided).build().prompt(0) for guided in (True, False))
    assert isinstance(guided.truth["value"], (dict, list))
    formats = [
        turn.response_format for each in (guided, plain) for turn in each.conversation.turns if isinstance(turn, UserTurn)
    ]
    assert formats[0] is not None
    assert formats[1] is None


def test_word_problems_have_a_calculator() -> None:
    source = CorpusPromptsConfig(corpus=SyntheticConfig(tasks={"arithmetic": 1.0}, languages={"en": 1.0})).build()
    prompt = source.prompt(0)
    environment = source.environment(prompt)
    assert environment is not None
    assert environment.call(ToolCall(name="calculator", arguments={"expression": "12*34"})) == "408"
    assert environment.call(ToolCall(name="calculator", arguments={"wrong": 1})) == "error"
    assert prompt.truth["contains"]


def test_mixtures_use_the_environment_of_each_source() -> None:
    arithmetic = CorpusPromptsConfig(corpus=SyntheticConfig(tasks={"arithmetic": 1.0}, languages={"en": 1.0}))
    source = PromptMixtureConfig(sources=(arithmetic, CopyEditConfig()), weights=(1.0, 1.0)).build()
    prompts: Sequence[RLPrompt] = [source.prompt(number) for number in range(12)]
    assert {prompt.kind for prompt in prompts} == {"arithmetic", "copy_edit"}
    assert all((source.environment(each) is not None) == (each.kind == "arithmetic") for each in prompts)


def test_exact_match_may_give_partial_credit() -> None:
    prompt = CopyEditConfig().build().prompt(0)
    answer = str(prompt.truth["answer"])
    exact, partial = ExactMatchConfig().build(), ExactMatchConfig(partial=True).build()
    samples = [answered(prompt, f" {answer}\n"), answered(prompt, answer[:-1]), answered(prompt, "")]
    assert [score.reward for score in exact(samples)] == [1, 0, 0]
    near, none = (score.reward for score in partial(samples)[1:])
    assert 0.4 < near < 0.5
    assert none == 0
