"""A tokenizer trained on some JSON and English, so that forced texts are several tokens of several bytes."""

from __future__ import annotations

import random
from typing import Any

from openafm.runtime.decoding.grammar import Grammar
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.schema_text import compact_json


def _texts() -> list[str]:
    chance = random.Random(0)
    words = [
        "title",
        "date",
        "guests",
        "name",
        "city",
        "temperature",
        "unit",
        "celsius",
        "open",
        "closed",
        "meeting",
        "noon",
    ]
    values = [*words, 1, 20, 3.5, True, None, ["a", "b"], {"title": "x"}]
    return [compact_json({word: chance.choice(values) for word in chance.sample(words, 5)}) for _ in range(2000)]


TOKENIZER: Tokenizer = train_tokenizer(TokenizerConfig(vocab_size=380), _texts())


def accepts(grammar: Grammar, text: str | bytes) -> bool:
    """Return True if the grammar allows exactly `text`, tokenized byte by byte."""
    matcher = llguidance_matcher(grammar)
    tokens = [TOKENIZER.encode_bytes(bytes([byte]))[0] for byte in (text.encode() if isinstance(text, str) else text)]
    return all(matcher.validate_tokens([token]) == 1 and matcher.consume_token(token) for token in tokens) and bool(
        matcher.is_accepting()
    )


def llguidance_matcher(grammar: Grammar) -> Any:
    """Return llguidance's matcher at the start."""
    return grammar._matcher.deep_copy()
