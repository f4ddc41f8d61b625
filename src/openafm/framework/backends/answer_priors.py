"""What the rankers of a bundle know of an answer before it is generated: its labels, the tool to call, a call at all, the
values of fields, and which optional fields have none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openafm.bundle import Bundle
from openafm.framework.schema.single_properties import SingleProperty, choices_of, single_properties, title_of
from openafm.ranking.ranker import Ranker, open_ranker
from openafm.ranking.span_ranker import FieldName, FoundValue, SpanRanker, open_span_ranker
from openafm.runtime.decoding.choice_prior import CallPrior, ChoicePrior, PriorChoice, TokensByByte
from openafm.runtime.decoding.logits import LogitsProcessor
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import ContentTurn, JsonSchema, ToolDefinition, Turn, UserTurn

LABEL_WEIGHT, TOOL_WEIGHT, CALL_WEIGHT = 2.0, 2.0, 0.25
"""Powers of the ranker's probabilities (`benchmarks/answer_priors.py`)."""
SURELY = 0.97
"""An optional field is left out, or required, if the span ranker is so sure of it."""
_LEAST_OTHER = 1e-3  # probability of a value that is no span of the text


@dataclass(frozen=True, kw_only=True)
class AnswerPrior:
    """The schema and the tools of an answer, with optional fields that were decided, and the processors of its logits."""

    schema: JsonSchema | None
    tools: tuple[ToolDefinition, ...]
    processors: tuple[LogitsProcessor, ...] = ()


