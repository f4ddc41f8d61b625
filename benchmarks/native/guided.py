"""Guided decoding beside plain decoding at the same depth, and the steps that a grammar saves.

`mask_overlap` is a step of guided decoding to a step of plain decoding, both by `generate`, in turns, by the clock: JSON
with a long text, in which nearly every token is a choice of its own and its mask is not trivial. The medians of steps that
fed one token are compared, so that forced tokens, which make a step longer and the answer shorter, do not hide in it.

`tool_call_steps` is the number of steps of an answer that calls tools to the number of its tokens, of which unguided
decoding takes one step each: names, brackets and keys are forced. `tool_call_time` is its time to that of decoding as many
tokens plainly. Both with the shipped nano model and its tokenizer, one thread: a random model's would not be those of JSON.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from measuring import Figures, Setting, median, rounded
from ours import tokens_of

from openafm.bundle import Bundle, open_bundle
from openafm.runtime.engine import Engine
from openafm.runtime.generation import generate
from openafm.runtime.grammar import Grammar, GrammarCompiler
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.sampling import GreedyConfig, RandomConfig, SamplingConfig
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
        guided, plain = [], []
        for number in range(-1, max(1, setting.rounds // 2)):
            for seconds, grammar in ((guided, text), (plain, None)):
                found = step_seconds(engine, grammar, GreedyConfig(), setting.answer_tokens // 2)
                if number >= 0:
                    seconds += found
        end = "" if num_threads == 1 else f"_{num_threads}_threads"
        figures[f"mask_overlap{end}"] = rounded(median(guided) / median(plain), 4)
    return figures | tool_calls(setting)


def step_seconds(engine: Engine, grammar: Grammar | None, choice: SamplingConfig, num_tokens: int) -> list[float]:
    """Seconds between tokens that were chosen, each with a step of its own."""
    sequence = engine.new_sequence()
    answer = generate(
        engine,
        sequence,
        tokens_of(_OPENING),
        sampling=choice,
        stop_tokens=(),
        max_tokens=num_tokens,
        grammar=grammar,
    )
    seconds: list[float] = []
    last, was_chosen = perf_counter(), False
    for event in answer:
        now = perf_counter()
        if was_chosen and not event.is_forced:
            seconds.append(now - last)
        last, was_chosen = now, not event.is_forced
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
