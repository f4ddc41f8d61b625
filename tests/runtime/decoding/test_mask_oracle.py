"""Masks against an independent oracle that enumerates the language.

A schema is drawn together with every text that it allows, so the tokens that may follow a beginning are those that lead to
the beginning of one of these texts.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import TOKENIZER

from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.tokenizer.bpe import SPECIAL_TOKENS
from openafm.tokenizer.schema_text import compact_json

COMPILER = GrammarCompiler(TOKENIZER)
TOKENS = {id: TOKENIZER.token_bytes(id) for id in range(TOKENIZER.vocab_size) if TOKENIZER.token_bytes(id)}
MOST_TEXTS = 400


@dataclass(frozen=True)
class Language:
    """A schema and all texts that it allows."""

    schema: dict[str, Any]
    texts: frozenset[str]


def _values(schema: dict[str, Any], values: list[Any]) -> Language:
    return Language(schema, frozenset(map(compact_json, values)))


def _enum(values: list[Any]) -> Language:
    return _values({"enum": values}, values)


SCALARS = st.sampled_from(
    [
        _values({"type": "null"}, [None]),
        _values({"type": "boolean"}, [True, False]),
        Language({"type": "integer", "minimum": -3, "maximum": 12}, frozenset(["-0", *map(str, range(-3, 13))])),
        _values({"type": "integer", "exclusiveMinimum": 98, "exclusiveMaximum": 101}, [99, 100]),
        _values({"type": "integer", "minimum": 0, "maximum": 20, "multipleOf": 7}, [0, 7, 14]),
        _values({"const": "title"}, ["title"]),
        _enum(["open", "opened", "closed", 'a"b\\c\n', "ü👍", "", 5, None]),
        _enum([[1, "a"], {"x": 1, "a": []}]),
        _values({"type": "string", "pattern": "^(a|bb)?x*$", "maxLength": 2}, ["", "a", "bb", "x", "xx", "ax"]),
        _values({"type": "string", "pattern": "^(celsius|city)$", "maxLength": 5}, ["city"]),
        _values({"type": "string", "format": "date", "pattern": "^202[34]-02-29$"}, ["2024-02-29"]),
        _values({"type": ["boolean", "null"]}, [True, False, None]),
        _values({"type": "string", "maxLength": 0}, [""]),
    ]
)


def _array(item: Language, least: int, most: int) -> Language:
    schema = {"type": "array", "items": item.schema, "minItems": least, "maxItems": most}
    rows = itertools.chain.from_iterable(itertools.product(sorted(item.texts), repeat=n) for n in range(least, most + 1))
    return Language(schema, frozenset(f"[{','.join(row)}]" for row in itertools.islice(rows, MOST_TEXTS + 1)))


def _object(properties: list[tuple[str, bool, Language]]) -> Language:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: language.schema for name, _, language in properties},
        "required": [name for name, required, _ in properties if required],
        "additionalProperties": False,
    }
    choices = [
        [*([] if required else [None]), *(f"{compact_json(name)}:{text}" for text in sorted(language.texts))]
        for name, required, language in properties
    ]
    rows = itertools.islice(itertools.product(*choices), MOST_TEXTS + 1)
    return Language(schema, frozenset("{" + ",".join(filter(None, row)) + "}" for row in rows))


def _any_of(members: list[Language]) -> Language:
    return Language({"anyOf": [m.schema for m in members]}, frozenset().union(*(m.texts for m in members)))


def _extended(languages: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    names = st.sampled_from(["title", "date", "da", "open", "é"])
    properties = st.lists(st.tuples(names, st.booleans(), languages), max_size=3, unique_by=lambda property: property[0])
    return st.one_of(
        st.builds(lambda item, sizes: _array(item, min(sizes), max(sizes)), languages, st.tuples(*[st.integers(0, 2)] * 2)),
        properties.map(_object),
        st.lists(languages, min_size=1, max_size=3).map(_any_of),
    )


LANGUAGES = st.recursive(SCALARS, _extended, max_leaves=4).filter(lambda language: len(language.texts) <= MOST_TEXTS)


def allowed_next(beginning: bytes, texts: list[bytes]) -> set[int]:
    """Return the tokens that extend this prefix towards an allowed text, and the stop token after a complete one."""
    rests = [text[len(beginning) :] for text in texts if text.startswith(beginning)]
    tokens = {id for id, token in TOKENS.items() if any(rest.startswith(token) for rest in rests)}
    return tokens | ({SPECIAL_TOKENS.turn_end} if b"" in rests else set())


@settings(max_examples=60, deadline=None)
@given(LANGUAGES, st.integers(0, 2**32))
def test_masks_allow_exactly_the_tokens_that_can_become_valid(language: Language, seed: int) -> None:
    texts = [text.encode() for text in language.texts]
    grammar = COMPILER.json_schema(language.schema)
    chance = random.Random(seed)
    for _ in range(3):
        matcher, beginning = grammar.matcher(), b""
        while True:
            expected = allowed_next(beginning, texts)
            mask = set(matcher.mask().nonzero()[0].tolist())
            if matcher.forced():
                assert mask == {matcher.forced()[0]}
                check_forced(matcher.forced(), beginning, texts)
            else:
                assert mask == expected
            assert matcher.may_stop == (beginning in texts)
            token = chance.choice(sorted(mask))
            matcher.accept([token])
            if token == SPECIAL_TOKENS.turn_end:
                break
            beginning += TOKENS[token]
        assert beginning in texts


def check_forced(forced: tuple[int, ...], beginning: bytes, texts: list[bytes]) -> None:
    """Check that all texts that are still possible continue with these tokens."""
    forced_bytes = b"".join(TOKENS[token] for token in forced if token != SPECIAL_TOKENS.turn_end)
    rests = [text[len(beginning) :] for text in texts if text.startswith(beginning)]
    assert all(rest.startswith(forced_bytes) for rest in rests)
    assert SPECIAL_TOKENS.turn_end not in forced[:-1]
    if forced[-1] == SPECIAL_TOKENS.turn_end:
        assert rests == [forced_bytes]


@settings(max_examples=60, deadline=None)
@given(LANGUAGES)
def test_the_oracle_agrees_with_a_validator(language: Language) -> None:
    validator = jsonschema.Draft202012Validator(language.schema)
    for text in language.texts:
        assert validator.is_valid(json.loads(text))