class AnswerPriors:
    """The priors of a bundle with rankers. Safe to share between threads."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, ranker: Ranker | None, span_ranker: SpanRanker | None
    ) -> None:
        self.ranker, self.span_ranker = ranker, span_ranker
        self._tokens = TokensByByte(tokenizer)
        (self._calls_token,) = template.tool_calls_prompt(tokenizer)

    def of_answer(
        self, turns: Sequence[Turn], schema: JsonSchema | None, tools: Sequence[ToolDefinition], *, continues: bool
    ) -> AnswerPrior:
        """Return the prior of the answer to the last of `turns`, which follow other prompts if the conversation `continues`.

        After outputs of tools there is none: the request fits the tools that were called as well as before. Values of a
        conversation that continues may stand in earlier prompts, so fields are decided for the first prompt alone.
        """
        plain = AnswerPrior(schema=schema, tools=tuple(tools))
        if not turns or not isinstance(turns[-1], UserTurn):
            return plain
        text, choices, processors = turns[-1].text, list[PriorChoice](), list[LogitsProcessor]()
        if self.ranker is not None:
            choices += [self._labels(text, name, values) for name, values in choices_of(schema or {}).items()]
            if tools:
                choices.append(self._tools(self.ranker, text, tools, processors))
        if self.span_ranker is not None and not continues and sum(isinstance(turn, ContentTurn) for turn in turns) == 1:
            schema, tools = self._with_fields(self.span_ranker, text, schema, tools, choices)
        if choices:
            processors.append(ChoicePrior(choices, self._tokens))
        return AnswerPrior(schema=schema, tools=tuple(tools), processors=tuple(processors))

    def of_labels(self, text: str, labels: Mapping[str, str]) -> list[float]:
        """Return the weighted log probability of each label; zeros without a ranker.

        `labels` are names with descriptions, which may be empty.
        """
        if self.ranker is None:
            return [0.0] * len(labels)
        described = [f"{name} {about}".strip() for name, about in labels.items()]
        return [LABEL_WEIGHT * float(each) for each in self.ranker.log_probabilities(text, described)]

    def _labels(self, text: str, name: str, values: Sequence[str]) -> PriorChoice:
        weights = dict(zip(values, self.of_labels(text, dict.fromkeys(values, "")), strict=True))
        return PriorChoice(opening=_opening(name) if name else b'"', values=_ended(weights), is_next=not name)

    def _tools(
        self, ranker: Ranker, text: str, tools: Sequence[ToolDefinition], processors: list[LogitsProcessor]
    ) -> PriorChoice:
        """The prior of the first tool; add that of a call to the processors."""
        *by_tool, none = ranker.log_probabilities(text, [tool_text(tool) for tool in tools], may_be_none=True).tolist()
        processors.append(CallPrior(self._calls_token, CALL_WEIGHT * (float(np.logaddexp.reduce(by_tool)) - none)))
        weights = {tool.name: TOOL_WEIGHT * each for tool, each in zip(tools, by_tool, strict=True)}
        return PriorChoice(opening=b'[{"name":"', values=_ended(weights), is_next=True)

    def _with_fields(
        self,
        ranker: SpanRanker,
        text: str,
        schema: JsonSchema | None,
        tools: Sequence[ToolDefinition],
        choices: list[PriorChoice],
    ) -> tuple[JsonSchema | None, Sequence[ToolDefinition]]:
        """Return schema and tools with the fields that were decided; add the priors of values to the choices."""
        objects = [] if schema is None else [(schema, title_of(schema), b"")]
        objects += [(tool.parameters, tool.name, _arguments_of(tool.name)) for tool in tools]
        texts = [[each for each in single_properties(found) if each.is_text and each.path] for found, _, _ in objects]
        names = [name for (_, title, _), each in zip(objects, texts, strict=True) for name in field_names(each, title)]
        if (values := ranker.find(text, names)) is None:
            return schema, tools
        decided, rest = [], iter(values)
        for (found, _, prefix), properties in zip(objects, texts, strict=True):
            by_path = {each.path: next(rest) for each in properties}
            choices += [_value_prior(prefix, path[-1], value) for path, value in by_path.items() if value.spans]
            decided.append(with_decided_fields(found, {path[0]: value for path, value in by_path.items() if len(path) == 1}))
        parameters = decided if schema is None else decided[1:]
        return (
            None if schema is None else decided[0],
            [replace(tool, parameters=each) for tool, each in zip(tools, parameters, strict=True)],
        )


def open_priors(bundle: Bundle) -> AnswerPriors | None:
    """Return the priors of a bundle, None without rankers or with the chat template of an imported model.

    Raises:
        RankerError: a ranker is damaged.
    """
    if not isinstance(bundle.template, ChatTemplate) or (bundle.ranker is None and bundle.span_ranker is None):
        return None
    ranker = None if bundle.ranker is None else open_ranker(bundle.ranker)
    span_ranker = None if bundle.span_ranker is None else open_span_ranker(bundle.span_ranker)
    return AnswerPriors(bundle.tokenizer, bundle.template, ranker, span_ranker)


def with_decided_fields(schema: JsonSchema, values: Mapping[str, FoundValue]) -> JsonSchema:
    """Return a schema of an object without the optional fields that surely have no value, and with those required that have
    one."""
    required, properties = schema.get("required") or [], schema.get("properties") or {}
    optional = {name: value for name, value in values.items() if name in properties and name not in required}
    absent = {name for name, value in optional.items() if value.absent > SURELY}
    present = [name for name, value in optional.items() if value.absent < 1 - SURELY]
    if not absent and not present:
        return schema
    kept = {name: each for name, each in properties.items() if name not in absent}
    changed: JsonSchema = {**schema, "properties": kept, "required": [*required, *present]}
    if "x-order" in schema:
        changed["x-order"] = [name for name in schema["x-order"] if name not in absent]
    return changed


def field_names(properties: Sequence[SingleProperty], context: str) -> list[FieldName]:
    """Return the names of fields as the span ranker knows them. `context` is the title of a schema or the name of a tool."""
    return [FieldName(f"{each.name} {each.schema.get('description') or ''}".rstrip(), context) for each in properties]


def tool_text(tool: ToolDefinition) -> str:
    """Return the name of a tool as words, and its description."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name).replace("_", " ")
    return f"{words} {tool.description}".strip()


def _value_prior(prefix: bytes, name: str, value: FoundValue) -> PriorChoice:
    """The prior of the value of a field that has one."""
    present = max(1 - value.absent, _LEAST_OTHER)
    weights = {span: float(np.log(probability / present)) for span, probability in value.spans.items()}
    others = float(np.log(max(value.other / present, _LEAST_OTHER)))
    return PriorChoice(prefix=prefix, opening=_opening(name), values=_ended(weights), others=others)


def _opening(name: str) -> bytes:
    """The text of an answer up to the value of a property."""
    return f'{json.dumps(name, ensure_ascii=False)}:"'.encode()


def _arguments_of(tool: str) -> bytes:
    return f'[{{"name":{json.dumps(tool, ensure_ascii=False)},"arguments":'.encode()


def _ended(weights: Mapping[str, float]) -> dict[bytes, float]:
    """Return weights by the JSON text of values without the quote before it."""
    return {json.dumps(value, ensure_ascii=False)[1:].encode(): weight for value, weight in weights.items()}
