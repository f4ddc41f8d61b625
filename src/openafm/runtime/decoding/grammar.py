"""Constrained decoding: answers that are JSON of a schema, text, or tool calls. An invalid answer cannot be sampled.

Based on llguidance. Its errors do not raise but set a state that allows anything or nothing, so every call is followed by a
check. Constraints that it does not enforce are rejected.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from openafm.runtime.decoding.closing import Closer
from openafm.runtime.decoding.logits import LikelyCalls
from openafm.runtime.decoding.matcher import FirstEnds, Matcher, first_line
from openafm.runtime.decoding.schema_finiteness import check_finite
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.runtime.decoding.schema_rewrite import enforceable_schema, needs_unicode_escapes
from openafm.runtime.decoding.text_grammar import AnyMatcher, TextGrammar
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.template import BaseChatTemplate, CallsSyntax, Parts

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Any UTF-8 text. Special tokens are not text.
_TEXT = "(?s:.*)"
# Escapes in JSON strings. Without `u`, no other control characters and no unpaired surrogates can be written.
_ESCAPES = 'nrtbf"\\'
_MOST_TEXTS = 1024  # whose tokens are stored for one tokenizer


class GrammarCompiler:
    """Compiles grammars for one tokenizer and caches the latest `cache_size`. Safe to share between threads.

    Args:
        template: defines the token that ends an answer and the syntax of tool calls.
    """

    def __init__(self, tokenizer: Tokenizer, template: BaseChatTemplate | None = None, cache_size: int = 128) -> None:
        self._tokenizer, self._template = tokenizer, template or ChatTemplate()
        self._stop = self._template.stop_token(tokenizer)
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._lock = threading.Lock()

    @functools.cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        """The tokenizer of llguidance. It takes half a second for 150,000 tokens, and plain text does not need it."""
        import llguidance

        wrapped = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer, self._stop))
        return llguidance.LLTokenizer(wrapped, n_vocab=self._tokenizer.vocab_size, eos_token=self._stop)

    @functools.cached_property
    def _closer(self) -> Closer:
        return Closer(self._tokenizer, self._stop)

    @functools.cached_property
    def _text(self) -> Grammar:
        matcher = TextGrammar(self._tokenizer, self._stop).matcher()
        return Grammar(matcher, self._tokenizer.vocab_size, self._stop)

    def text(self) -> Grammar:
        """Return the grammar of any valid UTF-8 text without special tokens."""
        return self._text

    def json_schema(self, schema: JsonSchema) -> Grammar:
        """Return the grammar of compact JSON that conforms to `schema`, properties ordered by `x-order`, then as declared.

        Raises:
            UnsupportedSchemaError: the schema has constraints that cannot be enforced while decoding, or allows nothing.
        """
        return self._compiled("json", schema, lambda: _json_grammar(schema))

    def answer(
        self, schema: JsonSchema | None = None, calls_schema: JsonSchema | None = None, *, must_call: bool = False
    ) -> Grammar:
        """Return the grammar of an answer: text or JSON of `schema`, or tool calls of `calls_schema`.

        With `must_call`, only tool calls.

        Raises:
            UnsupportedSchemaError: as `json_schema`.
            ChatTemplateError: the template does not support tools.
        """
        if calls_schema is None:
            return self.text() if schema is None else self.json_schema(schema)
        kind = "calls" if must_call else "answer_or_calls"
        syntax = self._template.calls_syntax(self._tokenizer, calls_schema)
        most = calls_schema.get("maxItems")
        likely_calls = None
        # Imported models decode as their authors' code does; JSON, unlike text, begins in one way.
        if isinstance(self._template, ChatTemplate) and schema is None and not must_call:
            (calls_token,) = self._template.tool_calls_prompt(self._tokenizer)
            likely_calls = LikelyCalls(calls_token, self._tokenizer.vocab_size)
        source = functools.partial(_calls_grammar, schema, syntax, must_call, most)
        return self._compiled(kind, [schema, calls_schema], source, likely_calls)

    def _compiled(
        self, kind: str, schema: Any, source: Callable[[], str], likely_calls: LikelyCalls | None = None
    ) -> Grammar:
        key = (kind, json.dumps(schema))
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        matcher = _compiled_matcher(self._ll_tokenizer, source())
        grammar = Grammar(matcher, self._tokenizer.vocab_size, self._stop, self._closer, likely_calls)
        with self._lock:
            self._cache[key] = grammar
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return grammar


class _Vocabulary:
    """Adapter of a tokenizer for llguidance; takes half the time and memory of letting it read tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer, stop_token: int) -> None:
        names = {id: name.encode() for name, id in tokenizer.special_ids.items()}
        self.tokens = tokenizer.vocabulary()
        for id, name in names.items():
            self.tokens[id] = name
        self.special_token_ids = sorted(names)
        self.eos_token_id, self.bos_token_id = stop_token, None
        # Forced texts recur in every answer of a grammar.
        self._encoded = functools.lru_cache(_MOST_TEXTS)(lambda text: tuple(tokenizer.encode(text)))

    def __call__(self, text: str) -> list[int]:
        return list(self._encoded(text))


