"""Config of the generator of scenes."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class ScenesConfig(GeneratorConfig):
    """Scenes of `least` to `most` objects. `pairs` is the share of documents with two images to compare."""

    least: int = 2
    most: int = 9
    pairs: float = 0.2
    marks: float = 0.3
    """Share of documents whose objects have numbers on them."""

    def __post_init__(self) -> None:
        self.require(1 <= self.least <= self.most <= 12, f"least and most must be 1 to 12, got {self.least} and {self.most}")
        for name in ("pairs", "marks"):
            self.require(0 <= getattr(self, name) <= 1, f"{name} must be a share from 0 to 1, got {getattr(self, name)}")

    @property
    def name(self) -> str:
        return "scenes"

    def build(self) -> Generator:
        from openafm.data.drawing.scenes.generator import SceneGenerator

        return SceneGenerator(self)
