"""Grammars: valid answers for any logits, forced tokens, and errors that raise."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from tiny_tokenizer import TOKENIZER, accepts, llguidance_matcher

from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.matcher import GrammarError, IllegalTokenError, Matcher
from openafm.runtime.decoding.sampling import BrokenLogitsError, GreedyConfig, RandomConfig
from openafm.tokenizer.bpe import SPECIAL_TOKENS
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.schema_text import compact_json
from openafm.tokenizer.tool_calls import parse_tool_calls, tool_calls_schema

COMPILER = GrammarCompiler(TOKENIZER)
STOP = SPECIAL_TOKENS.turn_end
EVENT = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "date": {"type": "string", "format": "date"},
        "guests": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        "open": {"type": "boolean"},
    },
    "required": ["title", "date", "guests", "open"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 3},
                "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
            },
            "required": ["name", "below"],
            "additionalProperties": False,
        }
    },
}
TOOLS = (
    ToolDefinition(
        name="weather",
        description="Weather of a city",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["celsius", "kelvin"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    ToolDefinition(name="grow", description="Grow a tree", parameters=TREE),
)
BITS = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}
OPTIONAL = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "additionalProperties": False}
SCHEMAS: dict[str, dict[str, Any]] = {
    "event": EVENT,
    "tree": TREE,
    "tool calls": tool_calls_schema(TOOLS),
    "string": {"type": "string", "minLength": 1, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[A-Z][a-z]{2,5}( [0-9]+)?$"},
    "enum": {"enum": ["open", "closed", 'it\'s "open"', "ünï\n", "<|turn_end|>", 3, None, {"a": [1]}]},
    "integer": {"type": "integer", "minimum": -7, "maximum": 1200},
    "number": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2},
    "optional": OPTIONAL,
    "map": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}},
    "union": {"anyOf": [EVENT, BITS, {"type": "null"}]},
    "moment": {"type": "array", "items": {"type": "string", "format": "date-time"}, "minItems": 1, "maxItems": 2},
    "anything": {},
}


def random_answer(grammar: Grammar, seed: int) -> tuple[list[int], Matcher]:
    """Return a random answer whose closing tokens become more likely over time."""
    generator = np.random.default_rng(seed)
    sampler = RandomConfig(seed=seed).build()
    closing_V = np.array([sum(c in b'"]}' for c in TOKENIZER.token_bytes(id)) for id in range(TOKENIZER.vocab_size)])
    closing_V[STOP] = 2
    matcher, tokens = grammar.matcher(), list[int]()
    while not tokens or tokens[-1] != STOP:
        logits_V = generator.normal(scale=2, size=TOKENIZER.vocab_size + 5).astype(np.float32)
        logits_V[: TOKENIZER.vocab_size] += (closing_V * len(tokens) / 10).astype(np.float32)
        matcher.apply(logits_V)
        assert not np.isfinite(logits_V[TOKENIZER.vocab_size :]).any()
        tokens.append(sampler.sample(logits_V, len(tokens)))
        matcher.accept(tokens[-1:])
        assert len(tokens) < 1500
    return tokens, matcher


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_logits_give_a_valid_compact_answer(name: str) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for seed in range(12):
        tokens, matcher = random_answer(COMPILER.json_schema(schema), seed)
        assert matcher.must_stop
        assert matcher.forced() == ()
        text = TOKENIZER.decode_bytes(tokens).decode()
        value = json.loads(text)
        validator.validate(value)
        if name not in ("integer", "number", "anything", "map"):  # numbers have many spellings, and names may come twice
            assert compact_json(value) == text
        assert not any(character < " " for character in json.dumps(value, ensure_ascii=False))


def test_forced_tokens_are_the_tokenizers() -> None:
    schema = {
        "type": "object",
        "properties": {"temperature": {"const": 20}},
        "required": ["temperature"],
        "additionalProperties": False,
    }
    matcher = COMPILER.json_schema(schema).matcher()
    tokens = [*TOKENIZER.encode('{"temperature":20}'), STOP]
    taken: list[int] = []
    while forced := matcher.forced():
        taken += forced
        matcher.accept(forced)
    assert taken == tokens
    assert matcher.must_stop


def test_most_tokens_of_an_answer_are_forced() -> None:
    matcher = COMPILER.json_schema(EVENT).matcher()
    text = compact_json({"title": "noon", "date": "2024-02-29", "guests": ["a"], "open": True})
    tokens, forced = [*TOKENIZER.encode(text), STOP], 0
    for token in tokens:
        forced += bool(matcher.forced())
        matcher.accept([token])
    assert forced > 0.4 * len(tokens)


def test_rollback_restores_masks_and_forced_tokens() -> None:
    grammar = COMPILER.json_schema(EVENT)
    tokens, matcher = random_answer(grammar, seed=5)
    masks, replayed = [], grammar.matcher()
    for token in tokens:
        masks.append((replayed.mask(), replayed.forced(), replayed.may_stop, replayed.must_stop))
        replayed.accept([token])
    for position in reversed(range(len(tokens))):
        matcher.rollback(1)
        mask, forced, may_stop, must_stop = masks[position]
        assert (matcher.mask() == mask).all()
        assert (matcher.forced(), matcher.may_stop, matcher.must_stop) == (forced, may_stop, must_stop)
    matcher.accept(tokens)
    with pytest.raises(IllegalTokenError):
        matcher.rollback(len(tokens) + 1)
    matcher.rollback(len(tokens))
    assert (matcher.mask() == masks[0][0]).all()


def test_a_run_with_an_illegal_token_raises_and_accepts_nothing() -> None:
    matcher = COMPILER.json_schema(EVENT).matcher()
    before = matcher.mask()
    legal = list(matcher.forced())
    for wrong in (SPECIAL_TOKENS.eos, SPECIAL_TOKENS.user, STOP, TOKENIZER.encode("[")[0]):
        with pytest.raises(IllegalTokenError):
            matcher.accept([*legal, wrong])
        assert (matcher.mask() == before).all()
    matcher.accept(legal)
    for done in (legal, []):
        assert matcher.forced() != done


def test_after_the_stop_token_nothing_is_accepted() -> None:
    matcher = COMPILER.json_schema({"type": "null"}).matcher()
    matcher.accept([*TOKENIZER.encode("null"), STOP])
    assert matcher.must_stop
    assert matcher.forced() == ()
    for token in (STOP, TOKENIZER.encode("n")[0]):
        with pytest.raises(IllegalTokenError):
            matcher.accept([token])


def test_text_is_utf8_without_special_tokens() -> None:
    grammar = COMPILER.text()
    mask = grammar.matcher().mask()
    assert mask[STOP]
    assert not mask[: SPECIAL_TOKENS.image_end + 1][np.arange(SPECIAL_TOKENS.image_end + 1) != STOP].any()
    for text in ("", "hello\n\tworld", "ünï 👍 <|turn_end|>", "\x00"):
        assert accepts(grammar, text)
    for data in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"a\x80"):
        assert not accepts(grammar, data)
    for seed in range(5):
        tokens, _ = random_answer(grammar, seed)
        TOKENIZER.decode_bytes(tokens).decode()


def test_text_allows_the_tokens_that_llguidance_allows() -> None:
    import llguidance

    random = np.random.default_rng(0)
    reference = llguidance.LLMatcher(COMPILER._ll_tokenizer, "start: /(?s:.*)/", log_level=0)
    text, size = llguidance_matcher(COMPILER.text()), TOKENIZER.vocab_size
    states = set()
    for step in range(600):
        masks = [
            np.unpackbits(np.frombuffer(each.compute_bitmask(), np.uint8), count=size, bitorder="little")
            for each in (reference, text)
        ]
        assert np.array_equal(*masks)
        assert reference.is_accepting() == text.is_accepting()
        assert reference.is_stopped() == text.is_stopped()
        assert reference.compute_ff_tokens() == text.compute_ff_tokens() == []
        allowed = [int(token) for token in np.flatnonzero(masks[0]) if token != STOP]
        states.add(len(allowed))
        inside = [token for token in allowed if not TOKENIZER.decode_bytes([token]).isascii()]
        token = int(random.choice(inside if inside and step % 4 else allowed))
        sequence = [token, int(random.integers(0, size)), STOP]
        assert reference.validate_tokens(sequence) == text.validate_tokens(sequence)
        for each in (reference, text):
            assert each.consume_token(token)
            if step % 10 == 9:
                each.rollback(3)
    assert len(states) > 4  # inside of characters, too


def test_plain_text_does_not_build_the_tokenizer_of_llguidance() -> None:
    compiler = GrammarCompiler(TOKENIZER)
    assert compiler.answer().matcher().mask().any()
    assert "_ll_tokenizer" not in vars(compiler)
    compiler.json_schema(EVENT)
    assert "_ll_tokenizer" in vars(compiler)


def test_an_answer_is_text_or_tool_calls() -> None:
    grammar = COMPILER.answer(calls_schema=tool_calls_schema(TOOLS))
    assert accepts(grammar, "the weather is fine")
    matcher = grammar.matcher()
    matcher.accept([SPECIAL_TOKENS.tool_calls])
    assert TOKENIZER.decode_bytes(matcher.forced()).startswith(b'[{"name')
    calls = (
        '[{"name":"weather","arguments":{"city":"x","unit":"celsius"}},{"name":"grow","arguments":{"name":"","below":[]}}]'
    )
    matcher.accept([*TOKENIZER.encode(calls), STOP])
    assert len(parse_tool_calls(calls)) == 2
    in_the_middle = grammar.matcher()
    in_the_middle.accept(TOKENIZER.encode("a"))
    assert not in_the_middle.mask()[SPECIAL_TOKENS.tool_calls]


@pytest.mark.parametrize(
    "call", ['[{"name":"rain"', '[{"name":"weather","arguments":{"town"', "[]", '[{"name":"weather","arguments":{"city":1']
)
def test_unknown_tools_and_arguments_cannot_be_called(call: str) -> None:
    grammar = COMPILER.json_schema(tool_calls_schema(TOOLS))
    with pytest.raises(IllegalTokenError):
        grammar.matcher().accept(TOKENIZER.encode(call))


def test_control_characters_are_allowed_only_where_the_schema_has_them() -> None:
    string = COMPILER.json_schema({"type": "string"})
    for text in ('"\\u0000"', '"\\u0041"', '"\\ud800"', '"\x01"', '"\\/"'):
        assert not accepts(string, text)
    assert accepts(string, '"\\n\\t\\"\\\\"')
    assert accepts(COMPILER.json_schema({"enum": ["\x01"]}), '"\\u0001"')


def test_compiled_grammars_are_cached() -> None:
    compiler = GrammarCompiler(TOKENIZER, cache_size=2)
    first = compiler.json_schema({"const": 1})
    assert compiler.json_schema({"const": 1}) is first
    for value in (2, 3):
        compiler.json_schema({"const": value})
    assert compiler.json_schema({"const": 1}) is not first
    order = [{"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}]
    assert compiler.json_schema(order[0]) is not compiler.json_schema(order[1])


def test_an_error_of_the_grammar_engine_raises() -> None:
    broken = llguidance_matcher(COMPILER.json_schema(EVENT))
    matcher = Matcher(broken, TOKENIZER.vocab_size, STOP)
    matcher.accept(matcher.forced())
    broken.consume_token(SPECIAL_TOKENS.eos)
    assert broken.is_error()
    for call in (
        matcher.mask,
        lambda: matcher.may_stop,
        lambda: matcher.must_stop,
        lambda: matcher.accept(TOKENIZER.encode("a")),
        lambda: matcher.rollback(1),
        lambda: Matcher(broken, TOKENIZER.vocab_size, STOP),
    ):
        with pytest.raises(GrammarError):
            call()


def test_prepared_masks_match_the_state_of_the_answer() -> None:
    grammar = COMPILER.json_schema(EVENT)
    tokens, _ = random_answer(grammar, seed=3)
    prepared, plain = grammar.matcher(), grammar.matcher()
    logits_V = np.random.default_rng(0).normal(size=TOKENIZER.vocab_size + 3).astype(np.float32)
    for number, token in enumerate(tokens):
        prepared.prepare()
        if number % 3 == 1:  # an unused mask is not applied at a later position
            prepared.accept([token])
            prepared.prepare()
            prepared.rollback(1)
        found_V, expected_V, mask_V = logits_V.copy(), logits_V.copy(), plain.mask()
        (prepared.fork() if number % 2 else prepared).apply(found_V)
        expected_V[: len(mask_V)][~mask_V] = -np.inf
        expected_V[len(mask_V) :] = -np.inf
        assert np.array_equal(found_V, expected_V)
        prepared.accept([token])
        plain.accept([token])


def test_nan_logits_are_masked_or_raise() -> None:
    matcher = COMPILER.json_schema({"type": "integer"}).matcher()
    mask_V = matcher.mask()
    logits_V = np.where(mask_V, np.float32(1), np.float32(np.nan))
    matcher.apply(logits_V)
    GreedyConfig().build().sample(logits_V, 0)
    logits_V[int(np.flatnonzero(mask_V)[3])] = np.nan
    matcher.apply(logits_V)
    with pytest.raises(BrokenLogitsError):
        GreedyConfig().build().sample(logits_V, 0)
