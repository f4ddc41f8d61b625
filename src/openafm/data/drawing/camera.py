"""Conditions under which a drawing is seen: a file, a scan, or a photograph, each logged, with the regions transformed.

A photograph bends the sheet (crumples, folds), lights it, puts it on a surface in perspective, covers a part, blurs, adds
noise, and encodes as JPEG. `Geometry` maps points of the drawing to points of the photograph; the pixels go through a mesh
of its inverse.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from openafm.data.drawing.base import Split
from openafm.data.drawing.canvas import png_bytes
from openafm.data.images.documents import Box, Region

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    Points: TypeAlias = NDArray[np.float64]

_CELLS = 20
_BORDER_POINTS = 5
_EDGE_POINTS = 24
_COARSE = 4
_TRIES = 12


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


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A photograph: encoded bytes, the regions that are visible, the indices of those that are covered, and the log."""

    data: bytes
    format: Literal["png", "jpeg"]
    width: int
    height: int
    regions: tuple[Region, ...]
    covered: frozenset[int]
    log: dict[str, object]


def draw_condition(rng: random.Random, split: Split) -> Condition:
    """Return a condition of a split."""
    return rng.choice([condition for condition in _CONDITIONS if condition.split == split])


def shoot(
    image: Image, regions: Sequence[Region], rng: random.Random, condition: Condition, *, protected: Collection[int] = ()
) -> Shot:
    """Return a drawing as seen under a condition.

    Args:
        regions: words and parts of the drawing; their boxes are transformed.
        protected: indices of regions that nothing may cover.
    """
    if not condition.camera:
        quality = rng.randint(*condition.quality) if condition.quality[1] else 0
        data = jpeg_bytes(image, quality) if quality else png_bytes(image)
        return Shot(
            data=data,
            format="jpeg" if quality else "png",
            width=image.width,
            height=image.height,
            regions=tuple(regions),
            covered=frozenset(),
            log={"condition": condition.name, "quality": quality},
        )
    geometry = draw_geometry(rng, image.width, image.height, condition)
    boxes = geometry.boxes([region.box for region in regions])
    paper = _with_relief(image, geometry)
    scene = _with_sheet(_surface(rng, geometry), paper, geometry)
    log: dict[str, object] = {"condition": condition.name, "geometry": geometry.log()}
    scene = _lit(scene, rng, condition, log)
    covered: frozenset[int] = frozenset()
    if condition.cover:
        scene, covered = _cover(scene, rng, boxes, set(protected), log)
    scene = _blurred(scene, rng, condition, log)
    scene = _noisy(scene, rng, condition, log)
    quality = rng.randint(*condition.quality)
    log["quality"] = quality
    seen = tuple(
        Region(label=region.label, box=box, kind=region.kind)
        for index, (region, box) in enumerate(zip(regions, boxes, strict=True))
        if index not in covered
    )
    return Shot(
        data=jpeg_bytes(scene, quality),
        format="jpeg",
        width=scene.width,
        height=scene.height,
        regions=seen,
        covered=covered,
        log=log,
    )


