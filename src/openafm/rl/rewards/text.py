"""Terms about the form of an answer: its length, its language, its repetitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from openafm.rl.rewards.base import TruthError
from openafm.rl.rewards.rules import Rule, RuleConfig
from openafm.rl.trajectories import Sample
from openafm.tokenizer.conversation import UserTurn

_PIECES = re.compile(r"[^\W_\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]+|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class LengthConfig(RuleConfig):
    """A penalty for long answers: 0 up to `free_tokens`, falling to -1 at `max_tokens`. A truncated answer gets -1.

    This is the soft penalty of DAPO (arXiv 2503.14476).
    """

    name: str = "length"
    free_tokens: int = 256
    max_tokens: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.free_tokens < self.max_tokens, "free_tokens must be 0 or more and below max_tokens")

    def rule(self) -> Rule:
        def score(sample: Sample) -> float:
            excess = (sample.num_tokens - self.free_tokens) / (self.max_tokens - self.free_tokens)
            return -1.0 if sample.finish_reason == "length" else -min(1.0, max(0.0, excess))

        return score


@dataclass(frozen=True, kw_only=True)
class LanguageConsistencyConfig(RuleConfig):
    """The probability that the answer is in the language of the prompt, or in `truth["language"]`.

    The prompt's language is its tag, else that of its last user turn, as identified. A text that shows no language, such as
    a number, gets 1.
    """

    name: str = "language"
    max_bytes: int = 800

    def rule(self) -> Rule:
        from openafm.data.filtering.language import Py3LangidConfig, sample_of

        identifier = Py3LangidConfig().build()

        def score(sample: Sample) -> float:
            wanted = _language_of(sample) or _most_likely(identifier.probabilities(_last_question(sample)))
            found = identifier.probabilities(sample_of(sample.text, self.max_bytes))
            if not found or not wanted:
                return 1.0
            return sum(probability for tag, probability in found.items() if _same(tag, wanted))

        return score


@dataclass(frozen=True, kw_only=True)
class RepetitionConfig(RuleConfig):
    """A penalty for repetition: minus the share of the answer's n-grams of words that occurred before in it.

    Characters count as words in Chinese, Japanese and Korean.
    """

    name: str = "repetition"
    n: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.n > 0, f"n must be at least 1, got {self.n}")

    def rule(self) -> Rule:
        def score(sample: Sample) -> float:
            pieces = _PIECES.findall(sample.text.casefold())
            counts = Counter(tuple(pieces[i : i + self.n]) for i in range(len(pieces) - self.n + 1))
            return -(1 - len(counts) / counts.total()) if counts else 0.0

        return score


def _language_of(sample: Sample) -> str:
    language = sample.prompt.truth.get("language", sample.prompt.conversation.language)
    if not isinstance(language, str):
        raise TruthError(f"'language' in the truth is the tag of a language, got {language!r}")
    return language


def _last_question(sample: Sample) -> str:
    texts = [turn.text for turn in sample.prompt.conversation.turns if isinstance(turn, UserTurn)]
    return texts[-1] if texts else ""


def _most_likely(probabilities: Mapping[str, float]) -> str:
    return max(probabilities, key=lambda tag: probabilities[tag]) if probabilities else ""


def _same(tag: str, wanted: str) -> bool:
    """Compare languages; a script counts where both tags have one (zh-Hans, zh-Hant), a region does not."""
    scripts = {each.partition("-")[2] for each in (tag, wanted)} & {"Hans", "Hant"}
    return tag.partition("-")[0] == wanted.partition("-")[0] and len(scripts) < 2
