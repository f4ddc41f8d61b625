"""`SystemLanguageModel`: a bundle on this machine."""

from __future__ import annotations

import contextlib
import locale as system_locale
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cached_property, partial
from pathlib import Path
from typing import cast

from openafm.bundle import Bundle, BundleNotFoundError, BundleVersionError, open_bundle, resolve_model
from openafm.core.errors import OpenAFMError
from openafm.framework.backends import loaded_model
from openafm.framework.backends.adapter import Adapter, CompatibleAdapterNotFoundError, resolve_adapter
from openafm.framework.backends.image_details import (
    check_fits,
    chosen_mode,
    image_modes,
    image_part,
    in_known_modes,
    num_tokens_of,
    only_reads,
)
from openafm.framework.backends.language_model import (
    Capability,
    LanguageModel,
    LanguageModelExecutor,
    SystemLanguageModelUnavailableReason,
)
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.errors import AssetsUnavailableError, FoundationModelsError
from openafm.framework.options import ImageDetail
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.tools.tool import Tool
from openafm.framework.transcripts.prompt import PromptLike, UnsupportedAttachmentError, prompt_content
from openafm.framework.transcripts.transcript import Transcript
from openafm.runtime.engines.verified_files import verify_once
from openafm.safety.blocklist import BlocklistConfig
from openafm.safety.guardrail import Guardrail, SystemLanguageModelGuardrails
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import ContentPart, ContentTurn, Instructions, Turn, UserTurn

# BCP 47 tags of the sixteen languages of Apple Intelligence, which the report's models support.
SUPPORTED_LANGUAGES = frozenset(
    ("da", "de", "en", "es", "fr", "it", "ja", "ko", "nb", "nl", "pt", "sv", "tr", "vi", "zh-Hans", "zh-Hant")
)
_SAME_LANGUAGE = {"no": "nb", "nn": "nb", "zh-CN": "zh-Hans", "zh-SG": "zh-Hans", "zh-TW": "zh-Hant", "zh-HK": "zh-Hant"}


class SystemLanguageModelUseCase(IntEnum):
    """The use case of a model. `CONTENT_TAGGING` puts its own instructions before those of a session."""

    GENERAL = 0
    CONTENT_TAGGING = 1


_USE_CASE_INSTRUCTIONS = {
    SystemLanguageModelUseCase.GENERAL: "",
    SystemLanguageModelUseCase.CONTENT_TAGGING: "Tag the message: list the topics that it is about, each in a word or two.",
}


