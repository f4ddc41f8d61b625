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

LABEL_WEIGHT, TOOL_WEIGHT, CALL_WEIGHT, VALUE_WEIGHT = 2.0, 2.0, 0.25, 0.5
"""Powers of the rankers' probabilities (`benchmarks/answer_priors.py`)."""
SURELY, LIKELY = 0.97, 0.9
"""An optional argument is left out if it is surely absent, and required if surely present and one span is likely."""
_LEAST_OTHER = 1e-3  # probability of a value that is no span of the text
_MOST_FIELDS = 64  # that are searched for; those of unlikely tools are not
_DECIDABLE = frozenset(
    ("type", "title", "description", "properties", "required", "additionalProperties", "x-order", "$schema")
)
_NAME = re.compile(r"[^\W\d_]{3,}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True, kw_only=True)
class AnswerPrior:
    """The tools of an answer, with optional arguments that were decided, and the processors of its logits."""

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

        After outputs of tools there is none: the request fits the tools that were called as well as before. Nor is there one
        for a prompt with images. Values may be in earlier prompts, so they are searched for in the first prompt alone.
        """
        plain = AnswerPrior(tools=tuple(tools))
        if not turns or not isinstance(prompt := turns[-1], UserTurn) or prompt.images:
            return plain
        choices, processors = list[PriorChoice](), list[LogitsProcessor]()
        by_tool = dict.fromkeys((tool.name for tool in tools), 0.0)
        if self.ranker is not None:
            choices += [self._labels(prompt.text, name, values) for name, values in choices_of(schema or {}).items()]
            if tools:
                by_tool, log_odds = _tool_probabilities(self.ranker, prompt.text, tools)
                weights = {name: TOOL_WEIGHT * each for name, each in by_tool.items()}
                choices.append(PriorChoice(opening=b'[{"name":"', values=_ended(weights), is_next=True))
                processors.append(CallPrior(self._calls_token, CALL_WEIGHT * log_odds))
        if self.span_ranker is not None and not continues and sum(isinstance(turn, ContentTurn) for turn in turns) == 1:
            likely = sorted(tools, key=lambda tool: -by_tool[tool.name])
            found, decided = _found_values(self.span_ranker, prompt.text, schema, likely)
            choices += found
            tools = [replace(tool, parameters=decided.get(tool.name, tool.parameters)) for tool in tools]
        if choices:
            processors.append(ChoicePrior(choices, self._tokens))
        return AnswerPrior(tools=tuple(tools), processors=tuple(processors))

    def of_labels(self, text: str, labels: Mapping[str, str]) -> list[float]:
        """Return the weighted log probability of each label: zeros without a ranker, and for labels that are no words.

        `labels` are names with descriptions, which may be empty.
        """
        described = [f"{name} {about}".strip() for name, about in labels.items()]
        num_words = sum(_NAME.search(each) is not None for each in described)
        if self.ranker is None or 2 * num_words <= len(described):
            return [0.0] * len(described)
        return [LABEL_WEIGHT * float(each) for each in self.ranker.log_probabilities(text, described)]

    def _labels(self, text: str, name: str, values: Sequence[str]) -> PriorChoice:
        weights = dict(zip(values, self.of_labels(text, dict.fromkeys(values, "")), strict=True))
        if not name:
            return PriorChoice(opening=b'"', values=_ended(weights), is_next=True)
        return PriorChoice(prefix=b"{", opening=_opening(name), values=_ended(weights))


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


def _tool_probabilities(ranker: Ranker, text: str, tools: Sequence[ToolDefinition]) -> tuple[dict[str, float], float]:
    """Return the log probability of each tool, and the log odds of any of them against none."""
    log_probabilities = ranker.log_probabilities(text, [tool_text(tool) for tool in tools], may_be_none=True)
    *by_tool, none = log_probabilities.tolist()
    return dict(zip((tool.name for tool in tools), by_tool, strict=True)), float(np.logaddexp.reduce(by_tool)) - none


def _found_values(
    ranker: SpanRanker, text: str, schema: JsonSchema | None, tools: Sequence[ToolDefinition]
) -> tuple[list[PriorChoice], dict[str, JsonSchema]]:
    """Return the priors of values, and the parameters of tools with optional arguments that were decided."""
    objects = [] if schema is None else [(schema, title_of(schema), b"{")]
    objects += [(tool.parameters, tool.name, _arguments_of(tool.name)) for tool in tools]
    fields = [
        (prefix, each, name)
        for found, title, prefix in objects
        for each in single_properties(found)
        if each.is_text and each.path
        for name in field_names([each], title)
    ][:_MOST_FIELDS]
    values = ranker.find(text, [name for _, _, name in fields])
    if values is None:
        return [], {}
    found = list(zip(fields, values, strict=True))
    choices = [_value_prior(prefix, each.name, value) for (prefix, each, _), value in found if value.spans]
    decided = {
        tool.name: with_decided_fields(
            tool.parameters,
            {
                each.name: value
                for (prefix, each, _), value in found
                if prefix == _arguments_of(tool.name) and len(each.path) == 1 and ranker.decides(each.name)
            },
        )
        for tool in tools
    }
    return choices, decided


def with_decided_fields(schema: JsonSchema, values: Mapping[str, FoundValue]) -> JsonSchema:
    """Return the schema of an object without the optional fields that surely have no value, and with those required that
    surely have one. A schema with other conditions stays as it is."""
    required, properties = schema.get("required") or [], schema.get("properties") or {}
    if not schema.keys() <= _DECIDABLE or '"$ref"' in json.dumps(schema):
        return schema
    optional = {name: value for name, value in values.items() if name in properties and name not in required}
    may_drop = schema.get("additionalProperties") is False  # else the field would be allowed with any value
    absent = {name for name, value in optional.items() if may_drop and value.absent > SURELY}
    present = [
        name
        for name, value in optional.items()
        if value.absent < 1 - SURELY and max(value.spans.values(), default=0.0) > LIKELY
    ]
    kept = {name: each for name, each in properties.items() if name not in absent}
    changed: JsonSchema = {**schema, "properties": kept, "required": [*required, *present]}
    if "x-order" in schema:
        changed["x-order"] = [name for name in schema["x-order"] if name not in absent]
    return changed if absent or present else schema


def field_names(properties: Sequence[SingleProperty], context: str) -> list[FieldName]:
    """Return the names of fields as the span ranker knows them. `context` is the title of a schema or the name of a tool."""
    return [FieldName(each.name, context, str(each.schema.get("description") or "")) for each in properties]


def tool_text(tool: ToolDefinition) -> str:
    """Return the name of a tool as words, and its description."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name).replace("_", " ")
    return f"{words} {tool.description}".strip()


def _value_prior(prefix: bytes, name: str, value: FoundValue) -> PriorChoice:
    """The prior of the value of a field that has one."""
    present = max(1 - value.absent, _LEAST_OTHER)
    weights = {span: VALUE_WEIGHT * float(np.log(each / present)) for span, each in value.spans.items()}
    others = VALUE_WEIGHT * float(np.log(max(value.other / present, _LEAST_OTHER)))
    return PriorChoice(prefix=prefix, opening=_opening(name), values=_ended(weights), others=others)


def _opening(name: str) -> bytes:
    """The text of an answer up to the value of a property."""
    return f'{json.dumps(name, ensure_ascii=False)}:"'.encode(errors="surrogatepass")


def _arguments_of(tool: str) -> bytes:
    return f'[{{"name":{json.dumps(tool, ensure_ascii=False)},"arguments":'.encode(errors="surrogatepass")


def _ended(weights: Mapping[str, float]) -> dict[bytes, float]:
    """Return weights by the JSON text of values without the quote before it."""
    texts = {value: json.dumps(value, ensure_ascii=False)[1:] for value in weights}
    return {texts[value].encode(errors="surrogatepass"): weight for value, weight in weights.items()}
