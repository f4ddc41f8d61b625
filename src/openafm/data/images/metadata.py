"""Removal of metadata from image files without decoding them: EXIF with GPS, XMP, comments, thumbnails, appended data."""

from __future__ import annotations

import re
import struct
import zlib

from openafm.core.errors import OpenAFMError

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)  # not a restart marker, not a stuffed byte
_JPEG_SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]", re.DOTALL)  # begins with one byte: 15 times as fast
_START_OF_SCAN, _END_OF_IMAGE, _APP0, _ADOBE, _COMMENT = 0xDA, 0xD9, 0xE0, 0xEE, 0xFE
_JFIF_BYTES = 14  # up to the thumbnail
_INFLATED_BYTES = 1 << 20


class UnknownLayoutError(OpenAFMError):
    """A file does not have the layout of its format."""


def without_metadata(data: bytes, format: str) -> bytes:
    """Return a PNG, JPEG, MPO or WebP file with its compressed picture alone. Its pixels do not change.

    Raises:
        UnknownLayoutError: the file does not have the layout of its format.
    """
    try:
        return {"PNG": _png, "JPEG": _jpeg, "MPO": _jpeg, "WEBP": _webp}[format](data)
    except (struct.error, IndexError) as error:
        raise UnknownLayoutError(f"the {format} file ends inside a header") from error


def lacks_rows(data: bytes) -> bool:
    """Return whether a PNG file has less data than its header requires. Decoders fill the missing rows with zeros.

    Raises:
        UnknownLayoutError: the file does not have the layout of its format.
    """
    try:
        parts = _png_parts(data)
        width, height, depth, color, interlaced = struct.unpack_from(">IIBB2xB", parts[0], 8)
        bits = depth * _PNG_CHANNELS[color]
    except (struct.error, IndexError, KeyError) as error:
        raise UnknownLayoutError("the PNG file has no header") from error
    missing = 0
    for left, top, step_x, step_y in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // step_x), -(-(height - top) // step_y)
        missing += rows * (1 + -(-columns * bits // 8)) if columns > 0 and rows > 0 else 0
    inflate = zlib.decompressobj()
    for part in parts:
        rest = part[8:-4] if part[4:8] == b"IDAT" else b""
        while rest and missing > 0:
            missing -= len(inflate.decompress(rest, min(missing, _INFLATED_BYTES)))
            rest = inflate.unconsumed_tail
    return missing > 0


def _png(data: bytes) -> bytes:
    return b"".join([_PNG_SIGNATURE, *_png_parts(data)])


def _png_parts(data: bytes) -> list[bytes]:
    """Return the chunks of the picture."""
    parts: list[bytes] = []
    place = len(_PNG_SIGNATURE)
    while True:
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 12 + length
        if end > len(data):
            raise UnknownLayoutError("the PNG file ends inside a chunk")
        if kind in _PNG_CHUNKS:
            parts.append(data[place:end])
        if kind == b"IEND":
            return parts
        place = end


def _jpeg(data: bytes) -> bytes:
    parts, place = [data[:2]], 2
    while True:
        found = _JPEG_MARKER.match(data, place)
        if found is None:
            raise UnknownLayoutError("the JPEG file has data between its segments")
        marker = found[1][0]
        if marker == _END_OF_IMAGE:
            parts.append(b"\xff\xd9")
            return b"".join(parts)
        (length,) = struct.unpack_from(">H", data, found.end())
        content = data[found.end() + 2 : found.end() + length]
        place = found.end() + length
        if marker == _APP0 and content.startswith(b"JFIF\0"):
            content = content[: _JFIF_BYTES - 2] + b"\0\0"  # no thumbnail
        if _is_kept(marker, content):
            parts.append(struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content)
        if marker == _START_OF_SCAN:
            following = _JPEG_SCAN_END.search(data, place)
            if following is None:
                raise UnknownLayoutError("the JPEG file has no end")
            parts.append(data[place : following.start()])
            place = following.start()


def _is_kept(marker: int, content: bytes) -> bool:
    """Return whether a segment is part of the picture. `Adobe` and `JFIF` choose the color space."""
    if marker == _APP0:
        return content.startswith(b"JFIF\0")
    if marker == _ADOBE:
        return content.startswith(b"Adobe")
    return not (_APP0 <= marker <= 0xEF or marker == _COMMENT)


def _webp(data: bytes) -> bytes:
    place = 12
    while True:
        kind, length = struct.unpack_from("<4sI", data, place)
        end = place + 8 + length
        if kind in (b"VP8 ", b"VP8L"):
            picture: bytes = data[place:end] + b"\0" * (length % 2)
            return b"RIFF" + struct.pack("<I", 4 + len(picture)) + b"WEBP" + picture
        place = end + length % 2
