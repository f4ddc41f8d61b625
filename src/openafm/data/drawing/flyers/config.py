"""Config of the generator of flyers."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class FlyersConfig(GeneratorConfig):
    """Flyers that announce an event, as files, scans and photographs.

    A share `random_share` of them has random words in place of names (`with_random_words`).
    """

    random_share: float = 0.0

    def __post_init__(self) -> None:
        self.require(0 <= self.random_share <= 1, f"random_share is a share from 0 to 1, got {self.random_share}")

    @property
    def name(self) -> str:
        return "flyers"

    def build(self) -> Generator:
        from openafm.data.drawing.flyers.generator import FlyerGenerator

        return FlyerGenerator(self.random_share)
