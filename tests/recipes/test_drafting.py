"""Draft models: distillation from a target and the measurement of acceptance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.core.config import from_dict, to_dict
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.answers import Answerer, questions
from openafm.models.sizes import shared_kv_decoder
from openafm.recipes.config import RunConfig
from openafm.recipes.drafting import draft_report, draft_run, held_out_conversations
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import StartBundleError, run_recipe
from openafm.runtime.decoding.draft_length import DraftLengthConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    UserTurn,
)
from openafm.training.objectives.config import DistillationConfig

SMALL = {
    "trainer.budget": '{"type": "StepBudget", "num_steps": 3}',
    "trainer.data.rows_per_step": "1",
    "trainer.data.row_tokens": "192",
    "trainer.log_every": "1",
    "trainer.start": '{"type": "PlainStart"}',
}
WEATHER = ToolDefinition(
    name="weather", description="The weather.", parameters={"type": "object", "properties": {"city": {"enum": ["Oslo"]}}}
)
CALLING = Conversation(
    turns=(
        Instructions(text="Help.", tools=(WEATHER,)),
        UserTurn(text="Weather in Oslo?"),
        AssistantTurn(tool_calls=(ToolCall(name="weather", arguments={"city": "Oslo"}),)),
        ToolTurn(name="weather", text="rain"),
        AssistantTurn(text="Rain."),
        UserTurn(text="As JSON?", response_format={"enum": ["rain", "sun"]}),
        AssistantTurn(text='"rain"'),
    )
)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("OPENAFM_HOME", str(tmp_path / "home"))
    config = shared_kv_decoder(
        vocab_size=340, dim=32, num_own_layers=2, num_shared_layers=1, num_heads=2, num_kv_heads=1, head_dim=16,
        hidden_dim=48, context_length=512,
    )  # fmt: skip
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=330), ["weather rain sun Oslo city name arguments"] * 20)
    tensors = {name: tensor.numpy() for name, tensor in config.build(seed=4).state_dict().items()}
    return write_bundle(tmp_path / "target", config=config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors)


def own_data(folder: Path, count: int = 30) -> Path:
    file = folder / "own.jsonl"
    conversations = [CALLING, *generate(SyntheticConfig(tasks={"event": 1.0}, languages={"en": 1.0}), count)]
    file.write_text("".join(json.dumps(c.to_dict()) + "\n" for c in conversations), encoding="utf-8")
    return file


@pytest.mark.slow
def test_a_draft_is_distilled_from_its_target_and_measured(target: Bundle, tmp_path: Path) -> None:
    config = draft_run(target, size="micro", data=own_data(tmp_path), evaluation=own_data(tmp_path, 3), changes=SMALL)
    assert isinstance(config.trainer.objective, DistillationConfig)
    assert config.trainer.objective.identity == target.identity
    assert from_dict(RunConfig, to_dict(config)) == config
    result = run_recipe(config, tmp_path / "run", "draft")
    draft = open_bundle("draft")
    assert draft.tokenizer.digest == target.tokenizer.digest
    assert (draft.config.vocab_size, draft.config.context_length) == (340, 512)
    assert str(target.path) in draft.card()
    assert result.acceptance is not None
    assert 0 <= result.acceptance <= 1
    assert result.target_passes_per_token is not None
    assert result.plain_passes_per_token is not None
    assert result.target_passes_per_token <= 1.02 * result.plain_passes_per_token  # an untrained draft saves nothing
    assert run_recipe(config, tmp_path / "run", "draft").acceptance == result.acceptance


def test_from_names_the_teacher_and_is_required(target: Bundle, tmp_path: Path) -> None:
    config = prepare_run("on_device.draft", "nano", start=str(target.path), data=own_data(tmp_path), changes=SMALL)
    assert config.start == str(target.path)
    assert config.trainer.from_bundle is None
    with pytest.raises(StartBundleError, match="--from"):
        run_recipe(prepare_run("on_device.draft", "micro"), tmp_path / "run", "on_device.draft-micro")
    with pytest.raises(StartBundleError, match="another --name"):
        home = tmp_path / "home" / "bundles" / "target"
        home.parent.mkdir(parents=True)
        target.path.rename(home)
        run_recipe(draft_run(Bundle(home), size="micro", changes=SMALL), tmp_path / "run", "target")


def test_every_answer_gives_a_question_with_schema_and_tools() -> None:
    call, text, schema = questions(CALLING)
    assert [len(question.turns) for question in (call, text, schema)] == [2, 4, 6]
    assert [question.is_call for question in (call, text, schema)] == [True, False, False]
    assert [question.schema for question in (call, text, schema)] == [None, None, {"enum": ["rain", "sun"]}]
    assert [question.tools for question in (call, text, schema)] == [(WEATHER,)] * 3


@pytest.mark.long
def test_reported_passes_equal_the_steps_taken(target: Bundle) -> None:
    answerer, drafter = Answerer(target), Drafter(Answerer(target).engine, length=DraftLengthConfig(cost=0.2))
    asked = list(questions(CALLING))
    plain = [answerer.answer(question, None, max_tokens=40) for question in asked]
    drafted = [answerer.answer(question, drafter, max_tokens=40) for question in asked]
    assert [answer.tokens for answer in plain] == [answer.tokens for answer in drafted]
    reports = [draft_report([answer.summary for answer in answers]) for answers in (plain, drafted)]
    assert reports[0].target_passes_per_token == reports[0].plain_passes_per_token == reports[1].plain_passes_per_token
    assert reports[1].acceptance == 1
    assert reports[1].target_passes_per_token < 0.6 * reports[0].target_passes_per_token
    assert drafted[0].summary.num_drafted == drafted[0].summary.num_accepted
    called = answerer.answer(asked[0], drafter, must_call=True)
    assert target.template.parse_assistant(target.tokenizer, called.tokens).tool_calls[0].name == "weather"


def test_measured_conversations_are_held_out_if_possible(target: Bundle, tmp_path: Path) -> None:
    run = draft_run(target)
    held_out = held_out_conversations(run, 5)
    trained = held_out_conversations(replace(run, trainer=replace(run.trainer, evaluation=None)), 5)
    assert len(held_out) == len(trained) == 5
    assert not {str(c.turns) for c in held_out} & {str(c.turns) for c in trained}
