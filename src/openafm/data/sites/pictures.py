"""Pictures of generated sites: drawn scenes in several formats and sizes, and files that a pipeline must drop."""

from __future__ import annotations

import io
import math
import random
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape, unescape
from typing import TYPE_CHECKING, Any

import numpy as np

from openafm.core.libraries import needed

if TYPE_CHECKING:
    from PIL.Image import Image

GOOD_KINDS = ("photo", "drawing", "webp", "large")
BAD_KINDS = ("icon", "banner", "truncated", "not_an_image", "missing")
KINDS = (*GOOD_KINDS, "animation", "copy", *BAD_KINDS)
"""Kinds of pictures: a JPEG with grain, a PNG of flat colors, a WebP, a JPEG of 1280 x 960, a GIF of three frames, a smaller
and more compressed copy of an earlier picture; and those that are too small, too wide, cut, text, or not on the server."""
_WEIGHTS = (30, 20, 12, 6, 3, 9, 5, 4, 4, 4, 3)
_JUNK_ALTS = ("image", "photo", "IMG_2041.jpg", "")
_FIGURE = re.compile(r'src="/images/\d+\.png" alt="([^"]*)"([^>]*)>(?:<figcaption>([^<]*)</figcaption>)?')
_PALETTE = ((200, 60, 50), (60, 130, 70), (60, 90, 190), (230, 190, 60), (240, 240, 235), (40, 40, 45), (150, 90, 160))


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file of the site that is not a page."""

    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


def with_pictures(html: str, page: str, assets: dict[str, Asset]) -> str:
    """Return the HTML of a block in which each figure has a picture of its own; the pictures are added to `assets`.

    The alt text of most pictures has words of the caption. Others have an alt text of another subject, a file name or none.
    """

    def replaced(match: re.Match[str]) -> str:
        alt, rest, caption = unescape(match[1]), match[2], unescape(match[3] or "")
        rng = random.Random(f"{page}/{alt}/{caption}")
        kind = rng.choices(KINDS, _WEIGHTS)[0]
        alt = _alt(rng, alt, caption)
        picture = draw_picture(rng, kind, [each for path, each in assets.items() if path.startswith("/pictures/")])
        name = f"/pictures/{_slug(caption) or 'p'}-{rng.randrange(1 << 32):08x}.{_suffix(picture)}"
        if kind != "missing":
            assets[name] = picture
        return f'src="{escape(name)}" alt="{escape(alt)}"{rest}>' + (
            f"<figcaption>{match[3]}</figcaption>" if match[3] else ""
        )

    return _FIGURE.sub(replaced, html)


def draw_picture(rng: random.Random, kind: str, earlier: list[Asset]) -> Asset:
    """Return a picture of one of `KINDS`; `earlier` are those to copy."""
    with needed("pictures of generated sites", "Pillow", "images"):
        from PIL import Image as Images
    no_training = {"x-robots-tag": "noai, noimageai"} if rng.random() < 0.03 else {}
    if kind == "copy":
        good = [each for each in earlier if each.content_type in ("image/jpeg", "image/png") and _opens(each.body)]
        if good:
            image = Images.open(io.BytesIO(rng.choice(good).body)).convert("RGB")
            smaller = image.resize((image.width * 3 // 4, image.height * 3 // 4))
            return Asset(body=_encoded(smaller, "JPEG", quality=60), content_type="image/jpeg")
        kind = "photo"
    if kind == "not_an_image":
        return Asset(body=b"<html><body>sign in</body></html>", content_type="image/jpeg")
    sizes = {"icon": (48, 48), "banner": (960, 72), "large": (1280, 960)}
    width, height = sizes.get(kind, rng.choice(((640, 480), (480, 640), (512, 512), (800, 450))))
    grain = 0.0 if kind in ("drawing", "animation") else 6.0
    image = _scene(rng, width, height, grain)
    if kind == "animation":
        frames = [_scene(rng, width, height, grain) for _ in range(2)]
        return Asset(body=_encoded(image, "GIF", save_all=True, append_images=frames), content_type="image/gif")
    if kind == "drawing":
        return Asset(body=_encoded(image, "PNG"), content_type="image/png", headers=no_training)
    if kind == "webp":
        return Asset(body=_encoded(image, "WEBP", quality=80), content_type="image/webp", headers=no_training)
    data = _encoded(image, "JPEG", quality=85)
    return Asset(
        body=data[: len(data) // 3] if kind == "truncated" else data, content_type="image/jpeg", headers=no_training
    )


def _scene(rng: random.Random, width: int, height: int, grain: float) -> Image:
    """Return a picture of a gradient, shapes in different colors, and grain."""
    from PIL import Image as Images
    from PIL import ImageDraw

    top, bottom = (np.array(color, np.float64) for color in rng.sample(_PALETTE, 2))
    share_H = np.linspace(0, 1, height)[:, None, None]
    pixels_HWC = np.broadcast_to(top * (1 - share_H) + bottom * share_H, (height, width, 3)).astype(np.uint8)
    image = Images.fromarray(np.ascontiguousarray(pixels_HWC))
    draw = ImageDraw.Draw(image)
    for _ in range(rng.randint(4, 9)):
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        radius = rng.uniform(0.06, 0.25) * min(width, height)
        color = rng.choice(_PALETTE)
        sides = rng.choice((3, 4, 5, 60))
        turn = rng.uniform(0, math.tau)
        angles = [turn + math.tau * side / sides for side in range(sides)]
        draw.polygon([(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles], fill=color)
    if grain:
        noise = np.random.default_rng(rng.randrange(1 << 32)).normal(0, grain, (height, width, 1))
        image = Images.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    return image


def _encoded(image: Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def _opens(data: bytes) -> bool:
    from PIL import Image as Images

    try:
        Images.open(io.BytesIO(data)).load()
    except (OSError, SyntaxError):
        return False
    return True


def _alt(rng: random.Random, alt: str, caption: str) -> str:
    draw = rng.random()
    if draw < 0.7 and caption:
        words = caption.split()
        return " ".join(words[:12]) if len(words) > 3 else caption
    return alt if draw < 0.85 else rng.choice(_JUNK_ALTS)


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return "-".join(re.findall(r"[a-z0-9]+", plain)[:6])


def _suffix(picture: Asset) -> str:
    return picture.content_type.rpartition("/")[2].replace("jpeg", "jpg")
