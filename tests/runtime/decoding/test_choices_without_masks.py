"""Choices that need no mask, ends that are not computed again: answers are the same as with all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_tokenizer import TOKENIZER

from openafm.runtime.decoding import sampling
from openafm.runtime.decoding.closing import Closer
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.matcher import Matcher
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.native.library import native_library

COMPILER = GrammarCompiler(TOKENIZER)
VOCABULARY = TOKENIZER.vocab_size
LONG_ENDS = [id for id in range(VOCABULARY) if set(TOKENIZER.token_bytes(id)) & set(b'"]}')]
KINDS = {
    "anyOf": [
        {"type": "object", "properties": {"kind": {"const": "a"}, "size": {"type": "integer"}}, "required": ["kind"]},
        {
            "type": "object",
            "properties": {
                "kind": {"type": "string"},
                "names": {"type": "array", "items": {"type": "string"}, "minItems": 2},
            },
            "required": ["kind", "names"],
        },
    ]
}
NOTE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 2, "maxLength": 30},
        "tags": {"type": "array", "items": {"type": "string"}},
        "level": {"enum": ["low", "high"]},
    },
    "required": ["title", "tags", "level"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "note": NOTE,
    "kinds": KINDS,
    "list": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}
SETTINGS = {
    "greedy": GreedyConfig(),
    "random": RandomConfig(seed=3),
    "cold": RandomConfig(seed=4, temperature=0.3),
    "nucleus": RandomConfig(seed=5, top_p=0.9),
}


def logits_of(chooser: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float32]]:
    logits_V = (3 * chooser.standard_normal(VOCABULARY + 7)).astype(np.float32)
    logits_V[LONG_ENDS] -= 6
    return logits_V


def answer(grammar: Grammar, config: SamplingConfig, seed: int) -> tuple[list[int], bool]:
    """Return an answer and whether its end was forced, all masks computed."""
    matcher, sampler, chooser, tokens = grammar.matcher(60), config.build(), np.random.default_rng(seed), list[int]()
    while not matcher.has_stopped:
        logits_V = logits_of(chooser)
        matcher.apply(logits_V)
        tokens.append(sampler.sample(logits_V, len(tokens)))
        matcher.accept(tokens[-1:])
    return tokens, matcher.is_closed


def short_answer(grammar: Grammar, config: SamplingConfig, seed: int) -> tuple[list[int], bool, int]:
    """Return the same, and the number of choices without a mask."""
    matcher, sampler, chooser, tokens = grammar.matcher(60), config.build(), np.random.default_rng(seed), list[int]()
    num_short = 0
    while not matcher.has_stopped:
        logits_V = logits_of(chooser)
        token = None
        if not matcher.forced():
            token = sampler.sample_allowed(logits_V[:VOCABULARY], len(tokens), matcher.allows)
        num_short += token is not None
        if token is None:
            matcher.apply(logits_V)
            token = sampler.sample(logits_V, len(tokens))
        tokens.append(token)
        matcher.accept([token])
    return tokens, matcher.is_closed, num_short


@pytest.mark.parametrize("schema", SCHEMAS)
def test_answers_are_the_same_without_masks_and_with_known_ends(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    grammar, num_short, num_closed = COMPILER.json_schema(SCHEMAS[schema]), 0, 0
    found = [short_answer(grammar, config, seed) for seed, config in enumerate(SETTINGS.values())]
    monkeypatch.setattr(sampling, "loaded_race", lambda: None)
    monkeypatch.setattr(Closer, "_continued", lambda *arguments: None)
    monkeypatch.setattr(Matcher, "_has_choice", lambda self: False)
    monkeypatch.setattr(Matcher, "_first_end", lambda *arguments: None)
    expected = [answer(grammar, config, seed) for seed, config in enumerate(SETTINGS.values())]
    for (tokens, is_closed, short), other in zip(found, expected, strict=True):
        assert (tokens, is_closed) == other
        num_short, num_closed = num_short + short, num_closed + is_closed
    assert num_short > 0
    assert num_closed > 0


def test_known_ends_are_those_that_are_computed() -> None:
    matcher, known = COMPILER.json_schema(SCHEMAS["list"]).matcher(), None
    closer = Closer(TOKENIZER, matcher._stop)
    for token in TOKENIZER.encode('[{"name":"x"},{"name":"a longer \\" name"},{"name":""}'):
        matcher.accept([token])
        found = closer.due_end(matcher._matcher, matcher._accepted, 200, known)
        computed = closer.due_end(matcher._matcher, matcher._accepted, 200)
        assert found == computed
        known = found.known


def test_answers_of_a_grammar_share_the_end_from_their_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    compute = Closer.due_end

    def counted(self: Closer, matcher: Any, accepted: list[int], most: int, known: Any = None) -> Any:
        computed.append(most)
        return compute(self, matcher, accepted, most, known)

    monkeypatch.setattr(Closer, "due_end", counted)
    shared, counts = GrammarCompiler(TOKENIZER).json_schema(SCHEMAS["list"]), list[int]()
    for limit in (4, 24, 90, 4, 24, 90):
        alone, matcher = (each.matcher(limit) for each in (GrammarCompiler(TOKENIZER).json_schema(SCHEMAS["list"]), shared))
        alone.accept(alone.forced())
        computed.clear()
        matcher.accept(matcher.forced())
        counts.append(len(computed))
        assert (matcher.forced(), matcher.is_closed) == (alone.forced(), alone.is_closed)
    assert counts == [1, 1, 1, 0, 0, 0]


def test_ends_are_not_computed_again_inside_of_a_string(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    compute = Closer._end

    def counted(self: Closer, matcher: Any, accepted: list[int], most: int, *, adds_item: bool) -> Any:
        ends.append(len(accepted))
        return compute(self, matcher, accepted, most, adds_item=adds_item)

    monkeypatch.setattr(Closer, "_end", counted)
    matcher = COMPILER.json_schema(NOTE).matcher(100)
    while not matcher.allows(TOKENIZER.encode("x")[0]):
        matcher.accept(matcher.forced() or TOKENIZER.encode('"')[:1])
    num_before = len(ends)
    for _ in range(20):
        matcher.accept(TOKENIZER.encode("x"))
    assert len(ends) <= num_before + 2, "one end for the shortest title, one beyond it"


def test_one_token_is_allowed_as_in_the_mask() -> None:
    matcher, chooser = COMPILER.json_schema(KINDS).matcher(60), np.random.default_rng(1)
    for _ in range(12):
        mask_V = matcher.mask()
        assert [matcher.allows(token) for token in range(VOCABULARY)] == mask_V.tolist()
        matcher.accept([int(chooser.choice(np.flatnonzero(mask_V)))])


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 700, 5000])
def test_the_native_choice_is_that_of_numpy(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    draw = np.random.default_rng(vocab_size)
    rows, samplers = [], []
    for scale in (0.0, 0.1, 3.0, 200.0):
        for temperature in (0.01, 1.0, 8.0):
            logits_V = (draw.standard_normal(vocab_size) * scale).astype(np.float32)
            logits_V[1:8] = -np.inf
            rows.append(logits_V)
            samplers.append(RandomConfig(temperature=temperature, seed=len(rows)).build())
    greedy = GreedyConfig().build()
    positions = range(8)
    found = [[each.sample(row, at) for at in positions] for each, row in zip(samplers, rows, strict=True)]
    highest = [greedy.sample(row, 0) for row in rows]
    monkeypatch.setattr(sampling, "loaded_race", lambda: None)
    assert found == [[each.sample(row, at) for at in positions] for each, row in zip(samplers, rows, strict=True)]
    assert highest == [int(row.argmax()) for row in rows]


def test_a_number_is_mixed_as_in_arrays() -> None:
    for number in (0, 1, 2**63 + 12345, 2**64 - 1):
        assert sampling._mixed_int(number) == int(sampling.mixed(np.array([number], np.uint64))[0])


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_logits_are_left_to_the_masked_choice(broken: float) -> None:
    native_library()
    logits_V = np.zeros(40, np.float32)
    logits_V[3:] = broken
    if broken == -np.inf:
        logits_V[:] = broken
    for config in (GreedyConfig(), RandomConfig(seed=1)):
        assert config.build().sample_allowed(logits_V, 0, lambda token: True) is None
        with pytest.raises(sampling.BrokenLogitsError):
            config.build().sample(logits_V, 0)
