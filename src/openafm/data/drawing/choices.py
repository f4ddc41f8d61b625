"""What all generators share: the choice of a font, and PNG with fixed settings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from openafm.core.errors import OpenAFMError
from openafm.core.libraries import needed
from openafm.data.drawing.base import DrawnImage, Split
from openafm.data.drawing.canvas import Canvas, Color, png_bytes
from openafm.data.drawing.fonts import Font, FontMissingError, fonts_for, installed_fonts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DrawingFailedError(OpenAFMError):
    """No legible drawing was found for the drawn data; another index draws another one."""


def draw_font(
    rng: random.Random,
    language: str,
    split: Split,
    text: str,
    styles: Sequence[str] = ("sans",),
    *,
    is_light: bool = False,
) -> Font:
    """Return an upright font of one of the styles, or of any, that has all characters of a text; light is not bold.

    Raises:
        FontMissingError: no font of the split has them.
    """
    wanted: Any
    for wanted in (*rng.sample(list(styles), len(styles)), "any"):
        try:
            fonts = fonts_for(language, style=wanted, split=split)
        except FontMissingError:
            if wanted == "any":
                raise
            continue
        upright = [font for font in fonts if not font.is_italic and font.has(text)]
        families = sorted({font.family for font in upright})
        if families:
            family = rng.choice(families)
            faces = [font for font in upright if font.family == family]
            return rng.choice([font for font in faces if not font.is_bold] or faces if is_light else faces)
    raise FontMissingError(f"no installed font of split '{split}' has all characters of {text[:40]!r} in '{language}'")


def bold_of(font: Font, text: str) -> Font:
    """Return the bold face of a font's family, or the font itself if there is none with all characters of a text."""
    faces = [
        face
        for face in installed_fonts()
        if face.family == font.family and face.is_bold and not face.is_italic and face.has(text)
    ]
    return faces[0] if faces else font


def color_of(text: str) -> Color:
    """Return a color of the form `#rrggbb`."""
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


def image_of(canvas: Canvas) -> DrawnImage:
    """Return what a canvas shows, with its words as regions."""
    return DrawnImage(data=canvas.png(), width=canvas.width, height=canvas.height, regions=tuple(canvas.regions))


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels `[height, width, 3]` as PNG. The bytes are the same on every call."""
    with needed("Drawing", "Pillow", "images"):
        from PIL import Image
    return png_bytes(Image.fromarray(pixels))
