"""Priors of an answer by the ranker of a bundle: of its labels, of the tool to call, and of a call at all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from openafm.framework.schema.choices import SingleProperty, choices_of
from openafm.ranking.ranker import Ranker
from openafm.ranking.span_ranker import FieldName
from openafm.runtime.decoding.choice_prior import CallPrior, ChoicePrior, PriorChoice, TokensByByte
from openafm.runtime.decoding.logits import LogitsProcessor
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import JsonSchema, ToolDefinition, Turn, UserTurn

LABEL_WEIGHT, TOOL_WEIGHT, CALL_WEIGHT = 0.5, 0.5, 0.5
"""Powers of the ranker's probabilities."""
_CALLS_OPENING = b'[{"name":"'


class ChoicePriors:
    """Makes the processors of answers. Safe to share between threads."""

    def __init__(self, ranker: Ranker, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._ranker, self._tokens = ranker, TokensByByte(tokenizer)
        (self._calls_token,) = template.tool_calls_prompt(tokenizer)

    def of_answer(
        self, turns: Sequence[Turn], schema: JsonSchema | None, tools: Sequence[ToolDefinition]
    ) -> tuple[LogitsProcessor, ...]:
        """Return the processors of the answer to the last of `turns`. After outputs of tools there are none: the request
        fits the tools that were called as well as before."""
        if not turns or not isinstance(turns[-1], UserTurn):
            return ()
        text = turns[-1].text
        processors: list[LogitsProcessor] = []
        choices = [self._label(text, name, values) for name, values in (choices_of(schema) if schema else {}).items()]
        if tools:
            log_probabilities = self._ranker.log_probabilities(text, [tool_text(tool) for tool in tools], may_be_none=True)
            *by_tool, none = log_probabilities.tolist()
            weights = {tool.name: TOOL_WEIGHT * each for tool, each in zip(tools, by_tool, strict=True)}
            choices.append(PriorChoice(opening=_CALLS_OPENING, values=_ended(weights), is_first=True))
            log_odds = float(np.logaddexp.reduce(by_tool)) - none
            processors.append(CallPrior(self._calls_token, CALL_WEIGHT * log_odds))
        if choices:
            processors.append(ChoicePrior(choices, self._tokens))
        return tuple(processors)

    def of_labels(self, text: str, labels: Mapping[str, str]) -> list[float]:
        """Return the weighted log probability of each label. `labels` are names with descriptions, which may be empty."""
        described = [f"{name} {about}".strip() for name, about in labels.items()]
        return [LABEL_WEIGHT * float(each) for each in self._ranker.log_probabilities(text, described)]

    def _label(self, text: str, name: str, values: Sequence[str]) -> PriorChoice:
        weights = dict(zip(values, self.of_labels(text, dict.fromkeys(values, "")), strict=True))
        opening = f'{json.dumps(name, ensure_ascii=False)}:"' if name else '"'
        return PriorChoice(opening=opening.encode(), values=_ended(weights), is_first=not name)


def field_names(properties: Sequence[SingleProperty], context: str) -> list[FieldName]:
    """Return the names of fields as the span ranker knows them. `context` is the title of a schema or the name of a tool."""
    return [FieldName(f"{each.name} {each.schema.get('description') or ''}".rstrip(), context) for each in properties]


def tool_text(tool: ToolDefinition) -> str:
    """Return the name of a tool as words, and its description."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name).replace("_", " ")
    return f"{words} {tool.description}".strip()


def _ended(weights: Mapping[str, float]) -> dict[bytes, float]:
    """Return weights by the JSON text of values without the quote before it."""
    return {json.dumps(value, ensure_ascii=False)[1:].encode(): weight for value, weight in weights.items()}