class Geometry:
    """Where points of the drawing are in the photograph: bent by waves and folds, then seen in perspective."""

    def __init__(
        self,
        source: tuple[int, int],
        size: tuple[int, int],
        corners: Sequence[Sequence[float]],
        waves: Sequence[Sequence[float]] = (),
        folds: Sequence[Sequence[float]] = (),
    ) -> None:
        import numpy as np

        self.source = source
        self.width, self.height = size
        self._corners = [[float(value) for value in corner] for corner in corners]
        self._waves = [[float(value) for value in wave] for wave in waves]
        self._folds = [[float(value) for value in fold] for fold in folds]
        width, height = source
        flat = [(0, 0), (width, 0), (width, height), (0, height)]
        self._forward = _homography(flat, self._corners)
        self._backward = np.linalg.inv(self._forward).astype(np.float64)

    def log(self) -> dict[str, object]:
        """The numbers from which `Geometry.of_log` builds it again."""
        return {
            "source": list(self.source),
            "size": [self.width, self.height],
            "corners": self._corners,
            "waves": self._waves,
            "folds": self._folds,
        }

    @classmethod
    def of_log(cls, log: Mapping[str, list[list[float]]]) -> Geometry:
        """Return the geometry that `log` describes."""
        source, size = ([int(value) for value in log[name]] for name in ("source", "size"))  # type: ignore[call-overload]
        return cls((source[0], source[1]), (size[0], size[1]), log["corners"], log["waves"], log["folds"])

    def shift(self, points: Points) -> Points:
        """Return how far the bends move points of the drawing."""
        import numpy as np

        moved = np.zeros_like(points)
        for amplitude, angle, wave_x, wave_y, phase in self._waves:
            height = amplitude * np.sin(points[:, 0] * wave_x + points[:, 1] * wave_y + phase)
            moved += height[:, None] * np.array([math.cos(angle), math.sin(angle)])
        for axis, at, slope, reach in self._folds:
            distance = points[:, int(axis)] - at
            moved[:, 1 - int(axis)] += slope * np.clip(reach - np.abs(distance), 0, None)
        return moved

    def to_photograph(self, points: Points) -> Points:
        """Return points of the drawing as points of the photograph."""
        return _applied(self._forward, points + self.shift(points))

    def to_drawing(self, points: Points) -> Points:
        """Return points of the photograph as points of the drawing."""
        flat = _applied(self._backward, points)
        found = flat
        for _ in range(6):
            found = flat - self.shift(found)
        return found

    def boxes(self, boxes: Sequence[Box]) -> list[Box]:
        """Return the boxes around boxes of the drawing, within the photograph."""
        import numpy as np

        if not boxes:
            return []
        steps = np.linspace(0, 1, _BORDER_POINTS)
        rim = np.array([(x, y) for x in steps for y in steps if x in (0, 1) or y in (0, 1)])
        flat = np.array(boxes, dtype=np.float64)
        low, high = flat[:, :2], flat[:, 2:]
        points = low[:, None] + (high - low)[:, None] * rim
        mapped = self.to_photograph(points.reshape(-1, 2)).reshape(len(boxes), -1, 2)
        low, high = mapped.min(axis=1), mapped.max(axis=1)
        low = np.clip(low - 0.5, 0, (self.width, self.height)).round(1)
        high = np.clip(high + 0.5, 0, (self.width, self.height)).round(1)
        return [(float(a), float(b), float(c), float(d)) for (a, b), (c, d) in zip(low, high, strict=True)]

    def warp(self, image: Image) -> Image:
        """Return an image of the drawing's size as the photograph shows it; black around it."""
        import numpy as np
        from PIL.Image import Resampling, Transform

        size = (self.width, self.height)
        if not self._waves and not self._folds:
            coefficients = tuple(float(value) for value in (self._backward / self._backward[2, 2]).ravel()[:8])
            return image.transform(size, Transform.PERSPECTIVE, coefficients, Resampling.BILINEAR)
        outline = np.array(self.outline())
        (left, top), (right, bottom) = (
            (np.floor(outline.min(axis=0)) - 3).astype(int),
            (np.ceil(outline.max(axis=0)) + 3).astype(int),
        )
        columns = np.linspace(max(left, 0), min(right, self.width), _CELLS + 1).astype(int)
        rows = np.linspace(max(top, 0), min(bottom, self.height), _CELLS + 1).astype(int)
        grid = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2).astype(np.float64)
        found = self.to_drawing(grid).reshape(_CELLS + 1, _CELLS + 1, 2)
        mesh = []
        for row in range(_CELLS):
            for column in range(_CELLS):
                box = (int(columns[column]), int(rows[row]), int(columns[column + 1]), int(rows[row + 1]))
                corners = (found[row, column], found[row + 1, column], found[row + 1, column + 1], found[row, column + 1])
                mesh.append((box, tuple(np.concatenate(corners).tolist())))
        return image.transform(size, Transform.MESH, mesh, Resampling.BILINEAR)

    def outline(self) -> list[tuple[float, float]]:
        """Return the edge of the sheet in the photograph, without its outermost pixels, as a polygon."""
        import numpy as np

        width, height = self.source
        steps = np.linspace(0, 1, _EDGE_POINTS, endpoint=False)
        sides = [[(t, 0) for t in steps], [(1, t) for t in steps], [(1 - t, 1) for t in steps], [(0, 1 - t) for t in steps]]
        edge = 1 + np.array([point for side in sides for point in side]) * (width - 2, height - 2)
        return [(float(x), float(y)) for x, y in self.to_photograph(edge)]


