"""Generate the next turn of a conversation with tools, greedy, with calls that satisfy the tools' schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from openafm.tokenizer.chat_template import MalformedAnswerError, opened
from openafm.tokenizer.conversation import AssistantTurn, ToolDefinition, Turn

if TYPE_CHECKING:
    from openafm.framework.backends.loaded_model import LoadedModel


def next_turn(
    model: LoadedModel, turns: Sequence[Turn], tools: Sequence[ToolDefinition], max_tokens: int
) -> AssistantTurn | None:
    """Return the model's answer to `turns`: text, or one or more parallel calls.

    None if it does not end within `max_tokens` or does not fit into the context.
    """
    from openafm.runtime.decoding.generation import generate
    from openafm.runtime.decoding.sampling import GreedyConfig
    from openafm.runtime.engines.base import ContextWindowError

    tokenizer, template = model.tokenizer, model.template
    prior = model.prior(turns, None, tools)
    try:
        generation = generate(
            model.engine,
            model.engine.new_sequence(),
            [*template.encode(tokenizer, opened(turns)).tokens, *template.generation_prompt(tokenizer)],
            sampling=GreedyConfig(),
            stop_tokens=template.stop_tokens(tokenizer),
            max_tokens=max_tokens,
            grammar=model.grammar(None, prior.tools),
            processors=prior.processors,
        )
        tokens = [event.token for event in generation]
        if generation.summary.finish != "stop":
            return None
        return template.parse_assistant(tokenizer, tokens)
    except (ContextWindowError, MalformedAnswerError):
        return None
