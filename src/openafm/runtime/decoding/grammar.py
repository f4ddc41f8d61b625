"""What may be generated: JSON of a schema, text, or text or tool calls. An invalid answer cannot be sampled.

Stands on llguidance. Its errors never raise but put it in a state that allows anything or nothing; so each of its calls
here is followed by a check, and what it will not enforce is refused.

Where a grammar leaves only one text, its tokens are forced: the mask then allows the one token that encoding that text
would give, though others would spell it too. So an answer is the same whether forced tokens are taken as drafts or sampled
one by one, and it is tokenized as training data is.

Shapes: V vocabulary of the model.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import OpenAFMError, UsageError
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.runtime.decoding.schema_rewrite import enforceable_schema, needs_unicode_escapes
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.template import BaseChatTemplate, CallsSyntax, Parts

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Every text that is UTF-8. Special tokens are no text.
_TEXT = "(?s:.*)"
# Escapes that a string may hold. Without `u` there are no control characters but these, and no halves of surrogate pairs.
_ESCAPES = 'nrtbf"\\'


class GrammarError(OpenAFMError):
    """The grammar engine gave up, as it does on schemas that grow too large while they are followed."""


class IllegalTokenError(UsageError):
    """A token that the grammar does not allow here, or a rollback beyond the start."""


class GrammarCompiler:
    """Makes grammars over one tokenizer. Keeps the last `cache_size` of them; safe to share between threads.

    Args:
        template: says which token ends an answer and how tool calls are written.
    """

    def __init__(self, tokenizer: Tokenizer, template: BaseChatTemplate | None = None, cache_size: int = 128) -> None:
        import llguidance

        self._tokenizer, self._template = tokenizer, template or ChatTemplate()
        self._stop = self._template.stop_token(tokenizer)
        wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, self._stop))
        self._ll_tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=tokenizer.vocab_size, eos_token=self._stop)
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def text(self) -> Grammar:
        """Any text, as valid UTF-8 and free of special tokens; it may stop anywhere."""
        return self._compiled("text", None, lambda: f"start: /{_TEXT}/")

    def json_schema(self, schema: JsonSchema) -> Grammar:
        """Compact JSON that fits `schema`, its properties in the order of `x-order`, then as declared.

        Raises:
            UnsupportedSchemaError: the schema says what cannot be enforced while decoding, or allows nothing.
        """
        return self._compiled("json", schema, lambda: _json_grammar(schema))

    def answer(
        self, schema: JsonSchema | None = None, calls_schema: JsonSchema | None = None, *, must_call: bool = False
    ) -> Grammar:
        """What an answer may be: text, or JSON that fits `schema`; or, where tools may be called, calls that fit
        `calls_schema`, written as the template has them; with `must_call` nothing else.

        Raises:
            UnsupportedSchemaError: as `json_schema`.
            ChatTemplateError: the template has no place for tools.
        """
        if calls_schema is None:
            return self.text() if schema is None else self.json_schema(schema)
        kind = "calls" if must_call else "answer_or_calls"
        syntax = self._template.calls_syntax(self._tokenizer, calls_schema)
        return self._compiled(kind, [schema, calls_schema], lambda: _calls_grammar(schema, syntax, must_call))

    def _compiled(self, kind: str, schema: Any, source: Callable[[], str]) -> Grammar:
        key = (kind, json.dumps(schema))
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        grammar = Grammar(self._ll_tokenizer, source(), self._stop)
        with self._lock:
            self._cache[key] = grammar
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return grammar


class _Vocabulary:
    """A tokenizer as llguidance asks for it: half the time and memory of its own reading of tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer, stop_token: int) -> None:
        names = {id: name.encode() for name, id in tokenizer.special_ids.items()}
        self.tokens = [names.get(id) or tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(names)
        self.eos_token_id, self.bos_token_id = stop_token, None
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class Grammar:
    """A compiled grammar; `matcher` starts an answer under it. `stop_token` ends every answer."""

    def __init__(self, tokenizer: LLTokenizer, source: str, stop_token: int) -> None:
        import llguidance

        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
        if matcher.is_error():
            raise UnsupportedSchemaError(f"the schema cannot be enforced while decoding: {_first_line(matcher.get_error())}")
        if warnings := matcher.get_grammar_warnings():
            raise UnsupportedSchemaError(f"part of the schema would not be enforced: {'; '.join(warnings)}")
        self._matcher, self._vocab_size, self.stop_token = matcher, tokenizer.vocab_size, stop_token

    def matcher(self) -> Matcher:
        """A matcher at the start of an answer."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size, self.stop_token)


class Matcher:
    """How far one answer has come under its grammar, and what may follow.

    The stop token is not shown to llguidance, which does not take it back fully.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, stop_token: int) -> None:
        self._matcher, self._vocab_size, self._stop = matcher, vocab_size, stop_token
        self._accepted: list[int] = []
        self._bounds_V: NDArray[np.float32] | None = None  # inf for what may follow, else -inf; None: not computed
        self._forced = [self._compute_forced()]  # what was forced at the start and after each accepted token

    @property
    def may_stop(self) -> bool:
        """Whether the answer so far is whole, so that the stop token may come or has come."""
        return self._checked(self._matcher.is_accepting())

    @property
    def must_stop(self) -> bool:
        """Whether nothing but the stop token can follow, or it has come."""
        return self.has_stopped or self._checked(self._matcher.is_stopped())

    @property
    def has_stopped(self) -> bool:
        """Whether the stop token has come; nothing may follow it."""
        return self._accepted[-1:] == [self._stop]

    def forced(self) -> tuple[int, ...]:
        """The tokens that must follow now, the stop token included; empty where there is a choice."""
        return self._forced[-1]

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens of the tokenizer may follow, [V]."""
        if self._forced[-1] or self.has_stopped:
            mask_V = np.zeros(self._vocab_size, np.bool_)
            mask_V[list(self._forced[-1][:1])] = True
            return mask_V
        bits: bytes = self._checked(self._matcher.compute_bitmask())
        return np.unpackbits(np.frombuffer(bits, np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)

    def prepare(self) -> None:
        """Compute what `apply` needs now, while there is time for it. It raises what there is to raise."""
        if self._bounds_V is not None or self._forced[-1] or self.has_stopped:
            return
        bits: bytes = self._matcher.compute_bitmask()
        if not self._matcher.is_error():
            bounds = _bounds_of_bytes().take(np.frombuffer(bits, np.uint8), axis=0)
            self._bounds_V = bounds.reshape(-1)[: self._vocab_size]

    def apply(self, logits_V: NDArray[np.float32]) -> None:
        """Set the logits of all other tokens to -inf, in place; ids beyond the tokenizer's are never allowed."""
        self.prepare()
        if self._bounds_V is None:
            self._checked(None)
            bounds_V = np.where(self.mask(), np.float32(np.inf), np.float32(-np.inf))
        else:
            bounds_V = self._bounds_V
        np.fmin(logits_V[: self._vocab_size], bounds_V, out=logits_V[: self._vocab_size])
        logits_V[self._vocab_size :] = -np.inf

    def accept(self, tokens: Sequence[int]) -> None:
        """Move on by `tokens`, all or none of them.

        Raises:
            IllegalTokenError: one of them is not allowed where it stands.
        """
        for done, token in enumerate(tokens):
            forced = self._forced[-1]
            if not self._is_legal(token, forced):
                self.rollback(done)
                raise IllegalTokenError(f"token {token} is not allowed by the grammar here")
            self._bounds_V = None
            if token != self._stop:
                self._checked(self._matcher.consume_token(token))
            self._accepted.append(token)
            self._forced.append(forced[1:] or self._compute_forced())

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted.

        Raises:
            IllegalTokenError: fewer have been accepted.
        """
        if not 0 <= num_tokens <= len(self._accepted):
            raise IllegalTokenError(f"cannot take back {num_tokens} of {len(self._accepted)} accepted tokens")
        if num_tokens:
            self._bounds_V = None
            self._checked(self._matcher.rollback(num_tokens - self.has_stopped))
            del self._accepted[-num_tokens:], self._forced[-num_tokens:]

    def fork(self) -> Matcher:
        """A second matcher that has come as far; each goes its own way."""
        fork = copy.copy(self)
        fork._matcher = self._matcher.deep_copy()
        fork._accepted, fork._forced = self._accepted.copy(), self._forced.copy()
        return fork

    def _is_legal(self, token: int, forced: tuple[int, ...]) -> bool:
        if forced or self.has_stopped:
            return token in forced[:1]
        return bool(self._checked(self._matcher.validate_tokens([token])) == 1)

    def _compute_forced(self) -> tuple[int, ...]:
        if self.has_stopped:
            return ()
        if self._checked(self._matcher.is_stopped()):
            return (self._stop,)
        return tuple(self._checked(self._matcher.compute_ff_tokens()))

    def _checked(self, result: Any) -> Any:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot be followed further: {_first_line(self._matcher.get_error())}")
        return result


@functools.cache
def _bounds_of_bytes() -> NDArray[np.float32]:
    """Of the eight tokens that each byte of a mask stands for, [256, 8]: many times as fast as indexing with booleans."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.float32(np.inf), np.float32(-np.inf))


def _json_grammar(schema: JsonSchema) -> str:
    return json.dumps({"grammars": [{"json_schema": _with_options(schema)}]})  # read faster than `%json` in a text


def _calls_grammar(schema: JsonSchema | None, syntax: CallsSyntax, must_call: bool) -> str:
    further = "" if syntax.separator is None else f"({_sequence(syntax.separator)} call)*"
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
    """Special tokens and texts in order."""
    return " ".join(json.dumps(part) if isinstance(part, str) else f"<[{part}]>" for part in parts)


def _text_beside(opening: Parts) -> str:
    """Texts that cannot be taken for calls: all, where a special token opens those; else what begins otherwise."""
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
    return enforceable_schema(schema) | {"x-guidance": options | {"lenient": False}}


def _first_line(message: str) -> str:
    """The engine's reason, without the place in the grammar that we wrote around the schema."""
    line = message.splitlines()[0] if message else "no reason given"
    return re.sub(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?", "", line)
