"""Generation: the tokens of a plain loop, exact sequences afterwards, and every kind of end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
from collections.abc import Sequence as List

import jsonschema
import numpy as np
import pytest
import torch
from tiny_engines import CONFIGS
from tiny_tokenizer import TOKENIZER

from openafm.runtime.batching.admission import PREFILL_CHUNK
from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.decoding.generation import Generation, GenerationRunningError, generate
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.prefill import prefill
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.engines.base import ContextWindowError, Engine, Sequence, SequenceError, TokenError
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import SPECIAL_TOKEN_IDS, SPECIAL_TOKENS
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.tool_calls import tool_calls_schema

STOP = SPECIAL_TOKENS.turn_end
CALLS = SPECIAL_TOKEN_IDS["<|tool_calls|>"]
CONTEXT_LENGTH = 1400
COMPILER = GrammarCompiler(TOKENIZER)
EVENT = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 8},
        "date": {"type": "string", "format": "date"},
        "temperature": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["celsius", "kelvin"]},
        "guests": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["title", "date", "temperature", "unit", "guests"],
    "additionalProperties": False,
}
PROMPT = TOKENIZER.encode("the meeting starts at noon")
TOOL = ToolDefinition(name="ring", description="Rings.", parameters={"type": "object", "properties": {}})
CALLS_SCHEMA = tool_calls_schema([TOOL])


class CountingEngine(TorchEngine):
    """Counts steps and fails at step `fails_at`."""

    num_steps = 0
    fails_at = -1

    def forward(self, chunks: List[TokenChunk]) -> list[np.ndarray]:
        if self.num_steps == self.fails_at:
            raise MemoryError
        self.num_steps += 1
        return super().forward(chunks)


@functools.cache
def decoder() -> torch.nn.Module:
    torch.set_num_threads(1)
    config = dataclasses.replace(CONFIGS["shared"], vocab_size=TOKENIZER.vocab_size + 7, context_length=CONTEXT_LENGTH)
    model = config.build(seed=11)
    with torch.no_grad():
        model.embedding.normal_(std=0.4, generator=torch.Generator().manual_seed(1))
    return model


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine(decoder())


def plain_loop(
    engine: Engine, sequence: Sequence, sampling: SamplingConfig, grammar: Grammar | None, most: int
) -> list[int]:
    """Return the tokens of a loop with one step and one mask for each token."""
    sampler, matcher, tokens = sampling.build(), grammar.matcher() if grammar else None, list[int]()
    (logits_V,) = engine.step([(sequence, PROMPT)])
    while len(tokens) < most and tokens[-1:] != [STOP]:
        if matcher:
            matcher.apply(logits_V)
        tokens.append(sampler.sample(logits_V, len(tokens)))
        if matcher:
            matcher.accept(tokens[-1:])
        (logits_V,) = engine.step([(sequence, tokens[-1:])])
    return tokens


def started(engine: Engine, **options: object) -> tuple[Sequence, Generation]:
    sequence = engine.new_sequence()
    settings = {"sampling": GreedyConfig(), "stop_tokens": {STOP}} | options
    return sequence, generate(engine, sequence, settings.pop("prompt_tokens", PROMPT), **settings)


def assert_holds(engine: Engine, sequence: Sequence, tokens: list[int]) -> None:
    """Check that the sequence continues as a fresh one with the same tokens does."""
    assert sequence.length == len(tokens)
    fresh = engine.new_sequence()
    (expected_V,) = engine.step([(fresh, [*tokens, 70])])
    (actual_V,) = engine.step([(sequence, [70])])
    assert np.abs(actual_V - expected_V).max() < 1e-5 * max(1, np.abs(expected_V).max())


SAMPLINGS = [
    GreedyConfig(),
    *(RandomConfig(seed=seed, temperature=1.5) for seed in range(2)),
    RandomConfig(seed=9, top_k=20, top_p=0.8),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_feeding_forced_tokens_together_changes_no_token(engine: CountingEngine, sampling: SamplingConfig) -> None:
    grammar = COMPILER.json_schema(EVENT)
    expected = plain_loop(engine, engine.new_sequence(), sampling, grammar, 300)
    engine.num_steps = 0
    sequence, generation = started(engine, sampling=sampling, grammar=grammar, max_tokens=300)
    events = list(generation)
    assert [event.token for event in events] == expected
    summary = generation.summary
    assert summary.finish == "stop"
    assert summary.num_target_steps == engine.num_steps
    assert summary.num_forced_tokens == sum(event.is_forced for event in events)
    # Every step but the prefill feeds one sampled token and the tokens forced after it.
    assert summary.num_target_steps == 1 + summary.num_tokens - summary.num_forced_tokens
    assert summary.num_forced_tokens > 0.25 * summary.num_tokens
    jsonschema.validate(json.loads(TOKENIZER.decode([event.token for event in events])), EVENT)
    assert_holds(engine, sequence, PROMPT + expected)


@pytest.mark.parametrize("sampling", [GreedyConfig(), RandomConfig(seed=3), RandomConfig(seed=4, top_k=3)], ids=str)
@pytest.mark.parametrize("grammar", [None, COMPILER.text()], ids=["free", "text"])
def test_free_text_equals_the_plain_loop(engine: CountingEngine, sampling: SamplingConfig, grammar: Grammar | None) -> None:
    expected = plain_loop(engine, engine.new_sequence(), sampling, grammar, 60)
    sequence, generation = started(engine, sampling=sampling, grammar=grammar, max_tokens=60)
    tokens = [event.token for event in generation]
    assert tokens[:60] == expected[:60]
    assert generation.summary.finish == ("stop" if tokens[-1] == STOP else "length")
    assert_holds(engine, sequence, PROMPT + tokens)


def test_the_same_seed_gives_the_same_answer_and_another_another(engine: CountingEngine) -> None:
    answers = []
    for seed in (1, 1, 2, None, None):
        _, generation = started(engine, sampling=RandomConfig(seed=seed), grammar=COMPILER.text(), max_tokens=20)
        answers.append(tuple(event.token for event in generation))
    assert answers[0] == answers[1]
    assert len(set(answers)) == 4


def test_a_truncated_structure_ends_by_length(engine: CountingEngine) -> None:
    whole = [event.token for event in started(engine, grammar=COMPILER.json_schema(EVENT))[1]]
    for most in (1, 2, 5, 11, *range(len(whole) - 4, len(whole))):
        sequence, generation = started(engine, grammar=COMPILER.json_schema(EVENT), max_tokens=most)
        tokens = [event.token for event in generation]
        cut = most < len(whole) - 1  # the stop token does not count
        assert generation.summary.finish == ("length" if cut else "stop")
        assert tokens == (whole[:most] if cut else whole)
        assert sequence.length == len(PROMPT) + len(tokens)


def test_a_fully_forced_answer_needs_only_the_prefill(engine: CountingEngine) -> None:
    sequence, generation = started(engine, grammar=COMPILER.json_schema({"const": ["title", "celsius"]}))
    tokens = [event.token for event in generation]
    assert tokens == [*TOKENIZER.encode('["title","celsius"]'), STOP]
    summary = generation.summary
    assert (summary.finish, summary.num_target_steps, summary.num_forced_tokens) == ("stop", 1, len(tokens))
    assert_holds(engine, sequence, PROMPT + tokens)


def test_cancelling_between_steps_keeps_the_tokens_so_far(engine: CountingEngine) -> None:
    seen: list[int] = []
    sequence, generation = started(
        engine, grammar=COMPILER.text(), cancelled=lambda: len(seen) >= 5, sampling=RandomConfig(seed=1)
    )
    for event in generation:
        seen.append(event.token)
    assert generation.summary.finish == "cancelled"
    assert len(seen) == 5
    assert_holds(engine, sequence, PROMPT + seen)


def test_cancelling_during_the_prefill_restores_the_sequence(engine: CountingEngine) -> None:
    sequence = engine.new_sequence()
    engine.step([(sequence, PROMPT)])
    asked = iter([False, False, True])
    prompt = PROMPT * 1000
    prompt = prompt[: 2 * PREFILL_CHUNK + 10]
    generation = generate(
        engine, sequence, prompt, sampling=GreedyConfig(), stop_tokens={STOP}, cancelled=lambda: next(asked),
        grammar=COMPILER.json_schema(EVENT),
    )  # fmt: skip
    assert list(generation) == []
    summary = generation.summary
    assert (summary.finish, summary.num_tokens, summary.time_to_first_token_s) == ("cancelled", 0, None)
    assert_holds(engine, sequence, PROMPT)


def test_prefill_in_chunks_equals_one_step(engine: CountingEngine) -> None:
    tokens = (PROMPT * 1000)[: 2 * PREFILL_CHUNK + 3]
    logits_V = prefill(engine, sequence := engine.new_sequence(), tokens)
    assert engine.num_steps == 3
    (expected_V,) = engine.step([(engine.new_sequence(), tokens)])
    assert logits_V is not None
    assert np.abs(logits_V - expected_V).max() < 1e-5 * max(1, np.abs(expected_V).max())
    assert sequence.length == len(tokens)


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_a_failing_step_restores_the_sequence(engine: CountingEngine, fails_at: int) -> None:
    sequence = engine.new_sequence()
    engine.step([(sequence, PROMPT[:2])])
    engine.num_steps, engine.fails_at = 0, fails_at
    generation = generate(
        engine, sequence, PROMPT, sampling=GreedyConfig(), stop_tokens={STOP}, grammar=COMPILER.json_schema(EVENT)
    )
    with pytest.raises(MemoryError):
        list(generation)
    with pytest.raises(GenerationRunningError):
        _ = generation.summary
    engine.fails_at = -1
    assert_holds(engine, sequence, PROMPT[:2])


def test_closing_a_generation_restores_the_sequence(engine: CountingEngine) -> None:
    sequence, generation = started(engine, grammar=COMPILER.text(), sampling=RandomConfig(seed=1))
    next(generation)
    next(generation)
    with pytest.raises(GenerationRunningError):
        _ = generation.summary
    generation.close()
    assert sequence.length == 0
    assert next(generation, None) is None


def test_closing_the_sequence_during_generation_raises(engine: CountingEngine) -> None:
    sequence, generation = started(engine, grammar=COMPILER.text(), sampling=RandomConfig(seed=1))
    next(generation)
    engine.close(sequence)
    with pytest.raises(SequenceError):
        list(generation)


def test_a_prompt_that_does_not_fit_raises_before_any_step(engine: CountingEngine) -> None:
    prompt = [70] * CONTEXT_LENGTH
    with pytest.raises(ContextWindowError) as caught:
        started(engine, prompt_tokens=prompt)
    assert (caught.value.token_count, caught.value.context_length) == (CONTEXT_LENGTH + 1, CONTEXT_LENGTH)
    with pytest.raises(ContextWindowError):
        prefill(engine, engine.new_sequence(), [*prompt, 70])
    assert engine.num_steps == 0
    with pytest.raises(TokenError):
        started(engine, prompt_tokens=[])
    with pytest.raises(TokenError):
        prefill(engine, engine.new_sequence(), [])


def test_an_answer_that_reaches_the_context_window_raises(engine: CountingEngine) -> None:
    prompt = [70] * (CONTEXT_LENGTH - 6)
    schema = COMPILER.json_schema({"type": "string", "minLength": 50})
    sequence, generation = started(engine, prompt_tokens=prompt, grammar=schema)
    seen = []
    with pytest.raises(ContextWindowError) as caught:
        for event in generation:
            seen.append(event)
    assert (len(seen), caught.value.token_count) == (6, CONTEXT_LENGTH + 1)
    assert sequence.length == 0
    sequence, generation = started(engine, prompt_tokens=prompt, grammar=schema, max_tokens=6)
    assert len(list(generation)) == 6
    assert generation.summary.finish == "length"
    assert sequence.length == CONTEXT_LENGTH


def test_grammars_forbid_ids_beyond_the_tokenizer(engine: CountingEngine) -> None:
    for seed in range(5):
        _, generation = started(
            engine, grammar=COMPILER.text(), sampling=RandomConfig(seed=seed, temperature=50.0), max_tokens=30
        )
        assert all(event.token < TOKENIZER.vocab_size for event in generation)


def test_dropping_a_generation_restores_the_sequence_immediately(engine: CountingEngine) -> None:
    sequence = engine.new_sequence()
    gc.disable()  # a collection would close the generation later
    try:
        generation = generate(engine, sequence, PROMPT, sampling=GreedyConfig(), stop_tokens=())
        next(generation)
        del generation
        assert sequence.length == 0
        engine.step([(sequence, [7, 8])])
    finally:
        gc.enable()
    gc.collect()
    assert list(sequence.tokens) == [7, 8]


class OpeningEngine(TorchEngine):
    """Gives tool calls a probability after a prompt, texts and JSON the rest, and an unused row of the model most of all."""

    calls = 0.0
    json = 0.05

    def forward(self, chunks: List[TokenChunk]) -> list[np.ndarray]:
        logits = super().forward(chunks)
        openings = [CALLS, *(TOKENIZER.encode(text)[0] for text in ("a", "b", "{")), TOKENIZER.vocab_size + 2]
        texts = (1 - self.calls - self.json) / 2
        for logits_V in logits:
            logits_V[:] = -40
            logits_V[..., openings] = np.log([self.calls, texts, texts, self.json, 9])
        return logits


def opening(engine: Engine, grammar: Grammar, sampling: SamplingConfig, **values: object) -> int:
    """Return the first token of an answer."""
    with contextlib.closing(
        generate(
            engine,
            engine.new_sequence(),
            PROMPT,
            sampling=sampling,
            stop_tokens=[STOP],
            max_tokens=1,
            grammar=grammar,
            **values,
        )
    ) as generation:
        return next(generation).token


@pytest.mark.parametrize(("probability", "calls"), [(0.4, False), (0.49, False), (0.51, True)])
def test_greedy_answers_call_tools_if_calls_are_likelier_than_all_texts(probability: float, calls: bool) -> None:
    engine = OpeningEngine(decoder())
    engine.calls = probability
    either, must_call = COMPILER.answer(None, CALLS_SCHEMA), COMPILER.answer(None, CALLS_SCHEMA, must_call=True)
    assert (opening(engine, either, GreedyConfig()) == CALLS) == calls
    assert (opening(engine, either, GreedyConfig(), log_probabilities=True) == CALLS) == calls
    assert opening(engine, must_call, GreedyConfig()) == CALLS
    drawn = [opening(engine, either, RandomConfig(seed=seed)) == CALLS for seed in range(60)]
    assert abs(sum(drawn) / 60 - probability) < 0.2


def test_calls_beside_json_need_no_more_than_it() -> None:
    engine = OpeningEngine(decoder())
    engine.calls = 0.2
    either = COMPILER.answer(EVENT, CALLS_SCHEMA)
    assert opening(engine, either, GreedyConfig()) == CALLS
    engine.json = 0.3
    assert opening(engine, either, GreedyConfig()) != CALLS