def _compiled_matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    import llguidance

    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
    if matcher.is_error():
        raise UnsupportedSchemaError(f"the schema cannot be enforced while decoding: {first_line(matcher.get_error())}")
    if warnings := matcher.get_grammar_warnings():
        raise UnsupportedSchemaError(f"part of the schema would not be enforced: {'; '.join(warnings)}")
    return matcher


class Grammar:
    """A compiled grammar. `matcher` starts an answer; `stop_token` ends every answer.

    `likely_calls` is for greedy answers that may be text or tool calls.
    """

    def __init__(
        self,
        matcher: AnyMatcher,
        vocab_size: int,
        stop_token: int,
        closer: Closer | None = None,
        likely_calls: LikelyCalls | None = None,
    ) -> None:
        self._matcher, self._vocab_size, self.stop_token = matcher, vocab_size, stop_token
        self._closer, self.likely_calls = closer, likely_calls
        self._first_ends: FirstEnds = {}

    def matcher(self, max_tokens: int | None = None) -> Matcher:
        """Return a matcher at the start of an answer.

        With `max_tokens` a JSON answer is closed before it exceeds that many tokens, the stop token not counted: its end is
        forced. This fails where an item takes more than 256 tokens, and for strings whose pattern is hard to complete.
        """
        copy = self._matcher.deep_copy()
        return Matcher(copy, self._vocab_size, self.stop_token, self._closer, max_tokens, self._first_ends)


def _json_grammar(schema: JsonSchema) -> str:
    return json.dumps({"grammars": [{"json_schema": _with_options(schema)}]})  # parsed faster than `%json` in a grammar


def _calls_grammar(schema: JsonSchema | None, syntax: CallsSyntax, must_call: bool, most: int | None) -> str:
    further = ""
    if syntax.separator is not None and most != 1:
        times = "*" if most is None else f"{{0,{most - 1}}}"
        further = f"({_sequence(syntax.separator)} call){times}"
    separators = {"item_separator": syntax.item_separator, "key_separator": syntax.key_separator}
    calls = (
        f"calls: {_sequence(syntax.opening)} call {further} {_sequence(syntax.closing)}\n"
        f"call: %json {json.dumps(_with_options(syntax.schema, **separators))}"
    )
    if must_call:
        return f"start: calls\n{calls}"
    if schema is None:
        return f"start: TEXT | calls\nTEXT: /{_text_beside(syntax.opening)}/\n{calls}"
    return f"start: json | calls\njson: %json {json.dumps(_with_options(schema))}\n{calls}"


def _sequence(parts: Parts) -> str:
    """Return special tokens and texts in grammar syntax."""
    return " ".join(json.dumps(part) if isinstance(part, str) else f"<[{part}]>" for part in parts)


def _text_beside(opening: Parts) -> str:
    """Return a pattern of texts that are not calls: any text if a special token opens calls, else by the first character."""
    first = opening[0] if opening else "{"
    return _TEXT if isinstance(first, int) else f"(?s:([^{re.escape(first[0])}].*)?)"


def _with_options(schema: JsonSchema, item_separator: str = ",", key_separator: str = ":") -> JsonSchema:
    options = {
        "whitespace_flexible": False,
        "item_separator": item_separator,
        "key_separator": key_separator,
        "coerce_one_of": False,
    }
    if not needs_unicode_escapes(schema):
        options["json_allowed_escapes"] = _ESCAPES
    enforceable = enforceable_schema(schema)
    check_finite(enforceable)
    return enforceable | {"x-guidance": options | {"lenient": False}}
