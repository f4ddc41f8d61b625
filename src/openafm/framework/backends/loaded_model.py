"""Loaded models: engine, prefix cache, image cache, draft model and grammar compiler of a bundle, shared by all sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.metadata import DRAFT_TOKEN_COUNT
from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.framework.backends.answer_priors import AnswerPrior, open_priors
from openafm.framework.backends.image_details import image_modes
from openafm.framework.errors import UnsupportedGuideError
from openafm.framework.transcripts.prompt import ImagePromptError
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.likelihood import Scorer
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.runtime.decoding.speculation import Drafter, DraftMismatchError
from openafm.runtime.engines.base import Engine, InsertedEmbeddings
from openafm.runtime.engines.image_cache import ImageCache, UnreadableImageError, image_cache_bytes
from openafm.runtime.engines.prefix_cache import PrefixCache, prefix_cache_bytes
from openafm.runtime.engines.selection import open_engine
from openafm.runtime.engines.sequence import PromptTokens
from openafm.runtime.engines.verified_files import verify_once
from openafm.tokenizer.conversation import JsonSchema, ToolDefinition, Turn
from openafm.tokenizer.tool_calls import tool_calls_schema

MAX_CALLS = 16  # tool calls in one answer: ends models that repeat themselves


class LoadedModel:
    """Hold a bundle with its engine, caches, draft model and grammars. Thread-safe.

    Args:
        beside: a loaded model of the same bundle. Both share grammars and steps, whatever their adapters.

    Raises:
        OpenAFMError: a file cannot be read, or the draft model has another tokenizer.
    """

    def __init__(
        self,
        bundle: Bundle,
        adapter: AdapterPackage | None,
        draft: Bundle | None,
        beside: LoadedModel | None = None,
    ) -> None:
        self.bundle, self.tokenizer, self.template = bundle, bundle.tokenizer, bundle.template
        self.engine: Engine = open_engine(bundle, adapter, beside=None if beside is None else beside.engine)
        self.prefixes = PrefixCache(self.engine, prefix_cache_bytes())
        self.image_modes = image_modes(bundle)
        self._images = ImageCache(self.engine, self.image_modes, image_cache_bytes())
        # An adapter has its own meaning of labels, tools and fields.
        self.priors = open_priors(bundle) if adapter is None else None
        self.drafter = None if draft is None else _drafter(bundle, draft, adapter)
        self._grammars: GrammarCompiler = (
            GrammarCompiler(self.tokenizer, self.template) if beside is None else beside._grammars
        )

    @property
    def cached_bytes(self) -> int:
        """Bytes of stored prefixes and of embeddings of images."""
        return self.prefixes.num_bytes + self._images.num_bytes

    def free_cached(self, num_bytes: int) -> int:
        """Evict embeddings of images, then prefixes, until `num_bytes` are free or none is left. Return the bytes freed."""
        freed = self._images.free(num_bytes)
        return freed + self.prefixes.free(num_bytes - freed)

    @property
    def scorer(self) -> Scorer:
        """The likelihoods and raw continuations of texts."""
        return Scorer(engine=self.engine, tokenizer=self.tokenizer)

    def loglikelihood(self, requests: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Return, for each context and continuation, the log probability in nats and whether greedy decoding gives it."""
        found = [self.scorer.loglikelihood(context, continuation) for context, continuation in requests]
        return [(likelihood.log_probability, likelihood.is_greedy) for likelihood in found]

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """Return the log probability of each text in nats, in windows of the context length."""
        return [self.scorer.loglikelihood_rolling(text).log_probability for text in texts]

    def generate_until(self, requests: Sequence[tuple[str, Sequence[str]]], max_tokens: int = 256) -> list[str]:
        """Return the greedy continuation of each context up to the first of its stop texts, without a chat template."""
        return [self.scorer.generate_until(context, until, max_tokens) for context, until in requests]

    def embeddings(self, prompt: PromptTokens, images: Mapping[str, bytes]) -> list[InsertedEmbeddings]:
        """Return the embeddings of the images of a prompt. `images` are their bytes by digest.

        Raises:
            ImagePromptError: the bytes of an image are missing, or the model cannot take the image.
        """
        try:
            return self._images.inserted(prompt, images)
        except UnreadableImageError as error:
            raise ImagePromptError(str(error)) from error

    def embedding(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the mean of the last states over the tokens, scaled to length 1, [D]."""
        mean_D = self.engine.mean_state(tokens)
        embedding_D: NDArray[np.float32] = mean_D / np.linalg.norm(mean_D)
        return embedding_D

    def grammar(
        self,
        schema: JsonSchema | None,
        tools: Sequence[ToolDefinition] = (),
        *,
        must_call: bool = False,
        max_calls: int = MAX_CALLS,
    ) -> Grammar:
        """Return the grammar of an answer: compact JSON under `schema` or free text, or up to `max_calls` calls of `tools`.

        Raises:
            UnsupportedGuideError: a schema contradicts itself or cannot be enforced while decoding.
        """
        try:
            calls = tool_calls_schema(tools) | {"maxItems": max_calls} if tools else None
            return self._grammars.answer(schema, calls, must_call=must_call)
        except UnsupportedSchemaError as error:
            raise UnsupportedGuideError(f"{self._failing_tool(tools)}{error}") from error

    def prior(
        self,
        turns: Sequence[Turn],
        schema: JsonSchema | None,
        tools: Sequence[ToolDefinition] = (),
        *,
        continues: bool = False,
    ) -> AnswerPrior:
        """Return what the rankers know of the answer to the last of `turns`, which may follow other prompts."""
        if self.priors is None:
            return AnswerPrior(tools=tuple(tools))
        return self.priors.of_answer(turns, schema, tools, continues=continues)

    def _failing_tool(self, tools: Sequence[ToolDefinition]) -> str:
        """Return an error prefix that names the tool whose arguments cannot be enforced; empty if the schema is at fault."""
        for tool in tools:
            try:
                self._grammars.json_schema(tool.parameters)
            except UnsupportedSchemaError:
                return f"the arguments of the tool '{tool.name}': "
        return ""


def _drafter(bundle: Bundle, draft: Bundle, adapter: AdapterPackage | None) -> Drafter:
    if draft.tokenizer.to_json() != bundle.tokenizer.to_json():
        raise DraftMismatchError(
            f"the draft model {draft.name} has another tokenizer than {bundle.name}; use a draft model of that bundle"
        )
    metadata = None if adapter is None else adapter.metadata
    num_tokens = DRAFT_TOKEN_COUNT if metadata is None else metadata.speculativeDecodingDraftTokenCount
    return Drafter(open_engine(draft), num_tokens)


def load(bundle: Bundle, adapter: AdapterPackage | None = None, draft: Bundle | None = None) -> LoadedModel:
    """Return the loaded model for a bundle, adapter and draft model. Callers with the same three share one instance.

    Models of one bundle compute their steps together, whatever their adapters.

    Raises:
        OpenAFMError: a file cannot be read or differs from the signed one, or the draft model has another tokenizer.
    """
    global _latest
    for part in (bundle, adapter, draft):
        if part is not None:
            verify_once(part)  # before the signatures are used as a key: a changed copy must not share a loaded model
    parts = "" if adapter is None else adapter.digest, "" if draft is None else draft.identity
    key = (bundle.identity, bundle.parts_digest, *parts)
    with _loading:
        loaded = _loaded.get(key)
        if loaded is None:
            loaded = _loaded[key] = LoadedModel(bundle, adapter, draft, _peer(bundle))
        _latest = loaded
    return loaded


def _peer(bundle: Bundle) -> LoadedModel | None:
    """Return a loaded model of the same folder; a copy elsewhere has its own weights in memory."""
    path = bundle.path.resolve()
    same = (model for model in _loaded.values() if model.bundle.identity == bundle.identity)
    return next((model for model in same if model.bundle.path.resolve() == path), None)


def release(model: LoadedModel) -> None:
    """Drop the reference that keeps the latest model for later sessions, if it is `model`."""
    global _latest
    with _loading:
        if _latest is model:
            _latest = None


_loading = threading.Lock()
# Keys: identity of the bundle, digests of its parts and of the adapter, identity of the draft model.
_loaded: WeakValueDictionary[tuple[str, str, str, str], LoadedModel] = WeakValueDictionary()
_latest: LoadedModel | None = None  # a strong reference: consecutive sessions reuse the weights


def _forget_after_fork() -> None:
    """Load models again in a forked process: engines cannot be used there, and another thread may have held the lock."""
    global _loading, _latest
    _loading, _latest = threading.Lock(), None
    _loaded.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
