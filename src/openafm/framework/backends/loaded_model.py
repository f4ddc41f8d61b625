"""A bundle in memory: its engine, what prompts begin with and the compiler of its grammars, shared by all sessions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from openafm.adapters.metadata import DRAFT_TOKEN_COUNT
from openafm.adapters.package import Adapter
from openafm.bundle import Bundle
from openafm.framework.errors import UnsupportedGuideError
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.schema_rewrite import UnsupportedSchemaError
from openafm.runtime.decoding.speculation import Drafter, DraftMismatchError
from openafm.runtime.engines.prefix_cache import PrefixCache, prefix_cache_bytes
from openafm.runtime.engines.selection import open_engine
from openafm.tokenizer.conversation import JsonSchema, ToolDefinition
from openafm.tokenizer.tool_calls import tool_calls_schema

MOST_CALLS = 16  # of one answer: a small model that repeats itself must come to an end


class LoadedModel:
    """A bundle, the engine that runs it, what drafts for it and its grammars; safe to share between threads.

    Raises:
        OpenAFMError: as `load`.
    """

    def __init__(self, bundle: Bundle, adapter: Adapter | None, draft: Bundle | None) -> None:
        self.bundle, self.tokenizer, self.template = bundle, bundle.tokenizer, bundle.template
        self.engine = open_engine(bundle, adapter)
        self.prefixes = PrefixCache(self.engine, prefix_cache_bytes())
        self.drafter = None if draft is None else _drafter(bundle, draft, adapter)
        self._grammars = GrammarCompiler(self.tokenizer, self.template)

    def grammar(
        self, schema: JsonSchema | None, tools: Sequence[ToolDefinition] = (), *, must_call: bool = False
    ) -> Grammar:
        """The grammar of compact JSON under a schema, or of free text; or of calls of `tools`.

        Raises:
            UnsupportedGuideError: a schema contradicts itself or says what cannot be enforced while decoding.
        """
        try:
            return self._grammars.answer(schema, _calls_schema(tools) if tools else None, must_call=must_call)
        except UnsupportedSchemaError as error:
            raise UnsupportedGuideError(f"{self._culprit(tools)}{error}") from error

    def _culprit(self, tools: Sequence[ToolDefinition]) -> str:
        """Which tool's arguments have no grammar, if it is one of them."""
        for tool in tools:
            try:
                self._grammars.json_schema(tool.parameters)
            except UnsupportedSchemaError:
                return f"the arguments of the tool '{tool.name}': "
        return ""


def _calls_schema(tools: Sequence[ToolDefinition]) -> JsonSchema:
    return tool_calls_schema(tools) | {"maxItems": MOST_CALLS}


def _drafter(bundle: Bundle, draft: Bundle, adapter: Adapter | None) -> Drafter:
    if draft.tokenizer.to_json() != bundle.tokenizer.to_json():
        raise DraftMismatchError(
            f"the draft model {draft.name} has another tokenizer than {bundle.name}; train a draft from that bundle"
        )
    about = None if adapter is None else adapter.metadata
    num_tokens = DRAFT_TOKEN_COUNT if about is None else about.speculativeDecodingDraftTokenCount
    return Drafter(open_engine(draft), num_tokens)


def load(bundle: Bundle, adapter: Adapter | None = None, draft: Bundle | None = None) -> LoadedModel:
    """The model ready to generate, shared by everybody in this process who uses the same bundle, adapter and draft model.

    Raises:
        OpenAFMError: its files cannot be read, or the draft model speaks in other tokens.
    """
    global _latest
    key = (bundle.identity, "" if adapter is None else adapter.digest, "" if draft is None else draft.identity)
    with _loading:
        loaded = _loaded.get(key)
        if loaded is None:
            loaded = _loaded[key] = LoadedModel(bundle, adapter, draft)
        _latest = loaded
    return loaded


_loading = threading.Lock()
_loaded: WeakValueDictionary[tuple[str, str, str], LoadedModel] = WeakValueDictionary()  # by identity, adapter and draft
_latest: LoadedModel | None = None  # kept, so that a session after a session finds the weights in memory
