"""Extraction by a language model: a session chooses the numbers of the main content's blocks, by guided generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from openafm.data.extraction import ChooseBlocks

if TYPE_CHECKING:
    from openafm.framework.backends.language_model import LanguageModel

_INSTRUCTIONS = (
    "You get the numbered text blocks of a web page. Return the numbers of the blocks that belong to its main content: "
    "paragraphs, lists and tables of the text itself. Leave out navigation, advertisements, comments and notices."
)


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
