"""Tasks on our own sets: reference answers score 1, broken ones less; stateful tool use; cards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_bundles import write_tiny_bundle

import openafm as fm
from openafm.core.errors import UsageError
from openafm.evaluation.features.needles import NeedlesConfig, haystack
from openafm.evaluation.features.phone import TOOLS, Phone
from openafm.evaluation.features.texts import TextsConfig, numbers
from openafm.evaluation.features.worlds import ToolWorldConfig, replay
from openafm.evaluation.features.written import SETS, WrittenCasesConfig, is_valid
from openafm.evaluation.fresh.cases import Case
from openafm.evaluation.harness.answerer import MAX_ROUNDS, ModelAnswerer, RecordedAnswerer
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.card import card_text
from openafm.evaluation.harness.results import open_run
from openafm.evaluation.harness.runner import run_tasks
from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig
from openafm.evaluation.tasks.catalog import FEATURES, NEEDS_VISION, find_task
from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    LanguageModel,
    LanguageModelExecutor,
    SystemLanguageModelUnavailableReason,
    Usage,
)
from openafm.tokenizer.conversation import AssistantTurn, ToolCall, ToolTurn, Turn

HERE = Path()


def items(task: TaskConfig) -> dict[str, Item]:
    return {item.id: item for item in task.items(HERE)}


@pytest.mark.parametrize("name", [name for name in FEATURES if name not in NEEDS_VISION])
def test_every_set_has_items_of_different_ids_and_no_output_raises(name: str) -> None:
    task = find_task(name)
    found = list(task.items(HERE))
    assert len(found) == len({item.id for item in found}) >= 10
    for item in found[:5]:
        for text in ("", "[" * 5000, "null", '{"title": 1}', "\ud800"):
            scores = task.judge(item, Output(text=text)).scores
            assert task.METRIC in scores
            assert all(0 <= float(score) <= 1 for score in scores.values())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["extraction", "tagging"])
def test_reference_answers_score_one(name: str) -> None:
    task = WrittenCasesConfig(set=name)
    for number, item in enumerate(task.items(HERE)):
        case: Case = SETS[name]()[number]
        value = case.expected if name == "extraction" else {"label": case.expected}
        assert task.judge(item, Output(text=json.dumps(value))).scores == {"valid": 1.0, "score": 1.0}


def test_validity_is_apart_from_the_score() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert is_valid(schema, '{"a": 1}')
    assert not is_valid(schema, '{"a": "1"}')
    assert not is_valid(schema, '{"a": 1')


def test_summaries_keep_facts_and_add_no_numbers() -> None:
    task = TextsConfig()
    item = next(item for item in task.items(HERE) if item.language == "en")
    good = task.judge(item, Output(text="The plumber comes on Thursday between 9 and 11; the landlord pays 180 euros."))
    assert good.scores["score"] == 1.0
    added = task.judge(item, Output(text="The plumber comes on Thursday at 12."))
    assert (added.scores["grounded"], added.scores["facts"], added.scores["score"]) == (0.0, 1.0, 0.0)
    assert added.notes["added"] == ["12"]
    copied = task.judge(item, Output(text=item.reference["text"]))
    assert (copied.scores["changed"], copied.scores["length"]) == (0.0, 0.0)
    lost = task.judge(item, Output(text="Somebody comes."))
    assert (lost.scores["facts"], lost.notes["lost"]) == (0.0, ["plumber", "Thursday"])
    assert numbers("３時 und 2,5") == {"3", "2.5"}


def test_needles_are_at_their_depth() -> None:
    for depth in (0.0, 0.5, 1.0):
        text, code, place = haystack(800, depth, 0)
        assert text.count(code) == text.count(place) == 1
        assert text.index(code) / len(text) == pytest.approx(depth, abs=0.06)
    task = NeedlesConfig(words=(50,), repeats=1)
    item = next(iter(task.items(HERE)))
    assert task.judge(item, Output(text=f"It is {item.reference[:2]},{item.reference[2:]}.")).scores == {"found": 1.0}
    assert task.judge(item, Output(text="12345678")).scores == {"found": 0.0}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def test_tools_of_the_phone() -> None:
    state = items(ToolWorldConfig())["send_without_cellular"].reference["state"]
    phone = Phone(state)
    assert "cellular is off" in phone.call("send_message", {"phone": "+351 91 000 11", "text": "a"})
    assert "no tool" in phone.call("state", {})
    assert "wrong arguments" in phone.call("set_switch", {"on": True})
    assert phone.state == state


def test_milestones_must_come_in_order_and_forbidden_states_never() -> None:
    found = items(ToolWorldConfig())
    send = found["send_without_cellular"]
    sent = call("send_message", phone="+351 91 000 11", text="The keys are under the mat")
    right = (call("set_switch", switch="cellular", on=True), sent)
    assert ToolWorldConfig().judge(send, Output(calls=right)).scores == {"success": 1.0, "milestones": 1.0}
    assert ToolWorldConfig().judge(send, Output(calls=right[1:])).scores == {"success": 0.0, "milestones": 0.0}
    delete = found["delete"]
    both = (call("list_reminders"), call("delete_reminder", id=1), call("delete_reminder", id=2))
    verdict = ToolWorldConfig().judge(delete, Output(calls=both))
    assert verdict.scores == {"success": 0.0, "milestones": 0.0}
    assert verdict.notes["forbidden"]
    assert ToolWorldConfig().judge(found["nothing"], Output(text="Smoke.")).scores["success"] == 1.0
    row = found["move"].reference
    backwards = [call("delete_reminder", id=1), call("add_reminder", title="bank", time="2025-03-05T10:00")]
    assert replay(row["state"], backwards, row["milestones"], row["forbidden"])[0] == 2


class Scripted(LanguageModel):
    """A model whose answers are given by a function of the turns so far."""

    name = "scripted"
    capabilities = frozenset({Capability.TOOL_CALLING})
    context_size = 10_000

    def __init__(self, answer: Callable[[list[Turn]], AssistantTurn], *, can_see: bool = False) -> None:
        self.answer, self.images = answer, dict[str, bytes]()
        if can_see:
            self.capabilities = frozenset({Capability.TOOL_CALLING, Capability.VISION})

    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        return True, None

    def executor(self, turns: Any) -> LanguageModelExecutor:
        return ScriptedExecutor(self, list(turns))


class ScriptedExecutor(LanguageModelExecutor):
    def __init__(self, model: Scripted, turns: list[Turn]) -> None:
        self.model, self.turns = model, turns

    def answer(self, request: AnswerRequest) -> Iterator[Event]:  # type: ignore[override]
        self.turns += request.turns
        self.model.images |= request.images
        turn = self.model.answer(self.turns)
        self.turns.append(turn)
        yield from ()
        return Answer(turn=turn, usage=Usage(generated_tokens=1))

    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None: ...

    def undone_on_error(self) -> Any: ...


def test_a_model_uses_the_phone_until_it_answers() -> None:
    item = items(ToolWorldConfig())["send"]

    def answer(turns: list[Turn]) -> AssistantTurn:
        outputs = [turn.text for turn in turns if isinstance(turn, ToolTurn)]
        if not outputs:
            return AssistantTurn(tool_calls=(ToolCall(name="find_contact", arguments={"name": "Ben"}),))
        if len(outputs) == 1:
            number = json.loads(outputs[0])[0]["phone"]
            return AssistantTurn(
                tool_calls=(ToolCall(name="send_message", arguments={"phone": number, "text": "Running late"}),)
            )
        return AssistantTurn(text="Sent.")

    output = ModelAnswerer(Scripted(answer)).answer(item.prompt, lambda: False)
    assert (output.text, len(output.calls), output.generated_tokens) == ("Sent.", 2, 3)
    assert ToolWorldConfig().judge(item, output).scores == {"success": 1.0, "milestones": 1.0}


def test_a_model_that_calls_tools_without_end_is_stopped() -> None:
    endless = Scripted(lambda turns: AssistantTurn(tool_calls=(ToolCall(name="get_settings", arguments={}),)))
    output = ModelAnswerer(endless).answer(Prompt(text="a", tools=TOOLS, world={"settings": {}}), lambda: False)
    assert (output.finish, len(output.calls)) == ("length", MAX_ROUNDS)


def test_a_card_is_filled_from_results(tmp_path: Path) -> None:
    def nothing(prompt: Prompt) -> Output:
        return Output(text="{}")

    cache = OutputCache(tmp_path / "outputs.sqlite")
    tasks: Mapping[str, TaskConfig] = {"extraction": WrittenCasesConfig(set="extraction")}
    for name in ("one", "two"):
        run_tasks(RecordedAnswerer(nothing, name), tasks, tmp_path, tmp_path / name, cache)
    cache.close()
    text = card_text([open_run(tmp_path / "one")])
    assert "| extraction | score | all | 36 | 0.0 | 0.0 to" in text
    assert "| extraction | score | de |" in text
    with pytest.raises(UsageError, match="another model"):
        card_text([open_run(tmp_path / "one"), open_run(tmp_path / "two")])


def test_a_bundle_runs_the_tools(tmp_path: Path) -> None:
    model = fm.SystemLanguageModel(bundle=write_tiny_bundle(tmp_path / "tiny", context_length=2048).path)
    output = ModelAnswerer(model).answer(
        Prompt(text="the cat", tools=TOOLS, world={"settings": {}}, max_tokens=4), lambda: False
    )
    assert output.finish in ("stop", "length")
