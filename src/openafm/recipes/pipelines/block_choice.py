"""Extraction by a language model: a session chooses the numbers of the main content's blocks, by guided generation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from openafm.data.extraction import ChooseBlocks, ExtractionConfig
from openafm.data.extraction.base import PageExtractor, PageExtractorConfig

if TYPE_CHECKING:
    from openafm.framework.backends.language_model import LanguageModel

_INSTRUCTIONS = (
    "You get the numbered text blocks of a web page. Return the numbers of the blocks that belong to its main content: "
    "paragraphs, lists and tables of the text itself. Leave out navigation, advertisements, comments and notices."
)


@dataclass(frozen=True, kw_only=True)
class ModelExtractionConfig(PageExtractorConfig):
    """Extraction that asks a language model where the confidence is below `extraction.model_below`.

    `model` is the name or path of a bundle, or the name of a model at `endpoint`, an OpenAI-compatible address whose key is
    the environment variable OPENAFM_ENDPOINT_KEY. Each document that the model extracted holds `extraction.agreement`, the
    share of characters on which the model and the classifier agree.
    """

    REASONS: ClassVar[tuple[str, ...]] = ExtractionConfig.REASONS

    extraction: ExtractionConfig
    model: str
    endpoint: str = ""
    blocks_per_request: int = 40
    chars_per_block: int = 160

    def __post_init__(self) -> None:
        self.require(bool(self.model), "model is empty; use the name or path of a bundle, or of a model at the endpoint")
        self.require(min(self.blocks_per_request, self.chars_per_block) >= 1, "requests have at least 1 block and character")

    def build(self) -> PageExtractor:
        """Return the extractor.

        Raises:
            AssetsUnavailableError: the bundle is not installed.
        """
        chooser = block_chooser(
            self._language_model(),
            blocks_per_request=self.blocks_per_request,
            chars_per_block=self.chars_per_block,
        )
        return self.extraction.build(chooser)

    def _language_model(self) -> LanguageModel:
        if self.endpoint:
            from openafm.framework.backends.openai_model import OpenAICompatibleModel

            return OpenAICompatibleModel(self.endpoint, self.model, os.environ.get("OPENAFM_ENDPOINT_KEY"))
        from openafm.framework.backends.system_model import SystemLanguageModel

        model = SystemLanguageModel(bundle=self.model)
        _ = model.name  # a missing bundle fails here, before any work
        return model


def block_chooser(model: LanguageModel, *, blocks_per_request: int = 40, chars_per_block: int = 160) -> ChooseBlocks:
    """Return a function for `ExtractionConfig.build` that asks `model`.

    Blocks are shown in groups, each in a session of its own, so that a page of any length fits; long blocks are shown with
    their first characters. If the model gives no answer for a group (it refuses, or the answer is cut), the function returns
    None and the extractor keeps its own choice. Errors that concern every page, such as a model that is not installed, are
    raised.
    """

    def choose(texts: Sequence[str]) -> Sequence[int] | None:
        from openafm.framework.errors import DecodingFailureError, GuardrailViolationError, RefusalError
        from openafm.framework.options import GenerationOptions, SamplingMode
        from openafm.framework.session.session import LanguageModelSession

        chosen: list[int] = []
        for start in range(0, len(texts), blocks_per_request):
            group = texts[start : start + blocks_per_request]
            lines = [f"[{start + index}] {text[:chars_per_block]}" for index, text in enumerate(group)]
            session = LanguageModelSession(_INSTRUCTIONS, model)
            try:
                answer = session.respond_blocking(
                    "\n".join(lines),
                    json_schema=_schema(start, start + len(group) - 1),
                    options=GenerationOptions(sampling=SamplingMode.greedy()),
                )
            except (DecodingFailureError, GuardrailViolationError, RefusalError):
                return None
            chosen += answer.value(list[int], for_property="blocks")
        return chosen

    return choose


def _schema(first: int, last: int) -> dict[str, object]:
    numbers = {
        "type": "array",
        "items": {"type": "integer", "minimum": first, "maximum": last},
        "maxItems": last - first + 1,
    }
    return {
        "title": "MainContent",
        "type": "object",
        "properties": {"blocks": numbers},
        "required": ["blocks"],
        "additionalProperties": False,
        "x-order": ["blocks"],
    }
