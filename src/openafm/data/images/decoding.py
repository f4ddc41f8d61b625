"""Decoding of images from anywhere: untrusted bytes -> a `StoredImage` that any program can read, or the reason for a drop.

Stored images are 8-bit RGB or gray PNG, JPEG or WebP files without metadata. A file that already is one of these keeps its
compressed data, and only its metadata is removed. Others are encoded again as RGB on white: JPEG if their format
loses detail, else PNG. Color profiles are ignored, as training sets for images do.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError
from openafm.core.libraries import needed
from openafm.data.images.documents import StoredImage
from openafm.data.images.metadata import UnknownLayoutError, lacks_rows, without_metadata
from openafm.data.web.documents import Dropped

if TYPE_CHECKING:
    from PIL.Image import Image

REASONS = ("not_an_image", "svg", "too_many_bytes", "too_many_pixels", "too_small", "aspect_ratio", "damaged")
"""Reasons for which an image is dropped."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Formats that are read, by their names in Pillow. Others, such as EPS, start programs or are not images."""

_LOSSY = ("JPEG", "MPO", "WEBP", "AVIF")
_STORED = {"PNG": "png", "JPEG": "jpeg", "WEBP": "webp"}
_PLAIN_MODES = ("RGB", "L")
_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = 1
_FIRST_TURNED = 5  # this orientation and higher ones swap the sides
_PNG_EXIF = (b"eXIf", b"profile type exif", b"adobe.xmp")
_JPEG_QUALITY = 95
_HEAD = 4096


class ImageDataError(OpenAFMError):
    """The bytes of a stored image cannot be decoded: they were changed after they were stored."""


@dataclass(frozen=True, kw_only=True)
class ImageLimits(Config):
    """What is read. `max_aspect` is the longer side divided by the shorter one."""

    max_bytes: int = 64 << 20
    max_pixels: int = 80_000_000
    min_side: int = 8
    max_aspect: float = 30.0

    def __post_init__(self) -> None:
        smallest = min(self.max_bytes, self.max_pixels, self.min_side)
        self.require(smallest > 0, f"max_bytes, max_pixels and min_side must be at least 1, got {smallest}")
        self.require(self.max_aspect >= 1, f"max_aspect must be at least 1, got {self.max_aspect}")


@dataclass(frozen=True, kw_only=True)
class DecodedImage:
    """A stored image and its pixels, so that filters need not decode it again."""

    stored: StoredImage
    pixels: npt.NDArray[np.uint8] = field(repr=False)
    """[H, W, 3] uint8."""


def stored_image(
    data: bytes, *, limits: ImageLimits | None = None, source: str = "", license: str = "", opt_out: str = ""
) -> StoredImage | Dropped:
    """Return an image as it is stored, or the reason for its drop (`REASONS`); see `decoded_image`."""
    decoded = decoded_image(data, limits=limits, source=source, license=license, opt_out=opt_out)
    return decoded if isinstance(decoded, Dropped) else decoded.stored


def decoded_image(
    data: bytes, *, limits: ImageLimits | None = None, source: str = "", license: str = "", opt_out: str = ""
) -> DecodedImage | Dropped:
    """Return an image with its pixels, or the reason for its drop (`REASONS`).

    EXIF orientation is applied; all metadata, such as GPS coordinates, is removed. Of an animation the first frame is kept
    and `metadata["frames"]` counts all. `metadata["original"]` has the format and mode of an image that was encoded again.
    """
    limits = limits or ImageLimits()
    if len(data) > limits.max_bytes:
        return Dropped(reason="too_many_bytes", detail=f"{len(data):,} bytes, allowed are {limits.max_bytes:,}", url=source)
    if _is_svg(data):
        return Dropped(reason="svg", detail="SVG can hold scripts and references to other files", url=source)
    with needed("decoding images", "Pillow", "images"):
        from PIL import Image

        _register_formats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about what is checked here
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except Image.DecompressionBombError as error:
            return Dropped(reason="too_many_pixels", detail=str(error), url=source)
        except Exception as error:  # malformed headers raise errors of many types
            return Dropped(reason=_reason_unopened(data), detail=str(error).partition("<")[0].strip(), url=source)
        problem = _size_problem(image.width, image.height, limits)
        if problem is not None:
            return Dropped(reason=problem.reason, detail=problem.detail, url=source)
        try:
            decoded = _decoded(data, image)
        except Exception as error:  # damaged data raises errors of many types, such as struct.error and SyntaxError
            return Dropped(reason="damaged", detail=f"{image.format}: {error}", url=source)
    stored, array, metadata = decoded.data, decoded.pixels, decoded.metadata
    return DecodedImage(
        stored=StoredImage(
            digest=hashlib.sha256(stored).hexdigest(),
            data=stored,
            format=decoded.format,
            width=array.shape[1],
            height=array.shape[0],
            source=source,
            license=license,
            opt_out=opt_out,
            metadata=metadata,
        ),
        pixels=array,
    )


