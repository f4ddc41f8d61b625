"""Config of the generator of signs."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class SignsConfig(GeneratorConfig):
    """Signs of shops, doors and streets, as files, scans and photographs."""

    @property
    def name(self) -> str:
        return "signs"

    def build(self) -> Generator:
        from openafm.data.drawing.signs.generator import SignGenerator

        return SignGenerator()