def draw_geometry(rng: random.Random, width: int, height: int, condition: Condition) -> Geometry:
    """Return how a drawing lies in a photograph."""
    share = rng.uniform(*condition.scale)
    angle = math.radians(rng.uniform(-condition.turn, condition.turn))
    cosine, sine = math.cos(angle), math.sin(angle)
    tilt = condition.tilt * min(width, height)
    corners = []
    for x, y in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)):
        x, y = x * width, y * height
        corners.append((x * cosine - y * sine + rng.uniform(-tilt, tilt), x * sine + y * cosine + rng.uniform(-tilt, tilt)))
    low = [min(corner[axis] for corner in corners) for axis in (0, 1)]
    high = [max(corner[axis] for corner in corners) for axis in (0, 1)]
    scale = share * width / (high[0] - low[0])
    size = (width, max(height, round((high[1] - low[1]) * scale / share)))  # strips that are turned need more height
    middle = [(low[axis] + high[axis]) / 2 for axis in (0, 1)]
    room = [size[axis] - (high[axis] - low[axis]) * scale for axis in (0, 1)]
    at = [size[axis] / 2 + rng.uniform(-0.4, 0.4) * room[axis] for axis in (0, 1)]
    placed = [[(corner[axis] - middle[axis]) * scale + at[axis] for axis in (0, 1)] for corner in corners]
    waves = []
    if condition.bend[1]:
        for _ in range(4):
            length = width * rng.uniform(0.2, 0.6)
            direction = rng.uniform(0, 2 * math.pi)
            frequency = 2 * math.pi / length
            waves.append(
                [
                    width * rng.uniform(*condition.bend),
                    rng.uniform(0, 2 * math.pi),
                    frequency * math.cos(direction),
                    frequency * math.sin(direction),
                    rng.uniform(0, 2 * math.pi),
                ]
            )
    folds = []
    for fold in range(condition.folds):
        axis = fold % 2
        length = (width, height)[axis]
        folds.append([axis, length * rng.uniform(0.4, 0.6), rng.uniform(-0.03, 0.03), length * 0.3])
    return Geometry((width, height), size, placed, waves, folds)


def jpeg_bytes(image: Image, quality: int) -> bytes:
    """Return an image as JPEG with fixed settings."""
    out = io.BytesIO()
    image.convert("RGB").save(out, "JPEG", quality=quality, subsampling=2 if quality < 90 else 0)
    return out.getvalue()


def _homography(source: Sequence[Sequence[float]], target: Sequence[Sequence[float]]) -> Points:
    import numpy as np

    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved = np.linalg.solve(np.array(rows, dtype=np.float64), np.array(values, dtype=np.float64))
    matrix: Points = np.append(solved, 1.0).reshape(3, 3)
    return matrix


def _applied(matrix: Points, points: Points) -> Points:
    mapped: Points = points @ matrix[:, :2].T + matrix[:, 2]
    return mapped[:, :2] / mapped[:, 2:]


def _with_relief(image: Image, geometry: Geometry) -> Image:
    """The drawing with the light and shade of its bends."""
    import numpy as np
    from PIL import Image as Images
    from PIL import ImageChops

    log = geometry.log()
    if not log["waves"] and not log["folds"]:
        return image
    width, height = geometry.source
    count = 64
    xs, ys = np.meshgrid(np.linspace(0, width, count), np.linspace(0, height, count))
    moved = geometry.shift(np.stack([xs.ravel(), ys.ravel()], axis=1)).reshape(count, count, 2)
    relief = moved.sum(axis=2)
    slope = np.gradient(relief, axis=0) + np.gradient(relief, axis=1)
    strength = slope / (np.abs(slope).max() or 1.0)
    shade = Images.fromarray((232 + 23 * strength).astype(np.uint8)).resize(image.size, Images.Resampling.BILINEAR)
    return ImageChops.multiply(image, shade.convert("RGB"))


