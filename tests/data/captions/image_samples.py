"""Small image corpora for tests: colored rectangles with known places."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import PIL.Image

from openafm.data.images.documents import ImageDocument, ImagePart, Region, StoredImage, TextPart
from openafm.data.images.shard_writer import finish_corpus, write_image_shard
from openafm.data.images.shards import ImageCorpus, open_image_corpus

COLORS = {"red": (220, 30, 30), "green": (30, 160, 40), "blue": (30, 60, 220), "yellow": (240, 220, 40)}
WIDTH, HEIGHT = 120, 80
BOXES = ((6, 8, 40, 40), (70, 44, 110, 76))


def image_of(*colors: str, background: int = 255, opt_out: str = "") -> StoredImage:
    """Return an image with a rectangle of each color, at `BOXES`."""
    image = PIL.Image.new("RGB", (WIDTH, HEIGHT), (background,) * 3)
    for color, box in zip(colors, BOXES, strict=False):
        image.paste(COLORS[color], box)
    file = io.BytesIO()
    image.save(file, "PNG")
    data = file.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    return StoredImage(digest=digest, data=data, format="png", width=WIDTH, height=HEIGHT, opt_out=opt_out)


def pair_of(
    *colors: str, alt: str = "", background: int = 255, opt_out: str = ""
) -> tuple[ImageDocument, list[StoredImage]]:
    """Return a pair of an image and its alt text, with its regions."""
    image = image_of(*colors, background=background, opt_out=opt_out)
    regions = tuple(Region(label=f"{color} rectangle", box=box) for color, box in zip(colors, BOXES, strict=False))
    document = ImageDocument(
        id=f"pair-{image.digest[:8]}",
        kind="pair",
        parts=(ImagePart(digest=image.digest),),
        language="en",
        captions={"alt": alt} if alt else {},
        regions=regions,
        source=f"https://example.org/{image.digest[:8]}",
    )
    return document, [image]


def interleaved_of(*pairs: tuple[ImageDocument, list[StoredImage]]) -> tuple[ImageDocument, list[StoredImage]]:
    images = [image for _, found in pairs for image in found]
    parts = tuple(part for image in images for part in (TextPart(text="Look:"), ImagePart(digest=image.digest)))
    return ImageDocument(id="page", kind="interleaved", parts=parts, language="en"), images


def corpus_of(folder: Path, *shards: Sequence[tuple[ImageDocument, list[StoredImage]]]) -> ImageCorpus:
    folder.mkdir(parents=True)
    summaries = [write_image_shard(folder, index, items) for index, items in enumerate(shards)]
    finish_corpus(folder, {"made": "by a test"}, summaries)
    return open_image_corpus(folder)


def color_at(data: bytes, x: int, y: int) -> str:
    """Return the name of the color of a pixel, or white."""
    pixel = PIL.Image.open(io.BytesIO(data)).convert("RGB").getpixel((x, y))
    return next((name for name, color in COLORS.items() if color == pixel), "white")
