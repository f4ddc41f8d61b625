"""Config of the generator of lines."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class LinesConfig(GeneratorConfig):
    """Images of one line of a message, of up to `width` pixels."""

    width: int = 1000

    def __post_init__(self) -> None:
        self.require(200 <= self.width <= 4000, f"width must be 200 to 4000 pixels, got {self.width}")

    @property
    def name(self) -> str:
        return "lines"

    def build(self) -> Generator:
        from openafm.data.drawing.lines.generator import LineGenerator

        return LineGenerator(self)
