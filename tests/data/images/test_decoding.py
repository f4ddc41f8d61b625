"""Untrusted images: what is stored, without metadata, and the reasons for drops."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from openafm.data.images.decoding import (
    REASONS,
    DecodedImage,
    ImageDataError,
    ImageLimits,
    decoded_image,
    pixels,
    stored_image,
)
from openafm.data.images.documents import StoredImage
from openafm.data.web.documents import Dropped

WIDTH, HEIGHT = 96, 64


def picture() -> Image.Image:
    blocks = np.random.default_rng(0).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    return Image.fromarray(np.kron(blocks, np.ones((8, 8, 1), np.uint8)))


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def decoded(data: bytes, limits: ImageLimits | None = None) -> DecodedImage:
    result = decoded_image(data, limits=limits)
    assert isinstance(result, DecodedImage), result
    return result


def reason(data: bytes, limits: ImageLimits | None = None) -> str:
    result = stored_image(data, limits=limits, source="https://example.com/a.png")
    assert isinstance(result, Dropped)
    assert result.reason in REASONS
    assert result.detail
    assert result.url == "https://example.com/a.png"
    return result.reason


@pytest.mark.parametrize(
    ("format", "options"),
    [("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("WEBP", {"lossless": True})],
)
def test_compressed_data_is_kept(format: str, options: dict[str, Any]) -> None:
    data = encoded(picture(), format, **options)
    result = decoded(data)
    assert result.stored.data == data
    assert (result.stored.width, result.stored.height) == (WIDTH, HEIGHT)
    assert np.array_equal(result.pixels, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert np.array_equal(pixels(result.stored), result.pixels)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_metadata_is_removed_and_the_pixels_stay(format: str) -> None:
    exif = Image.Exif()
    exif[0x010F] = "camera of Ada"
    exif.get_ifd(0x8825)[1] = "N"
    data = encoded(picture(), format, exif=exif, icc_profile=b"profile of Ada" * 9)
    appended = data + b"appended by Ada"
    result = decoded(appended)
    assert b"Ada" in appended
    assert b"Ada" not in result.stored.data
    assert np.array_equal(result.pixels, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert not Image.open(io.BytesIO(result.stored.data)).getexif()


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_a_picture_is_decoded_once(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(), format)
    readers: list[object] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", _noted(ImageFile.ImageFile.load_prepare, readers))
    decoded(data)
    assert len(readers) == 1


def _noted(method: Callable[[object], None], callers: list[object]) -> Callable[[object], None]:
    def noted(self: object) -> None:
        callers.append(self)
        method(self)

    return noted


@pytest.mark.parametrize("orientation", range(2, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(), "PNG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(decoded(data).pixels, np.asarray(expected))


def test_other_modes_become_rgb_on_white() -> None:
    clear = picture().convert("RGBA")
    clear.putalpha(0)
    assert (decoded(encoded(clear, "PNG")).pixels == 255).all()
    plain = np.asarray(picture())
    for image in (picture().convert("RGBA"), picture().quantize(256)):
        assert np.abs(decoded(encoded(image, "PNG")).pixels.astype(int) - plain).max() <= 16
    cmyk = decoded(encoded(picture().convert("CMYK"), "JPEG", quality=95))
    assert cmyk.stored.format == "jpeg"
    assert cmyk.stored.metadata["original"] == "JPEG CMYK"
    assert np.abs(cmyk.pixels.astype(int) - plain).mean() < 6


def test_sixteen_bits_keep_their_contrast() -> None:
    gray = np.asarray(picture().convert("L")).astype(np.uint16) * 257
    assert np.array_equal(decoded(encoded(Image.fromarray(gray), "PNG")).pixels[..., 0], gray >> 8)


def test_the_first_frame_of_an_animation_is_kept_and_frames_are_counted() -> None:
    frames = [picture(), picture().transpose(Image.Transpose.ROTATE_180)]
    for format in ("PNG", "GIF", "WEBP"):
        data = encoded(frames[0], format, save_all=True, append_images=frames[1:], duration=100)
        result = decoded(data)
        assert result.stored.metadata["frames"] == "2"
        assert np.abs(result.pixels.astype(int) - np.asarray(frames[0])).mean() < 25, format


def test_cut_and_lying_files_are_damaged() -> None:
    png, jpeg = encoded(picture(), "PNG"), encoded(picture(), "JPEG")
    lying = bytearray(png)
    lying[16:24] = struct.pack(">II", WIDTH, 2 * HEIGHT)  # twice as high as its data
    lying[29:33] = struct.pack(">I", zlib.crc32(lying[12:29]))
    for data in (png[: len(png) // 2], jpeg[: len(jpeg) // 2], bytes(lying), png[:20], encoded(picture(), "WEBP")[:200]):
        assert reason(data) == "damaged"


def test_bombs_are_not_decoded() -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    bomb += struct.pack(">I", 100) + b"IDAT" + b"\0" * 104
    assert reason(bomb) == "too_many_pixels"
    assert reason(encoded(picture(), "PNG"), ImageLimits(max_pixels=1000)) == "too_many_pixels"
    assert reason(encoded(picture(), "PNG"), ImageLimits(max_bytes=100)) == "too_many_bytes"


def test_sizes_and_other_files() -> None:
    assert reason(encoded(Image.new("RGB", (20_000, 1)), "PNG")) == "aspect_ratio"
    assert reason(encoded(Image.new("RGB", (4, 4)), "PNG")) == "too_small"
    assert reason(b'<?xml version="1.0"?>\n<svg><script>alert(1)</script></svg>') == "svg"
    assert reason(b"\xef\xbb\xbf<svg xmlns='x'/>") == "svg"
    for data in (b"", b"<html>", b"%PDF-1.7", b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        assert reason(data) == "not_an_image"


def test_mutated_files_are_images_or_drops() -> None:
    rng = np.random.default_rng(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    for data in (encoded(picture(), format, exif=exif) for format in ("PNG", "JPEG", "WEBP")):
        for _ in range(60):
            broken = bytearray(data)
            for place in rng.integers(0, len(data), 3):
                broken[place] = rng.integers(256)
            result = decoded_image(bytes(broken), limits=ImageLimits(max_pixels=1_000_000))
            assert isinstance(result, Dropped) or np.array_equal(pixels(result.stored), result.pixels)


def test_reduced_decoding_is_not_below_the_side() -> None:
    image = stored_image(encoded(picture().resize((960, 640)), "JPEG"))
    assert isinstance(image, StoredImage)
    assert pixels(image, side=160).shape == (160, 240, 3)
    assert pixels(image, side=600).shape == (640, 960, 3)
    with pytest.raises(ImageDataError, match="copy its corpus"):
        pixels(StoredImage(digest="ab", data=image.data[:100], format="jpeg", width=1, height=1))
