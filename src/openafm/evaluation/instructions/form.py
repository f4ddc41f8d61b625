"""Instructions about the form of a response: lists, highlights, sections, JSON, titles, parts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from openafm.evaluation.instructions.base import InstructionConfig

_BULLET = re.compile(r"^\s*(?:[-+]|\*(?!\*))\s+\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*\*[^*\n]*\S[^*\n]*\*\*|(?<!\*)\*[^*\n]*\S[^*\n]*\*(?!\*)")
_CODE_BLOCK = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)
_TITLE = re.compile(r"<<[^<>\n]*\S[^<>\n]*>>")
CONSTRAINED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@dataclass(frozen=True, kw_only=True)
class BulletsConfig(InstructionConfig):
    """Exactly `num_bullets` bullet points of Markdown."""

    ID = "detectable_format:number_bullet_lists"

    num_bullets: int

    def follows(self, response: str) -> bool:
        return len(_BULLET.findall(response)) == self.num_bullets


@dataclass(frozen=True, kw_only=True)
class ConstrainedResponseConfig(InstructionConfig):
    """One of three answers: my answer is yes, no or maybe."""

    ID = "detectable_format:constrained_response"

    def follows(self, response: str) -> bool:
        return any(option in response for option in CONSTRAINED_RESPONSES)


@dataclass(frozen=True, kw_only=True)
class HighlightsConfig(InstructionConfig):
    """At least `num_highlights` sections in *emphasis* of Markdown."""

    ID = "detectable_format:number_highlighted_sections"

    num_highlights: int

    def follows(self, response: str) -> bool:
        return len(_HIGHLIGHT.findall(response)) >= self.num_highlights


@dataclass(frozen=True, kw_only=True)
class SectionsConfig(InstructionConfig):
    """At least `num_sections` sections that start with `section_spliter` and a number, such as "Section 1"."""

    ID = "detectable_format:multiple_sections"

    section_spliter: str  # spelled as in IFEval's data
    num_sections: int

    def follows(self, response: str) -> bool:
        heads = re.findall(rf"(?<!\w){re.escape(self.section_spliter.strip())}\s+\d+", response, re.IGNORECASE)
        return len(heads) >= self.num_sections


@dataclass(frozen=True, kw_only=True)
class JsonFormatConfig(InstructionConfig):
    """The whole response is JSON; a code block around it is allowed."""

    ID = "detectable_format:json_format"

    def follows(self, response: str) -> bool:
        block = _CODE_BLOCK.match(response)
        try:
            json.loads(block[1] if block else response)
        except (ValueError, RecursionError):
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class TitleConfig(InstructionConfig):
    """A title in double angular brackets, such as <<poem of joy>>."""

    ID = "detectable_format:title"

    def follows(self, response: str) -> bool:
        return _TITLE.search(response) is not None


@dataclass(frozen=True, kw_only=True)
class TwoResponsesConfig(InstructionConfig):
    """Two different responses, with six asterisks between them."""

    ID = "combination:two_responses"

    def follows(self, response: str) -> bool:
        parts = [part.strip() for part in re.split(r"(?<!\*)\*{6}(?!\*)", response)]
        inner = parts[not parts[0] : len(parts) - (not parts[-1])]
        return len(inner) == 2 and all(inner) and inner[0] != inner[1]


@dataclass(frozen=True, kw_only=True)
class RepeatPromptConfig(InstructionConfig):
    """The response starts with the request, unchanged."""

    ID = "combination:repeat_prompt"

    prompt_to_repeat: str

    def follows(self, response: str) -> bool:
        return response.strip().casefold().startswith(self.prompt_to_repeat.strip().casefold())
