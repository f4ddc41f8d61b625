"""Config of the generator of pages of words."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class WordsConfig(GeneratorConfig):
    """Square pages of up to `most_lines` lines with random letters, numbers and words: a model has to see them.

    Texts that make sense are memorized from a few thousand drawings: the loss falls, and the model does not read.
    """

    side: int = 448
    most_lines: int = 10
    smallest: int = 10
    """The smallest size of a font in pixels."""
    paragraph_share: float = 0.0
    """Share of the pages that are set as documents and screens are: full lines of one font and size, with symbols of code,
    and underlined lines. Most of these are files, not photographs."""

    def __post_init__(self) -> None:
        self.require(64 <= self.side <= 2000, f"side must be 64 to 2000 pixels, got {self.side}")
        self.require(
            8 <= self.smallest <= self.side // 4, f"smallest is 8 pixels to a quarter of the side, got {self.smallest}"
        )
        self.require(1 <= self.most_lines <= 40, f"most_lines must be 1 to 40, got {self.most_lines}")
        self.require(0 <= self.paragraph_share <= 1, f"paragraph_share is a share from 0 to 1, got {self.paragraph_share}")

    @property
    def name(self) -> str:
        return "words"

    def build(self) -> Generator:
        from openafm.data.drawing.words.generator import WordsGenerator

        return WordsGenerator(self)
