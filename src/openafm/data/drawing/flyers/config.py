"""Config of the generator of flyers."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class FlyersConfig(GeneratorConfig):
    """Flyers that announce an event, as files, scans and photographs."""

    @property
    def name(self) -> str:
        return "flyers"

    def build(self) -> Generator:
        from openafm.data.drawing.flyers.generator import FlyerGenerator

        return FlyerGenerator()
