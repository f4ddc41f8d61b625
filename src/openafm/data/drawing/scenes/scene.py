"""A scene: objects at places of an image, drawn, with what is true about them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openafm.data.drawing.base import Split
from openafm.data.drawing.canvas import Canvas, Color
from openafm.data.drawing.fonts import fonts_for
from openafm.data.drawing.scenes.objects import SceneObject, draw_object, kinds_of
from openafm.data.images.documents import Box

Side = Literal["left", "right", "above", "below"]
_SIDES = ((512, 512), (640, 480), (480, 640), (600, 600))
_LARGEST, _SMALLEST, _GAP = 150, 60, 10
_TRIES = 60
_REPEATED_SHARE, _THINGS_SHARE = 0.45, 0.6
_BADGE = 15


@dataclass(frozen=True)
class PlacedObject:
    """An object and its box. `mark` is the number drawn on it; 0 for none."""

    kind: SceneObject
    box: Box
    mark: int = 0

    @property
    def center(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


@dataclass(frozen=True)
class Scene:
    """The objects of an image, from top to bottom and left to right, and the canvas that they are drawn on."""

    canvas: Canvas
    background: Color
    objects: tuple[PlacedObject, ...]

    @property
    def counts(self) -> Counter[SceneObject]:
        """How many objects of each kind there are, in reading order."""
        return Counter(placed.kind for placed in self.objects)

    @property
    def unique(self) -> list[PlacedObject]:
        """The objects whose kind occurs once."""
        counts = self.counts
        return [placed for placed in self.objects if counts[placed.kind] == 1]

    def area(self, placed: PlacedObject) -> tuple[int, int] | None:
        """The row and column of nine parts that an object is in; None near a border between parts."""
        found = []
        for value, extent in zip(reversed(placed.center), (self.canvas.height, self.canvas.width), strict=True):
            share = value / extent * 3
            if min(abs(share - 1), abs(share - 2)) < 0.15:
                return None
            found.append(int(share))
        return found[0], found[1]


def relation(first: PlacedObject, second: PlacedObject) -> Side | None:
    """Return on which side of the second object the first one clearly is."""
    dx, dy = (a - b for a, b in zip(first.center, second.center, strict=True))
    if abs(dx) > 1.5 * abs(dy) and (first.box[2] < second.box[0] or first.box[0] > second.box[2]):
        return "left" if dx < 0 else "right"
    if abs(dy) > 1.5 * abs(dx) and (first.box[3] < second.box[1] or first.box[1] > second.box[3]):
        return "above" if dy < 0 else "below"
    return None


def draw_scene(rng: random.Random, split: Split, count: int, *, marked: bool) -> Scene:
    """Return a scene with up to `count` objects that do not touch."""
    width, height = rng.choice(_SIDES)
    background = (rng.randint(215, 255), rng.randint(215, 255), rng.randint(215, 255))
    canvas = Canvas(width, height, background)
    kinds = _draw_kinds(rng, split, count)
    placed: list[PlacedObject] = []
    for kind in kinds:
        for _ in range(_TRIES):
            size = rng.randint(_SMALLEST, _LARGEST if count < 6 else 110)
            picture = draw_object(kind, size)
            x, y = rng.randint(4, width - picture.width - 4), rng.randint(4, height - picture.height - 4)
            box = (x, y, x + picture.width, y + picture.height)
            if all(_apart(box, other.box) for other in placed):
                canvas.paste(picture, x, y, label=kind.name)
                placed.append(PlacedObject(kind, canvas.regions[-1].box))
                break
    placed.sort(key=lambda item: (item.box[1] // 120, item.box[0]))
    if marked:
        placed = _with_marks(rng, canvas, placed)
    return Scene(canvas, background, tuple(placed))


def _draw_kinds(rng: random.Random, split: Split, count: int) -> list[SceneObject]:
    """Kinds of `count` objects, some of them several times."""
    known = kinds_of(split)
    shapes = [kind for kind in known if kind.color is not None]
    things = [kind for kind in known if kind.color is None] or shapes
    kinds: list[SceneObject] = []
    while len(kinds) < count:
        kind = rng.choice(things if rng.random() < _THINGS_SHARE else shapes)
        copies = rng.randint(2, 4) if rng.random() < _REPEATED_SHARE else 1
        if kind not in kinds:
            kinds += [kind] * min(copies, count - len(kinds))
    return kinds


def _apart(first: Box, second: Box) -> bool:
    return (
        first[2] + _GAP <= second[0]
        or second[2] + _GAP <= first[0]
        or first[3] + _GAP <= second[1]
        or second[3] + _GAP <= first[1]
    )


def _with_marks(rng: random.Random, canvas: Canvas, placed: Sequence[PlacedObject]) -> list[PlacedObject]:
    """The objects with numbers in discs on them, in random order."""
    font = next(font for font in fonts_for("en", style="sans") if not font.is_italic)
    numbers = rng.sample(range(1, len(placed) + 1), len(placed))
    for item, number in zip(placed, numbers, strict=True):
        x, y = (round(value) for value in item.center)
        disc = (x - _BADGE, y - _BADGE, x + _BADGE, y + _BADGE)
        canvas.ellipse(disc, fill=(255, 255, 255), outline=(0, 0, 0), width=2)
        canvas.text(x, y, str(number), font, 19, anchor="mm", kind="mark")
    return [PlacedObject(item.kind, item.box, number) for item, number in zip(placed, numbers, strict=True)]
