"""A model without weights: it calls every tool once, fills in any schema and streams at a fixed pace."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from openafm.framework.backends.language_model import (
    Answer,
    AnswerRequest,
    Event,
    LanguageModelExecutor,
    TextPiece,
    ToolCallPiece,
    Usage,
)
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.framework.errors import ExceededContextWindowSizeError, GenerationCancelledError
from openafm.tokenizer.conversation import AssistantTurn, JsonSchema, ToolCall, ToolTurn, Turn

CONTEXT_WORDS = 4096
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


class StandInModel(SystemLanguageModel):
    """Replace a bundle's executor; tokens are counted with the bundle."""

    seconds_per_word = 0.02

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        return StandInExecutor(self.seconds_per_word)


class StandInExecutor(LanguageModelExecutor):
    """Answer with the tool outputs and filler text."""

    def __init__(self, seconds_per_word: float) -> None:
        self._pace, self._random = seconds_per_word, random.Random(0)

    def answer(self, request: AnswerRequest) -> Generator[Event, None, Answer]:
        heard = [turn.text for turn in request.turns if isinstance(turn, ToolTurn)]
        words = sum(len(turn.text.split()) for turn in request.turns)
        if words > CONTEXT_WORDS:
            raise ExceededContextWindowSizeError(words, CONTEXT_WORDS)
        if request.tools and not heard:
            calls = tuple(
                ToolCall(name=tool.name, arguments=fill(tool.parameters, tool.parameters, self._random))
                for tool in request.tools
            )
            for index, call in enumerate(calls):
                yield ToolCallPiece(index=index, name=call.name, arguments=json.dumps(dict(call.arguments)))
            return Answer(turn=AssistantTurn(text="", tool_calls=calls), usage=Usage())
        if request.schema is not None:
            pieces = [json.dumps(fill(request.schema, request.schema, self._random), separators=(",", ":"))]
        else:
            is_long = any("long" in turn.text for turn in request.turns)
            most = min(request.options.maximum_response_tokens or 15, 300 if is_long else 15)
            pieces = [f"{word} " for word in (*heard, *WORDS * 30)[:most]]
        for piece in pieces:
            time.sleep(self._pace)
            if request.cancelled():
                raise GenerationCancelledError("cancelled")
            yield TextPiece(piece)
        return Answer(turn=AssistantTurn(text="".join(pieces)), usage=Usage(generated_tokens=len(pieces)))

    def prefill(self, *arguments: Any) -> None:
        pass

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        yield


def fill(schema: JsonSchema, root: JsonSchema, rng: random.Random, depth: int = 0) -> Any:
    """Return a value for a schema without optional properties."""
    if reference := schema.get("$ref"):
        target: Any = root
        for step in reference.split("/")[1:]:
            target = target[step]
        return fill(target, root, rng, depth + 1)
    if "anyOf" in schema:
        return fill(schema["anyOf"][0], root, rng, depth)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "object":
            return {name: fill(schema["properties"][name], root, rng, depth) for name in schema.get("required", ())}
        case "array":
            least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
            return [fill(schema["items"], root, rng, depth) for _ in range(max(least, most if depth == 0 else 0))]
        case "integer" | "number":
            low = schema.get("minimum", 0)
            return schema.get("maximum", low + 7) if rng.random() < 0.5 else low
        case "boolean":
            return True
    return rng.choice(WORDS)
