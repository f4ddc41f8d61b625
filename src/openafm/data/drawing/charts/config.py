"""Config of the generator of charts."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig
from openafm.data.drawing.charts.kinds import KINDS


@dataclass(frozen=True, kw_only=True)
class ChartsConfig(GeneratorConfig):
    """Charts of sixteen kinds in twelve designs. `kinds` limits them; empty for all."""

    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(KINDS))
        self.require(not unknown, f"unknown kinds {', '.join(unknown)}; known: {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        return "charts"

    def build(self) -> Generator:
        from openafm.data.drawing.charts.generator import ChartGenerator

        return ChartGenerator(self)
