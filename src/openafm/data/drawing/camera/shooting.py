"""The photograph: relief, surface, light, covers, blur, noise and JPEG, each written to the log."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from openafm.data.drawing.camera.conditions import Condition
from openafm.data.drawing.camera.geometry import Geometry, draw_geometry
from openafm.data.drawing.canvas import Canvas, png_bytes
from openafm.data.images.documents import Box, Region

if TYPE_CHECKING:
    from PIL.Image import Image

_COARSE = 4
_TRIES = 12


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

    def truth(self, canvas: Canvas, words: Sequence[Region]) -> dict[str, object]:
        """Return what an independent check needs (`recheck.py`): commands, words of the drawing, covered ones, camera."""
        return {
            "commands": canvas.commands,
            "words": [{"text": region.label, "box": list(region.box)} for region in words],
            "covered": sorted(self.covered),
            "camera": self.log,
        }


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
        replace(region, box=box, centers=geometry.points(region.centers))
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


def jpeg_bytes(image: Image, quality: int) -> bytes:
    """Return an image as JPEG with fixed settings."""
    out = io.BytesIO()
    image.convert("RGB").save(out, "JPEG", quality=quality, subsampling=2 if quality < 90 else 0)
    return out.getvalue()


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
