"""Guided decoding compared with plain decoding at the same depth, and the steps that a grammar saves.

`mask_overlap` is the wall time of a guided decode step over that of a plain one, both by `generate`, alternating token by
token: JSON with a long text, in which nearly every token is a choice and its mask is not trivial. Only steps of one token
are compared (medians), because forced tokens make a step longer and an answer shorter.
`tool_call_steps` is the number of steps of an answer with tool calls over the number of its tokens; unguided decoding
takes one step for each. Names, brackets and keys are forced. `tool_call_time` is its time over that of plain decoding of
as many tokens. Both use the shipped nano model and its tokenizer, on one thread, because a random model does not write JSON.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from measuring import Figures, Setting, median, rounded
from ours import tokens_of

from openafm.bundle import Bundle, open_bundle
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig
from openafm.runtime.engines.base import Engine
from openafm.runtime.native.engine import NativeEngine
from openafm.tokenizer.conversation import JsonSchema, ToolDefinition
from openafm.tokenizer.tool_calls import tool_calls_schema

TEXT: JsonSchema = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 4000}},
    "required": ["text"],
    "additionalProperties": False,
}
PLACE: JsonSchema = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
_OPENING = 32


def mask_overlap(setting: Setting, bundle: Bundle) -> Figures:
    compiler = GrammarCompiler(bundle.tokenizer, bundle.template)
    text = compiler.json_schema(TEXT)
    figures: Figures = {}
    for num_threads in (1, 2):
        engine = NativeEngine(bundle, num_threads=num_threads)
        step_seconds(engine, {"guided": text, "plain": None}, 4)
        found = [step_seconds(engine, {"guided": text, "plain": None}, setting.answer_tokens) for _ in range(setting.starts)]
        guided, plain = ([each for seconds in found for each in seconds[name]] for name in ("guided", "plain"))
        end = "" if num_threads == 1 else f"_{num_threads}_threads"
        figures[f"mask_overlap{end}"] = rounded(median(guided) / median(plain), 4)
    return figures | tool_calls(setting)


def step_seconds(engine: Engine, grammars: dict[str, Grammar | None], num_tokens: int) -> dict[str, list[float]]:
    """Seconds of tokens that were chosen, each after a step of one token; the answers alternate."""
    sequences = {name: engine.new_sequence() for name in grammars}
    answers = {
        name: generate(
            engine,
            sequences[name],
            tokens_of(_OPENING),
            sampling=GreedyConfig(),
            stop_tokens=(),
            max_tokens=num_tokens,
            grammar=grammar,
        )
        for name, grammar in grammars.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in grammars}
    was_chosen = dict.fromkeys(grammars, False)
    for _ in range(num_tokens):
        for name, answer in answers.items():
            started = perf_counter()
            event = next(answer)
            if was_chosen[name] and not event.is_forced:
                seconds[name].append(perf_counter() - started)
            was_chosen[name] = not event.is_forced
    for sequence in sequences.values():
        engine.close(sequence)
    return seconds


def tool_calls(setting: Setting) -> Figures:
    bundle = open_bundle("nano")
    engine = NativeEngine(bundle, num_threads=1)
    tool = ToolDefinition(name="get_weather_forecast", description="The weather of coming days", parameters=PLACE)
    schema: dict[str, Any] = tool_calls_schema([tool]) | {"minItems": 2, "maxItems": 2}
    grammar = GrammarCompiler(bundle.tokenizer, bundle.template).answer(calls_schema=schema, must_call=True)
    guided_s, plain_s, share, most = [], [], [], 400
    for seed in range(setting.rounds):
        choice = RandomConfig(seed=seed)
        sequence = engine.new_sequence()
        answer = generate(
            engine, sequence, tokens_of(_OPENING), sampling=choice, stop_tokens=(), max_tokens=most, grammar=grammar
        )
        num_tokens = sum(1 for _ in answer)
        guided_s.append(answer.summary.total_s)
        share.append(answer.summary.num_target_steps / num_tokens)
        engine.close(sequence)
        sequence = engine.new_sequence()
        plain = generate(engine, sequence, tokens_of(_OPENING), sampling=choice, stop_tokens=(), max_tokens=num_tokens)
        assert sum(1 for _ in plain) == num_tokens
        plain_s.append(plain.summary.total_s)
        engine.close(sequence)
    return {
        "tool_call_steps": rounded(median(share)),
        "tool_call_time": rounded(sum(guided_s) / sum(plain_s)),
    }