class SystemLanguageModel(LanguageModel):
    """Describe a bundle on this machine. Weights are loaded when a session first needs them, once for all sessions.

    Args:
        use_case: general, or content tagging.
        guardrails: the checks of prompts and responses: the built-in blocklist, the permissive mode that leaves plain text
            unchecked, or your own `Guardrail`.
        bundle: the name or path of a bundle; by default the one chosen with `openafm use`, else the shipped one, else the
            newest on this machine.
        adapter: an adapter for that bundle: its name, its folder, or an `Adapter`.
        draft: the name or path of a draft model's bundle for speculative decoding, which speeds up answers without changing
            them; by default the adapter's draft model, if it has one.
    """

    def __init__(
        self,
        use_case: SystemLanguageModelUseCase = SystemLanguageModelUseCase.GENERAL,
        guardrails: SystemLanguageModelGuardrails | Guardrail = SystemLanguageModelGuardrails.DEFAULT,
        *,
        bundle: str | Path | None = None,
        adapter: Adapter | str | Path | None = None,
        draft: str | Path | None = None,
    ) -> None:
        if not isinstance(guardrails, SystemLanguageModelGuardrails | Guardrail):
            raise TypeError(f"'guardrails' must be SystemLanguageModelGuardrails or a Guardrail, got {guardrails!r}")
        self.use_case, self.guardrails = SystemLanguageModelUseCase(use_case), guardrails
        self._bundle_name, self._adapter, self._draft = bundle, adapter, draft

    @property
    def name(self) -> str:  # type: ignore[override]
        """The bundle's name.

        Raises:
            AssetsUnavailableError: the model is not installed, or cannot be read.
        """
        return self.described().name

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        """Guided generation; tool calling if the chat template supports tools; vision with a vision encoder or a reader."""
        bundle = self.described()
        found = {
            Capability.GUIDED_GENERATION: True,
            Capability.TOOL_CALLING: bundle.template.can_call_tools,
            Capability.VISION: bool(image_modes(bundle)) or only_reads(bundle),
        }
        return frozenset(capability for capability, is_there in found.items() if is_there)

    def is_available(self) -> tuple[bool, SystemLanguageModelUnavailableReason | None]:
        """Return whether the model can answer, and the reason if not. Never raises.

        Every file is compared with its digest, once a week unless it changes: a gigabyte takes a second.
        """
        try:
            bundle = self._bundle
            bundle.check_generates()
            _ = bundle.tokenizer, bundle.template
            verify_once(bundle)
            if self._adapter is not None:
                resolve_adapter(self._adapter, bundle)
            if self._draft is not None:
                verify_once(open_bundle(self._draft))
        except (BundleNotFoundError, CompatibleAdapterNotFoundError):
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
        """The size of the context window in tokens: instructions, prompts and responses together.

        Raises:
            AssetsUnavailableError: the model is not installed, or cannot be read.
        """
        return self.described().config.context_length

    @property
    def supported_languages(self) -> frozenset[str]:
        """BCP 47 tags of the languages that the model family supports."""
        return SUPPORTED_LANGUAGES

    def supports_locale(self, locale: str | None = None) -> bool:
        """Return whether the model supports the language of a locale, such as `de_CH`. Default: this machine's locale."""
        tag = (locale or system_locale.getlocale()[0] or "en").split(".")[0].replace("_", "-")
        tag = "en" if tag in ("C", "POSIX") else tag
        forms = [tag, *("-".join(tag.split("-")[:count]) for count in (2, 1))]
        return any(_SAME_LANGUAGE.get(form, form) in SUPPORTED_LANGUAGES for form in forms) or forms[-1] == "zh"

    def token_count_blocking(
        self,
        value: PromptLike | Sequence[Tool] | GenerationSchema | Transcript | None = None,
        *,
        instructions: str | None = None,
        image_detail: ImageDetail | None = None,
    ) -> int:
        """Return the exact number of tokens that a value adds to a session. Counts of parts add up to the prefilled tokens.

        A prompt includes the tokens that open its response; a schema counts as shown in the prompt; tools count as listed in
        the instructions.

        Raises:
            ValueError: neither or both of `value` and `instructions` are given.
            UnsupportedAttachmentError: the prompt has images, and the model does not support them, or not this detail.
            PromptError: an image cannot be read.
            AssetsUnavailableError: the model is not installed, or its tokenizer or chat template cannot be read.
        """
        if (value is None) == (instructions is None):
            raise ValueError("token_count() takes either a value or 'instructions'; pass one of them")
        bundle = self.described()
        with _unavailable(f"the model {bundle.name} cannot count tokens: "):
            tokenizer, template = bundle.tokenizer, bundle.template
        match value:
            case None:
                return len(template.encode(tokenizer, self._with_use_case((Instructions(text=instructions or ""),))))
            case GenerationSchema():
                return len(template.encode_response_format(tokenizer, value.to_dict()))
            case Transcript():
                return len(template.encode(tokenizer, self._prepared(opened(value.turns))))
            case list() | tuple() if tools := [each for each in value if isinstance(each, Tool)]:
                return sum(len(template.encode_tool(tokenizer, each.definition())) for each in tools)
        content, _ = prompt_content(cast(PromptLike, value), partial(self.image_part, detail=image_detail))
        prompt = template.encode_turn(tokenizer, UserTurn(content=content))
        return len(prompt) + len(template.generation_prompt(tokenizer))

    def check_context(self, turns: Sequence[Turn]) -> None:
        """Raise if the last turn alone exceeds the context window, by its bytes. The executor counts tokens exactly."""
        bundle, size = self.described(), self.described().config.context_length
        with _unavailable(f"the model {bundle.name} cannot count tokens: "):
            tokenizer, template = bundle.tokenizer, bundle.template
        *_, last = turns
        num_tokens = template.fewest_tokens(tokenizer, (last,))
        if num_tokens > size and tokenizer.fewest_tokens(last.text) <= size:  # because of its images: count exactly
            num_tokens = len(template.encode_turn(tokenizer, last)) + len(template.generation_prompt(tokenizer))
        check_fits(num_tokens, size, (last,), image_modes(bundle))

    def num_image_tokens(self, image: bytes, detail: ImageDetail | None = None) -> int:
        """Return the number of tokens that an image takes, by the detail and, with tiles by its shape, by its size.

        Raises:
            UnsupportedAttachmentError: the model does not support images, or is not trained for this detail.
        """
        return num_tokens_of(image, chosen_mode(self.described(), detail))

    def image_part(self, image: bytes, detail: ImageDetail | None = None) -> ContentPart:
        """Return the part of a prompt for an image; of a text model with a reader of pages the text that it reads.

        Raises:
            UnsupportedAttachmentError: the model does not support images, or not this detail.
            ImagePromptError: the reader cannot take the image.
        """
        with _unavailable(f"the model {self.described().name} cannot read images: "):
            return image_part(self.described(), image, detail)

    def executor(self, turns: Sequence[Turn]) -> LanguageModelExecutor:
        from openafm.framework.backends.local_executor import LocalExecutor

        return LocalExecutor(self.load(), self._prepared(turns))

    def restored_executor(self, turns: Sequence[Turn], snapshot: bytes | memoryview) -> LanguageModelExecutor:
        from openafm.framework.backends.local_executor import LocalExecutor

        return LocalExecutor(self.load(), self._prepared(turns), snapshot)

    def guardrail(self, *, is_guided: bool) -> Guardrail | None:
        """Return the guardrail of a request. The permissive mode leaves plain text unchecked, never guided responses."""
        match self.guardrails:
            case SystemLanguageModelGuardrails.DEFAULT:
                return BlocklistConfig().build()
            case SystemLanguageModelGuardrails.PERMISSIVE_CONTENT_TRANSFORMATIONS:
                return BlocklistConfig().build() if is_guided else None
        return self.guardrails

    def described(self) -> Bundle:
        """Return the opened bundle without loading its weights.

        Raises:
            AssetsUnavailableError: the bundle is not installed, cannot be read, or generates no text.
        """
        with _unavailable():
            self._bundle.check_generates()
            return self._bundle

    def load(self) -> LoadedModel:
        """Return the loaded model. Callers in this process with the same bundle and adapter share it.

        Raises:
            AssetsUnavailableError: the bundle is not installed, or cannot be read.
            AssetError: the adapter is missing, damaged or for another bundle.
        """
        bundle = self.described()
        with _unavailable(f"the model {bundle.name} cannot be loaded: "):
            adapter = None if self._adapter is None else resolve_adapter(self._adapter, bundle)
            draft = self._draft if adapter is None or self._draft is not None else adapter.draft
            with _unavailable("the draft model: "):
                opened_draft = None if draft is None else open_bundle(draft)
            return loaded_model.load(bundle, adapter, opened_draft)

    def _prepared(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return the turns of a transcript as this model reads them.

        Raises:
            UnsupportedAttachmentError: they have images, which this model only reads when they are attached to a prompt.
        """
        if not image_modes(self.described()) and any(turn.images for turn in turns if isinstance(turn, ContentTurn)):
            raise UnsupportedAttachmentError(
                f"the transcript has images, and the model {self.described().name} has no vision encoder; attach them to a"
                " new prompt, or use a model with a vision encoder"
            )
        return in_known_modes(self._with_use_case(turns), image_modes(self.described()))

    def _with_use_case(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        text = _USE_CASE_INSTRUCTIONS[self.use_case]
        if not text:
            return tuple(turns)
        first, *rest = opened(turns)
        assert isinstance(first, Instructions)
        return Instructions(text=f"{text}\n{first.text}".strip(), tools=first.tools), *rest

    @cached_property
    def _bundle(self) -> Bundle:
        return open_bundle(resolve_model() if self._bundle_name is None else self._bundle_name)


@contextlib.contextmanager
def _unavailable(prefix: str = "") -> Iterator[None]:
    """Translate errors of a bundle's files into `AssetsUnavailableError`."""
    try:
        yield
    except FoundationModelsError:
        raise
    except OpenAFMError as error:
        raise AssetsUnavailableError(f"{prefix}{error}", error.exit_code) from error
    except OSError as error:
        raise AssetsUnavailableError(f"{prefix}{error}") from error
