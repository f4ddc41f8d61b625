"""The conditions of the two splits: ranges of perspective, light, bends, blur and noise."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from openafm.data.drawing.base import Split


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One way to see a drawing. Ranges are drawn from uniformly."""

    name: str
    split: Split
    camera: bool = True
    """False for a file as drawn, or encoded again."""
    tilt: float = 0.0
    """How far corners move, as a share of the shorter side."""
    turn: float = 0.0
    """Degrees to either side."""
    scale: tuple[float, float] = (0.85, 0.95)
    """The drawing's share of the photograph's width."""
    bend: tuple[float, float] = (0.0, 0.0)
    folds: int = 0
    light: tuple[float, float] = (1.0, 1.0)
    """Brightness of the dark and of the bright side."""
    tint: float = 0.0
    glare: bool = False
    shadow: bool = False
    cover: bool = False
    blur: tuple[float, float] = (0.0, 0.0)
    motion: int = 0
    noise: tuple[float, float] = (0.0, 0.0)
    gray_share: float = 0.0
    quality: tuple[int, int] = (70, 95)


_CONDITIONS = (
    Condition(name="digital", split="train", camera=False, quality=(0, 0)),
    Condition(
        name="scan",
        split="train",
        turn=1.5,
        scale=(0.96, 0.99),
        light=(0.97, 1.0),
        noise=(0.0, 4.0),
        gray_share=0.5,
        quality=(45, 90),
    ),
    Condition(name="photo", split="train", tilt=0.04, turn=4, light=(0.75, 1.05), tint=0.06, noise=(1, 5)),
    Condition(
        name="handheld",
        split="train",
        tilt=0.07,
        turn=8,
        light=(0.8, 1.05),
        tint=0.08,
        blur=(0.3, 0.8),
        motion=3,
        noise=(2, 7),
        quality=(50, 90),
    ),
    Condition(
        name="crumpled",
        split="train",
        tilt=0.04,
        turn=5,
        bend=(0.002, 0.007),
        light=(0.8, 1.0),
        tint=0.06,
        noise=(1, 5),
        quality=(55, 92),
    ),
    Condition(
        name="shaded", split="train", tilt=0.05, turn=5, light=(0.7, 1.0), shadow=True, noise=(1, 6), quality=(55, 92)
    ),
    Condition(
        name="covered",
        split="train",
        tilt=0.05,
        turn=6,
        light=(0.8, 1.05),
        cover=True,
        noise=(1, 5),
        tint=0.06,
        quality=(60, 92),
    ),
    Condition(
        name="dim",
        split="train",
        tilt=0.04,
        turn=5,
        light=(0.35, 0.55),
        tint=0.12,
        blur=(0.2, 0.6),
        noise=(6, 12),
        quality=(50, 85),
    ),
    Condition(name="reencoded", split="held_out", camera=False, quality=(25, 60)),
    Condition(
        name="oblique",
        split="held_out",
        tilt=0.13,
        turn=10,
        scale=(0.85, 0.95),
        light=(0.7, 1.05),
        tint=0.06,
        blur=(0.2, 0.5),
        noise=(1, 5),
        quality=(60, 92),
    ),
    Condition(
        name="folded",
        split="held_out",
        tilt=0.04,
        turn=5,
        folds=2,
        bend=(0.0, 0.002),
        light=(0.8, 1.0),
        noise=(1, 5),
        tint=0.06,
        quality=(60, 92),
    ),
    Condition(
        name="glare", split="held_out", tilt=0.05, turn=5, light=(0.85, 1.05), glare=True, noise=(1, 5), quality=(60, 92)
    ),
    Condition(
        name="far",
        split="held_out",
        tilt=0.04,
        turn=6,
        scale=(0.62, 0.75),
        light=(0.75, 1.05),
        tint=0.06,
        blur=(0.2, 0.4),
        noise=(1, 5),
        quality=(70, 95),
    ),
)
CONDITIONS: Mapping[str, Condition] = {condition.name: condition for condition in _CONDITIONS}


def draw_condition(rng: random.Random, split: Split) -> Condition:
    """Return a condition of a split."""
    return rng.choice([condition for condition in _CONDITIONS if condition.split == split])
