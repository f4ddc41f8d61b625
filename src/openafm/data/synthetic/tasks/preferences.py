"""Simulated preferences: right answers of the built-in corpus against damaged ones, judged by graders with known noise.

Human graders disagree on 20 to 30 % of pairs (report 5.2.2). Here the better answer is known, so that a reward model can be
compared with the truth and not only with its labels.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Iterator

from openafm.core.config import Config
from openafm.data.preferences import Preference
from openafm.tokenizer.conversation import AssistantTurn, Conversation

NUM_GRADES = 5
_MAX_DAMAGE = 4
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedGradersConfig(Config):
    """Graders that prefer the worse answer with probability `noise`; a grade is one off with the same probability."""

    noise: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(0 <= self.noise <= 0.5, f"noise is a probability from 0 to 0.5, got {self.noise}")


def simulated_preferences(config: SimulatedGradersConfig, conversations: Iterable[Conversation]) -> Iterator[Preference]:
    """Yield a preference for each conversation that ends with text of the assistant: two answers with different damage."""
    rng = random.Random(config.seed)
    for conversation in conversations:
        *prompt, answer = conversation.turns
        if not isinstance(answer, AssistantTurn) or len(_WORD.findall(answer.text)) < 2 or answer.tool_calls:
            continue
        better, worse = sorted(rng.sample(range(_MAX_DAMAGE + 1), 2))
        texts = [damaged(answer.text, count, rng) for count in (better, worse)]
        if texts[0] == texts[1]:
            continue
        grades = [_noisy_grade(config, NUM_GRADES - count, rng) for count in (better, worse)]
        order = [1, 0] if rng.random() < config.noise else [0, 1]
        yield Preference(
            prompt=tuple(prompt),
            answers=tuple((AssistantTurn(text=texts[index]),) for index in order),
            strength=min(3, worse - better),
            grades=tuple(grades[index] for index in order),
            language=conversation.language,
        )


def damaged(text: str, count: int, rng: random.Random) -> str:
    """Return a text in which `count` words were replaced by others: digits by other digits, letters by a shuffled word."""
    words = list(_WORD.finditer(text))
    for match in sorted(rng.sample(words, min(count, len(words))), key=lambda each: -each.start()):
        text = text[: match.start()] + _other(match[0], rng) + text[match.end() :]
    return text


def _other(word: str, rng: random.Random) -> str:
    if word.isdecimal():
        return "".join(rng.choice([digit for digit in "0123456789" if digit != old]) for old in word)
    letters = list(word)
    rng.shuffle(letters)
    shuffled = "".join(letters)
    return shuffled if shuffled != word else word + rng.choice("aeiou")


def _noisy_grade(config: SimulatedGradersConfig, grade: int, rng: random.Random) -> int:
    shift = rng.choice((-1, 1)) if rng.random() < config.noise else 0
    return min(NUM_GRADES, max(1, grade + shift))
