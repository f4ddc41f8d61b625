"""Mutated JSON documents of bundles, checkpoints and training data: each reader raises a typed error or reads them."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import checkpoints
import pytest

from openafm.bundle.hugging_face.config import decoder_config
from openafm.bundle.signature import Signature, TensorEntry
from openafm.core.errors import OpenAFMError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import Conversation
from openafm.tokenizer.files import read_tokenizer
from openafm.tokenizer.imported.template import read_template
from openafm.tokenizer.schema_text import schema_text

NUM_MUTATIONS = 80
ODD = (None, 0, -1, 2**70, float("inf"), float("nan"), "", "x", "\ud800", [], {}, [[]], [1], [["a", "b"]], {"a": 1}, True)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 1}, "b": {"$ref": "#/$defs/c"}, "e": {"enum": [1]}},
    "required": ["a"],
    "x-order": ["b"],
    "$defs": {"c": {"anyOf": [{"type": "null"}, {"items": {"const": 1}, "prefixItems": [{}]}], "title": "t"}},
}
CONVERSATION = {
    "messages": [
        {"role": "instructions", "content": "x", "tools": [{"name": "a", "description": "b", "parameters": {}}]},
        {"role": "user", "content": [{"type": "image", "digest": "x", "num_tokens": 2}], "response_format": {}},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "a", "arguments": {}}]},
        {"role": "tool", "name": "a", "content": "x"},
    ]
}
SIGNATURE = Signature(documents={"config.json": "ab"}, tensors={"a.b": TensorEntry(dtype="F32", shape=(2,), sha256="cd")})
READERS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "tokenizer": (json.loads(Tokenizer(merges=()).to_json()), lambda form: read_tokenizer(json.dumps(form)).encode("a b")),
    "imported tokenizer": (
        json.loads(checkpoints.tokenizer("qwen3").to_str()),
        lambda form: read_tokenizer(json.dumps(form)).encode("a b"),
    ),
    "template": (json.loads(ChatTemplate().to_json()), lambda form: read_template(json.dumps(form))),
    "conversation": (CONVERSATION, Conversation.from_dict),
    "signature": (SIGNATURE.to_dict(), Signature.from_dict),
    "config": (checkpoints.config("llama").to_dict(), decoder_config),
    "schema": (SCHEMA, schema_text),
}


def mutate(value: Any, draw: random.Random) -> Any:
    """A copy with one or two values at random paths replaced or removed."""
    copy = json.loads(json.dumps(value))
    for _ in range(draw.choice([1, 1, 2])):
        owner, key, below = None, None, copy
        for _ in range(draw.randint(1, 5)):
            keys = list(below) if isinstance(below, dict) else range(len(below)) if isinstance(below, list) else ()
            if not keys:
                break
            owner, key = below, draw.choice(keys)
            below = owner[key]
        if owner is None:
            continue
        if draw.random() < 0.75:
            owner[key] = draw.choice(ODD)
        else:
            del owner[key]
    return copy


@pytest.mark.parametrize("name", READERS)
def test_mutated_documents_are_read_or_typed_errors(name: str) -> None:
    value, read = READERS[name]
    draw = random.Random(name)
    read(value)
    for _ in range(NUM_MUTATIONS):
        with contextlib.suppress(OpenAFMError):
            read(mutate(value, draw))
