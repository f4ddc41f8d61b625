"""The model that answers: which bundle it is, whether it can be used, and what it costs in tokens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

from openafm.bundle import Bundle, BundleNotFoundError, BundleVersionError, open_bundle, resolve_model
from openafm.core.errors import OpenAFMError
from openafm.framework.errors import AssetsUnavailableError, UnsupportedGuideError
from openafm.framework.schema import GenerationSchema
from openafm.framework.transcript import Transcript
from openafm.runtime.engines import open_engine
from openafm.runtime.grammar import Grammar, GrammarCompiler
from openafm.runtime.schema_rewrite import UnsupportedSchemaError
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import Instructions, JsonSchema, UserTurn

# BCP 47 tags of the sixteen languages of Apple Intelligence, which the report's models are designed for.
SUPPORTED_LANGUAGES = frozenset(
    ("da", "de", "en", "es", "fr", "it", "ja", "ko", "nb", "nl", "pt", "sv", "tr", "vi", "zh-Hans", "zh-Hant")
)


class SystemLanguageModelUnavailableReason(IntEnum):
    """Why a model cannot answer. Numbers below 3 and 255 are Apple's."""

    APPLE_INTELLIGENCE_NOT_ENABLED = 0
    DEVICE_NOT_ELIGIBLE = 1
    MODEL_NOT_READY = 2
    MODEL_NOT_INSTALLED = 3
    MODEL_DAMAGED = 4
    MODEL_VERSION_UNSUPPORTED = 5
    UNKNOWN = 0xFF


class SystemLanguageModel:
    """A description of the model; weights are read when a session first needs them, once for all sessions.

    Args:
        bundle: the name or path of a bundle; by default the one chosen with `openafm use`, else the shipped one, else the
            newest on this machine.
    """

    def __init__(self, *, bundle: str | Path | None = None) -> None:
        self._bundle_name = bundle

    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        """Whether the model can answer, else why not. Never raises."""
        try:
            bundle = self._bundle
            _ = bundle.tokenizer, bundle.template, bundle.stored_tensors, bundle.recovery_adapter
        except BundleNotFoundError:
            return False, SystemLanguageModelUnavailableReason.MODEL_NOT_INSTALLED
        except BundleVersionError:
            return False, SystemLanguageModelUnavailableReason.MODEL_VERSION_UNSUPPORTED
        except OpenAFMError:
            return False, SystemLanguageModelUnavailableReason.MODEL_DAMAGED
        except OSError:
            return False, SystemLanguageModelUnavailableReason.UNKNOWN
        return True, None

    @property
    def context_size(self) -> int:
        """The most tokens that instructions, prompts and responses of a session may have together.

        Raises:
            AssetsUnavailableError: there is no such model.
        """
        return self.described().config.context_length

    @property
    def supported_languages(self) -> frozenset[str]:
        """BCP 47 tags of the languages that the model family is made for."""
        return SUPPORTED_LANGUAGES

    async def token_count(
        self, value: str | GenerationSchema | Transcript | None = None, *, instructions: str | None = None
    ) -> int:
        """Tokens that something adds to a session, exactly; the counts of parts add up to what is prefilled.

        A prompt counts with all that opens its response, a schema as shown beside its prompt.

        Raises:
            ValueError: both or neither of `value` and `instructions`.
            AssetsUnavailableError: there is no such model, or its tokenizer or chat template cannot be read.
        """
        if (value is None) == (instructions is None):
            raise ValueError("token_count() takes a value or instructions, one of the two")
        bundle = self.described()
        with _unavailable(f"the model {bundle.name} cannot count tokens: "):
            tokenizer, template = bundle.tokenizer, bundle.template
        match value:
            case str():
                return len(template.encode_turn(tokenizer, UserTurn(text=value))) + len(
                    template.generation_prompt(tokenizer)
                )
            case GenerationSchema():
                return len(template.encode_response_format(tokenizer, value.to_dict()))
            case Transcript():
                return len(template.encode(tokenizer, opened(value.turns)))
        return len(template.encode_turn(tokenizer, Instructions(text=instructions or "")))

    def described(self) -> Bundle:
        """The bundle, opened, its weights not yet read.

        Raises:
            AssetsUnavailableError: there is none, or it cannot be read.
        """
        with _unavailable():
            return self._bundle

    def load(self) -> LoadedModel:
        """The model ready to generate, shared by everybody in this process who uses the same bundle.

        Raises:
            AssetsUnavailableError: there is none, or it cannot be read.
        """
        global _latest
        bundle = self.described()
        with _loading, _unavailable(f"the model {bundle.name} cannot be loaded: "):
            loaded = _loaded.get(bundle.identity)
            if loaded is None:
                loaded = _loaded[bundle.identity] = LoadedModel(bundle)
            _latest = loaded
        return loaded

    @cached_property
    def _bundle(self) -> Bundle:
        return open_bundle(resolve_model() if self._bundle_name is None else self._bundle_name)


class LoadedModel:
    """A bundle, the engine that runs it and the compiler of its grammars; safe to share between threads."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.tokenizer, self.template = bundle, bundle.tokenizer, bundle.template
        self.engine = open_engine(bundle)
        self._grammars = GrammarCompiler(self.tokenizer)

    def grammar(self, schema: JsonSchema | None) -> Grammar:
        """The grammar of compact JSON under a schema; of free text without one.

        Raises:
            UnsupportedGuideError: the schema contradicts itself or says what cannot be enforced while decoding.
        """
        try:
            return self._grammars.text() if schema is None else self._grammars.json_schema(schema)
        except UnsupportedSchemaError as error:
            raise UnsupportedGuideError(str(error)) from error


@contextlib.contextmanager
def _unavailable(prefix: str = "") -> Iterator[None]:
    """What goes wrong with a bundle's files, as the framework names it."""
    try:
        yield
    except OpenAFMError as error:
        raise AssetsUnavailableError(f"{prefix}{error}", error.exit_code) from error
    except OSError as error:
        raise AssetsUnavailableError(f"{prefix}{error}") from error


_loading = threading.Lock()
_loaded: WeakValueDictionary[str, LoadedModel] = WeakValueDictionary()  # by identity
_latest: LoadedModel | None = None  # kept, so that a session after a session finds the weights in memory
