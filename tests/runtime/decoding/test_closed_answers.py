"""Answers that reach their token limit: closed in ways that the schema allows, for any logits."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from tiny_tokenizer import TOKENIZER

from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.matcher import Matcher
from openafm.tokenizer.bpe import SPECIAL_TOKENS

COMPILER = GrammarCompiler(TOKENIZER)
STOP = SPECIAL_TOKENS.turn_end
ENDS = [id for id in range(TOKENIZER.vocab_size) if set(TOKENIZER.token_bytes(id)) & set(b'"]}')]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 3}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "list": {"type": "array", "items": {"type": "string"}},
    "nested": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2}, "minItems": 1},
    "objects": {"type": "object", "properties": {"people": {"type": "array", "items": PERSON}}, "required": ["people"]},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
    "pattern": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+@[a-z]+[.]com$"}},
    "union": {"anyOf": [PERSON, {"type": "array", "items": {"anyOf": [PERSON, {"type": "number"}, {"type": "null"}]}}]},
    "dates": {"type": "array", "items": {"type": "string", "format": "date-time"}, "minItems": 1},
    "any": {},
    "text": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]},
}


def answer(matcher: Matcher, seed: int, most: int) -> list[int]:
    """Return an answer of random logits that rarely close anything, at most `most` tokens and the stop token."""
    chooser, tokens = np.random.default_rng(seed), list[int]()
    while len(tokens) <= most and not matcher.has_stopped:
        logits_V = chooser.normal(size=TOKENIZER.vocab_size).astype(np.float32)
        logits_V[ENDS] -= 8
        logits_V[STOP] = -20
        matcher.apply(logits_V)
        tokens.append(int(logits_V.argmax()))
        matcher.accept(tokens[-1:])
    return tokens


@pytest.mark.parametrize("max_tokens", [48, 120])
@pytest.mark.parametrize("name", SCHEMAS)
def test_an_answer_at_its_limit_satisfies_the_schema(name: str, max_tokens: int) -> None:
    grammar, closed = COMPILER.json_schema(SCHEMAS[name]), 0
    for seed in range(3):
        matcher = grammar.matcher(max_tokens)
        tokens = answer(matcher, seed, max_tokens)
        assert tokens[-1] == STOP
        jsonschema.validate(json.loads(TOKENIZER.decode(tokens)), SCHEMAS[name])
        assert len(tokens) <= max_tokens + 1
        closed += matcher.is_closed
    assert closed or name in ("dates", "any"), "all ended by chance"


def test_an_answer_below_its_limit_is_unchanged() -> None:
    grammar = COMPILER.json_schema(
        PERSON | {"properties": {"name": {"maxLength": 9, "type": "string"}}, "required": ["name"]}
    )
    for seed in range(4):
        assert answer(grammar.matcher(400), seed, 400) == answer(grammar.matcher(), seed, 400)


def test_without_a_limit_nothing_is_closed() -> None:
    matcher = COMPILER.json_schema(SCHEMAS["string"]).matcher()
    assert STOP not in answer(matcher, 0, 300)
    assert not matcher.is_closed


def test_a_limit_below_the_shortest_answer_closes_nothing() -> None:
    matcher = COMPILER.json_schema(SCHEMAS["objects"]).matcher(3)
    answer(matcher, 0, 12)
    assert not matcher.is_closed


def test_the_end_is_taken_back_with_its_tokens() -> None:
    grammar = COMPILER.json_schema(SCHEMAS["list"])
    matcher = grammar.matcher(60)
    tokens = answer(matcher, 2, 60)
    assert matcher.is_closed
    matcher.rollback(len(tokens) - 2)
    assert not matcher.is_closed
    matcher.accept(tokens[2:])
    assert matcher.is_closed
    assert matcher.fork().is_closed
