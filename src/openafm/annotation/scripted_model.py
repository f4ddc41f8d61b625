"""A model that follows the reference calls of a scenario, with mistakes if asked: for demonstrations and tests."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from openafm.annotation.environments.project import Project, Scenario
from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Capability,
    Event,
    LanguageModel,
    LanguageModelExecutor,
    SystemLanguageModelUnavailableReason,
    TextPiece,
    ToolCallPiece,
    Usage,
)
from openafm.tokenizer.conversation import AssistantTurn, ToolCall, ToolTurn, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json


class ScriptedModel(LanguageModel):
    """Answer the queries of a project's scenarios with their reference calls, one at a time, then with the last output.

    Args:
        mistakes: the share of calls with a wrong argument; the same ones in every run.
    """

    name = "scripted"
    capabilities = frozenset((Capability.TOOL_CALLING,))

    def __init__(self, project: Project, mistakes: float = 0.0) -> None:
        self._scenarios: Mapping[str, Scenario] = {scenario.query: scenario for scenario in project.scenarios}
        self._mistakes = mistakes

    @property
    def context_size(self) -> int:
        return 1 << 20

    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        return True, None

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        return _ScriptedExecutor(self, turns)

    def next_turn(self, turns: Sequence[Turn]) -> AssistantTurn:
        """Return the answer to a conversation."""
        start = max(index for index, turn in enumerate(turns) if isinstance(turn, UserTurn))
        query = turns[start]
        assert isinstance(query, UserTurn)
        num_made = sum(len(turn.tool_calls) for turn in turns[start:] if isinstance(turn, AssistantTurn))
        scenario = self._scenarios.get(query.text)
        calls = scenario.calls if scenario is not None else ()
        if num_made < len(calls):
            call = calls[num_made]
            rng = random.Random(f"{query.text} {num_made}")
            return AssistantTurn(tool_calls=(_mistaken(call) if rng.random() < self._mistakes else call,))
        outputs = [turn.text for turn in turns[start:] if isinstance(turn, ToolTurn)]
        if scenario is None:
            return AssistantTurn(text="The scripted model knows the scenarios of this project only.")
        return AssistantTurn(text=f"{scenario.answer} ({outputs[-1]:.200})" if outputs else scenario.answer or "Done.")


def _mistaken(call: ToolCall) -> ToolCall:
    """Return a call with one wrong argument that still fits its schema."""
    arguments: dict[str, Any] = dict(call.arguments)
    for name, value in arguments.items():
        if isinstance(value, str) and value:
            arguments[name] = value[:-1] + ("7" if value[-1] != "7" else "8")
            break
    return ToolCall(name=call.name, arguments=arguments)


class _ScriptedExecutor(LanguageModelExecutor):
    def __init__(self, model: ScriptedModel, turns: Sequence[Turn]) -> None:
        self._model, self._turns = model, list(turns)

    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        self._turns += request.turns
        turn = self._model.next_turn(self._turns)
        for index, call in enumerate(turn.tool_calls):
            yield ToolCallPiece(index=index, name=call.name, arguments=compact_json(call.arguments))
        for word in turn.text.split(" ") if turn.text else ():
            yield TextPiece(word + " ")
        self._turns.append(turn)
        return Answer(turn=turn, usage=Usage())

    def prefill(self, prompt_prefix: str, cancelled: Callable[[], bool]) -> None:
        """Nothing is computed before a request."""

    def undone_on_error(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