def upright_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height of an image after EXIF orientation, from its header; None if it cannot be read."""
    with needed("decoding images", "Pillow", "images"):
        from PIL import Image

        _register_formats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except Exception:  # malformed headers raise errors of many types; `decoded_image` has the reason
            return None
    width, height = image.size
    return (height, width) if _orientation(data, image) >= _FIRST_TURNED else (width, height)


def pixels(image: StoredImage, *, side: int = 0) -> npt.NDArray[np.uint8]:
    """Return the pixels of a stored image, [H, W, 3] uint8.

    With `side`, a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, but with its shorter side not below `side`; this is
    several times faster. Equal arguments give equal pixels.

    Raises:
        ImageDataError: the bytes were changed after they were stored.
    """
    with needed("decoding images", "Pillow", "images"):
        from PIL import Image
    try:
        opened = Image.open(io.BytesIO(image.data), formats=tuple(_STORED))
        if side:
            scale = min(opened.size) / side
            if scale >= 2:
                opened.draft("RGB", (round(opened.width / scale), round(opened.height / scale)))
        return _rgb(opened)
    except Exception as error:  # damaged data raises errors of many types
        raise ImageDataError(
            f"the image {image.digest[:12]} cannot be decoded: {error}; copy its corpus again or make it again"
        ) from error


def png(array: npt.NDArray[np.uint8]) -> bytes:
    """Return pixels [H, W, 3] or [H, W] as a PNG file."""
    with needed("encoding images", "Pillow", "images"):
        from PIL import Image
    return _encoded(Image.fromarray(array), "png")


@dataclass(frozen=True, kw_only=True)
class _Decoded:
    data: bytes
    format: str
    pixels: npt.NDArray[np.uint8]
    metadata: dict[str, str]


def _decoded(data: bytes, image: Image) -> _Decoded:
    from PIL import Image as Images

    original = f"{image.format} {image.mode}"
    num_frames = int(getattr(image, "n_frames", 1)) if image.format != "MPO" else 1  # further pictures of one camera
    orientation = _orientation(data, image)
    if _is_plain(image) and num_frames == 1 and orientation == _UPRIGHT:
        try:
            kept = without_metadata(data, str(image.format))
        except UnknownLayoutError:
            kept = b""
        if kept:
            image = Images.open(io.BytesIO(kept), formats=tuple(_STORED))  # what is stored is what was checked
            _check_rows(image, kept)
            return _Decoded(data=kept, format=_STORED[str(image.format)], pixels=_rgb(image), metadata={})
    is_lossy = image.format in _LOSSY
    image.seek(0)
    _check_rows(image, data)
    upright = _upright(_on_white(image), orientation)
    format = "jpeg" if is_lossy else "png"
    encoded = _encoded(upright, format)
    if is_lossy:
        upright = Images.open(io.BytesIO(encoded))
    metadata = {"original": original} | ({"frames": str(num_frames)} if num_frames > 1 else {})
    return _Decoded(data=encoded, format=format, pixels=_rgb(upright), metadata=metadata)


@functools.cache
def _register_formats() -> None:
    """Load Pillow's readers of `FORMATS`. Otherwise it loads all of its 40 readers at the first WebP file, in 0.2 s."""
    for name in ("Avif", "Bmp", "Gif", "Jpeg", "Png", "Tiff", "WebP"):
        importlib.import_module(f"PIL.{name}ImagePlugin")


def _check_rows(image: Image, data: bytes) -> None:
    """Check that a PNG file whose last row is zero has data for this row."""
    last_row = image.crop((0, image.height - 1, image.width, image.height))
    if image.format == "PNG" and last_row.getbbox(alpha_only=False) is None and lacks_rows(data):
        raise UnknownLayoutError("its data ends before the last row")


def _is_plain(image: Image) -> bool:
    return image.format in (*_STORED, "MPO") and image.mode in _PLAIN_MODES and "transparency" not in image.info


def _is_svg(data: bytes) -> bool:
    head = data[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<svg", b"<!doctype svg")) or (head.startswith((b"<?xml", b"<!--")) and b"<svg" in head)


def _reason_unopened(data: bytes) -> str:
    """Return `damaged` if the file begins as one of the formats does, else `not_an_image`."""
    known = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*")
    return "damaged" if data.startswith(known) or data[8:12] in (b"WEBP", b"avif") else "not_an_image"


def _size_problem(width: int, height: int, limits: ImageLimits) -> Dropped | None:
    size = f"{width:,} x {height:,} pixels"
    if width * height > limits.max_pixels:
        return Dropped(reason="too_many_pixels", detail=f"{size}, allowed are {limits.max_pixels:,} in all")
    if min(width, height) < 1 or max(width, height) > limits.max_aspect * min(width, height):
        return Dropped(reason="aspect_ratio", detail=f"{size}, allowed is a ratio of {limits.max_aspect:g}")
    if min(width, height) < limits.min_side:
        return Dropped(reason="too_small", detail=f"{size}, the least side is {limits.min_side}")
    return None


def _orientation(data: bytes, image: Image) -> int:
    """Return the EXIF orientation, 1 to 8. Metadata that cannot be read has none."""
    if image.format == "PNG" and not any(name in data for name in _PNG_EXIF):
        return _UPRIGHT  # Pillow would decode the picture to look for EXIF after it
    try:
        value = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # malformed metadata raises errors of many types, and the image is good without it
        return _UPRIGHT
    return value if isinstance(value, int) and 1 <= value <= 8 else _UPRIGHT


def _upright(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    steps = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(steps[orientation]) if orientation in steps else image


def _rgb(image: Image) -> npt.NDArray[np.uint8]:
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _on_white(image: Image) -> Image:
    """Return a frame as 8-bit RGB; what is transparent becomes white."""
    from PIL import Image as Images

    image.load()
    if image.mode.startswith(("I", "F")):
        return Images.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Images.alpha_composite(Images.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return gray values of more than 8 bits as 8 bits: 16-bit integers by their high byte, others by their range."""
    if values.dtype.kind in "iu" and values.min() >= 0 and values.max() < 1 << 16:
        return (values.astype(np.uint16) >> 8).astype(np.uint8)
    real = np.nan_to_num(values.astype(np.float64))
    low, high = float(real.min()), float(real.max())
    return np.rint((real - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)


def _encoded(image: Image, format: str) -> bytes:
    stream = io.BytesIO()
    if format == "jpeg":
        image.save(stream, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    else:
        image.save(stream, "PNG", compress_level=6)
    return stream.getvalue()
