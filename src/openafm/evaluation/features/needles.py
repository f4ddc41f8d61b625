"""Long contexts: a fact hidden in a long text of generated notes, asked for at its end. Groups are length and depth."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from openafm.evaluation.features.base import FeatureConfig
from openafm.evaluation.harness.task import Item, Output, Prompt, Verdict

_PLACES = ("Oslo", "Lima", "Quito", "Turin", "Bergen", "Cadiz", "Porto", "Graz", "Tampere", "Sapporo", "Busan", "Hue")
_THINGS = ("bicycle", "notebook", "telescope", "kettle", "violin", "lantern", "compass", "umbrella", "camera", "globe")
_COLORS = ("red", "green", "blue", "white", "yellow", "black", "gray", "brown")
_WORDS_PER_NOTE = 11
_CODE = re.compile(r"code of the locker in (\w+) is (\d+)")


@dataclass(frozen=True, kw_only=True)
class NeedlesConfig(FeatureConfig):
    """A code in long notes, which the question asks for: notes of about `words` words, the code at one of `depths`."""

    METRIC: ClassVar[str] = "found"

    words: tuple[int, ...] = (200, 800, 3_200)
    depths: tuple[float, ...] = (0.0, 0.5, 1.0)
    repeats: int = 4
    max_tokens: int = 32

    def __post_init__(self) -> None:
        self.require(min((*self.words, self.repeats)) > 0, "words and repeats must be positive")
        self.require(all(0 <= depth <= 1 for depth in self.depths), f"depths must lie in 0..1, got {self.depths}")

    def items(self, data: Path) -> Iterator[Item]:
        for words in self.words:
            for depth in self.depths:
                for repeat in range(self.repeats):
                    text, code, place = haystack(words, depth, repeat)
                    question = f"{text}\n\nWhat is the code of the locker in {place}? Answer with the code only."
                    yield Item(
                        id=f"{words}-{depth:g}-{repeat}",
                        prompt=Prompt(text=question, max_tokens=self.max_tokens),
                        reference=code,
                        group=f"{words} words, depth {depth:g}",
                    )

    def judge(self, item: Item, output: Output) -> Verdict:
        is_found = item.reference in output.text.replace(",", "").replace(" ", "")
        return Verdict(scores={"found": float(is_found)}, extraction=output.text, expected=item.reference)

    def constant(self, item: Item) -> Output:
        return Output(text="12345")

    def pattern(self, item: Item) -> Output:
        """Find the sentence with a regular expression: what a search finds without a model."""
        return Output(text=next((code for _, code in _CODE.findall(item.prompt.text)), ""))


def haystack(words: int, depth: float, seed: int) -> tuple[str, str, str]:
    """Return notes, the code in one of them, and its place, which no other note names."""
    generator = random.Random(f"{words} {depth} {seed}")
    place, *others = generator.sample(_PLACES, len(_PLACES))
    code = str(generator.randrange(10_000, 99_999))
    notes = [
        f"The {generator.choice(_COLORS)} {generator.choice(_THINGS)} from {generator.choice(others)} is on shelf"
        f" {generator.randrange(1, 90)} of the store."
        for _ in range(max(1, words // _WORDS_PER_NOTE))
    ]
    notes.insert(round(depth * len(notes)), f"The code of the locker in {place} is {code}.")
    return " ".join(notes), code, place