def _surface(rng: random.Random, geometry: Geometry) -> Image:
    """What the sheet lies on: a color with coarse texture, and the shadow of the sheet; drawn at a quarter of the size."""
    import numpy as np
    from PIL import Image as Images
    from PIL import ImageDraw, ImageFilter

    numbers = np.random.default_rng(rng.getrandbits(64))
    base = np.array([rng.randint(30, 220) for _ in range(3)], dtype=np.float64)
    base += (base.mean() - base) * rng.uniform(0.3, 0.9)
    rows, columns = rng.choice(((24, 24), (4, 48), (48, 4), (8, 8)))
    texture = base + numbers.normal(0, rng.uniform(4, 16), (rows, columns, 1)) + numbers.normal(0, 3, (rows, columns, 3))
    small = (-(-geometry.width // _COARSE), -(-geometry.height // _COARSE))
    surface = Images.fromarray(texture.clip(0, 255).astype(np.uint8)).resize(small, Images.Resampling.BILINEAR)
    shadow = Images.new("L", small)
    dx, dy = rng.randint(-6, 8), rng.randint(0, 10)
    ImageDraw.Draw(shadow).polygon([((x + dx) / _COARSE, (y + dy) / _COARSE) for x, y in geometry.outline()], fill=140)
    surface.paste((0, 0, 0), mask=shadow.filter(ImageFilter.GaussianBlur(rng.uniform(1, 3))))
    return surface.resize((geometry.width, geometry.height), Images.Resampling.BILINEAR)


def _with_sheet(scene: Image, paper: Image, geometry: Geometry) -> Image:
    """The surface with the bent sheet on it."""
    from PIL import Image as Images
    from PIL import ImageDraw

    mask = Images.new("L", scene.size)
    ImageDraw.Draw(mask).polygon(geometry.outline(), fill=255)
    scene.paste(geometry.warp(paper), mask=mask)
    return scene


def _lit(scene: Image, rng: random.Random, condition: Condition, log: dict[str, object]) -> Image:
    """Light from one side, a tint, a shadow across, and glare."""
    import numpy as np
    from PIL import Image as Images
    from PIL import ImageChops

    dark, bright = condition.light
    count = 24
    xs, ys = np.meshgrid(np.linspace(-1, 1, count), np.linspace(-1, 1, count))
    angle = rng.uniform(0, 2 * math.pi)
    ramp = (xs * math.cos(angle) + ys * math.sin(angle)) / 2.83 + 0.5
    light = (dark + (bright - dark) * ramp)[..., None] * np.array(
        [1 + rng.uniform(-condition.tint, condition.tint) for _ in range(3)]
    )
    log["light"] = {"dark": dark, "bright": bright, "angle": round(angle, 3)}
    if condition.shadow:
        side, at, depth = rng.uniform(0, 2 * math.pi), rng.uniform(-0.5, 0.5), rng.uniform(0.45, 0.7)
        edge = xs * math.cos(side) + ys * math.sin(side) - at
        light *= (1 - (1 - depth) / (1 + np.exp(-edge * 12)))[..., None]
        log["shadow"] = {"angle": round(side, 3), "at": round(at, 3), "depth": round(depth, 3)}
    gain = max(float(light.max()), 1e-6)
    shade = Images.fromarray((light / gain * 255).clip(0, 255).astype(np.uint8)).resize(
        scene.size, Images.Resampling.BILINEAR
    )
    lit = ImageChops.multiply(scene, shade)
    if gain != 1:
        lit = lit.point([min(round(value * gain), 255) for value in range(256)] * 3)
    if condition.glare:
        x, y, radius, peak = rng.uniform(-0.7, 0.7), rng.uniform(-0.7, 0.7), rng.uniform(0.3, 0.6), rng.uniform(60, 130)
        spot = peak * np.exp(-((xs - x) ** 2 + (ys - y) ** 2) / radius**2)
        bright_spot = Images.fromarray(spot.astype(np.uint8)).resize(scene.size, Images.Resampling.BILINEAR)
        lit = ImageChops.screen(lit, Images.merge("RGB", [bright_spot] * 3))
        log["glare"] = {"at": [round(x, 3), round(y, 3)], "radius": round(radius, 3), "peak": round(peak)}
    if rng.random() < condition.gray_share:
        lit = lit.convert("L").convert("RGB")
        log["gray"] = True
    return lit


def _cover(
    scene: Image, rng: random.Random, boxes: Sequence[Box], protected: set[int], log: dict[str, object]
) -> tuple[Image, frozenset[int]]:
    """Cover a part with a finger, a pen or a cup; regions that it touches count as covered."""
    from PIL import Image as Images
    from PIL import ImageDraw, ImageFilter

    width, height = scene.size
    for _ in range(_TRIES):
        kind = rng.choice(("finger", "pen", "cup"))
        x, y, angle = rng.choice((0.0, 1.0)) * width, rng.uniform(0.1, 0.95) * height, rng.uniform(-0.6, 0.6)
        reach = math.cos(angle) * (1 if x == 0 else -1)
        mask = Images.new("L", (width, height), 0)
        draw = ImageDraw.Draw(mask)
        if kind == "cup":
            radius = width * rng.uniform(0.07, 0.13)
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        else:
            thick = width * (rng.uniform(0.05, 0.08) if kind == "finger" else rng.uniform(0.012, 0.02))
            length = width * (rng.uniform(0.12, 0.2) if kind == "finger" else rng.uniform(0.25, 0.5))
            tip = (x + reach * length, y + math.sin(angle) * length)
            draw.line([(x, y), tip], fill=255, width=round(thick * 2))
            draw.ellipse((tip[0] - thick, tip[1] - thick, tip[0] + thick, tip[1] + thick), fill=255)
        shape = mask.getbbox()
        if shape is None:
            continue
        touched = {index for index, box in enumerate(boxes) if _meets(mask, box)}
        if touched & protected:
            continue
        color = (
            (rng.randint(170, 235), rng.randint(120, 175), rng.randint(95, 150))
            if kind == "finger"
            else (rng.randint(0, 240), rng.randint(0, 240), rng.randint(0, 240))
        )
        soft = mask.crop(shape).filter(ImageFilter.GaussianBlur(1.5))
        covered = scene.copy()
        covered.paste(color, shape[:2], soft)
        log["cover"] = {"kind": kind, "box": list(shape), "covered": sorted(touched)}
        return covered, frozenset(touched)
    log["cover"] = {"kind": "none"}
    return scene, frozenset()


def _meets(mask: Image, box: Box) -> bool:
    """Whether the mask covers a pixel of a box with a margin."""
    left, top, right, bottom = (round(value) for value in box)
    return mask.crop((left - 3, top - 3, right + 3, bottom + 3)).getbbox() is not None


def _blurred(scene: Image, rng: random.Random, condition: Condition, log: dict[str, object]) -> Image:
    from PIL import Image as Images
    from PIL import ImageChops, ImageFilter

    radius = rng.uniform(*condition.blur)
    if radius > 0:
        near, far = math.exp(-0.5 / radius**2), math.exp(-1 / radius**2)
        scene = scene.filter(ImageFilter.Kernel((3, 3), (far, near, far, near, 1, near, far, near, far)))
        log["blur"] = round(radius, 3)
    if condition.motion:
        distance = rng.randint(1, condition.motion)
        dx, dy = rng.choice(((1, 0), (0, 1), (1, 1)))
        moved = ImageChops.offset(scene, dx * distance, dy * distance)
        half = ImageChops.offset(scene, dx * (distance // 2), dy * (distance // 2))
        scene = Images.blend(Images.blend(scene, moved, 0.5), half, 0.34)
        log["motion"] = [dx * distance, dy * distance]
    return scene


def _noisy(scene: Image, rng: random.Random, condition: Condition, log: dict[str, object]) -> Image:
    """Noise of the sensor: one tile, repeated, so that it costs little."""
    import numpy as np
    from PIL import Image as Images
    from PIL import ImageChops

    sigma = rng.uniform(*condition.noise)
    if sigma <= 0:
        return scene
    log["noise"] = round(sigma, 2)
    tile = np.random.default_rng(rng.getrandbits(64)).normal(128, sigma, (211, 223, 3)).clip(0, 255).round().astype(np.uint8)
    rows, columns = -(-scene.height // 211), -(-scene.width // 223)
    grain = Images.fromarray(np.tile(tile, (rows, columns, 1))[: scene.height, : scene.width])
    return ImageChops.add(scene, grain, 1.0, -128)
