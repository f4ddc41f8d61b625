"""Images in prompts: files, bytes, data URLs, Pillow images and arrays, encoded as they are sent to a model."""

from __future__ import annotations

import base64
import binascii
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from openafm.core.libraries import needed
from openafm.framework.transcripts.prompt import Attachment, ImagePromptError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image as PillowImage

    ImageSource: TypeAlias = str | Path | bytes | PillowImage | NDArray[np.uint8]

MAX_IMAGE_BYTES = 32 * 2**20
MAX_IMAGE_PIXELS = 100_000_000
MAX_SIDE = 4096
"""Longer images are reduced: models read fewer pixels, and endpoints refuse larger ones."""

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")  # that endpoints accept
_READ_FORMATS = (*_FORMATS, "AVIF", "BMP", "ICO", "JPEG2000", "PPM", "TIFF")  # others, such as EPS, start programs
_METADATA = ("exif", "xmp", "XML:com.adobe.xmp", "photoshop")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_JPEG_QUALITY = 95


class Image(Attachment):
    """An image and an optional label that prompts and tools refer to. Needs openafm's extra `vision`.

    PNG, JPEG, GIF and WebP without metadata are sent byte for byte. Others are encoded again: upright as their EXIF data
    says, without EXIF and other metadata (such as the place of a photo), the first frame of animations, at most 4096 pixels
    a side, 8 bits a channel.

    Args:
        source: a path, encoded bytes, a data URL (`data:image/png;base64,...`), a Pillow image, or an array of uint8
            of shape [height, width], [height, width, 3] (RGB) or [height, width, 4] (RGBA).
        label: text that precedes the image in the prompt.

    Raises:
        ImagePromptError: the file does not exist, or the source has another type or shape.
    """

    def __init__(self, source: ImageSource, label: str | None = None) -> None:
        self._source = _checked(source)
        self.label = label

    def read(self) -> bytes:
        """Return the encoded image as it is sent to a model.

        Raises:
            ImagePromptError: the image cannot be read, is damaged or too large, or its format is unknown.
            MissingLibraryError: Pillow is not installed.
        """
        with needed("an image in a prompt", "Pillow", "vision"):
            import PIL.Image
        if isinstance(self._source, PIL.Image.Image):
            return _encoded(self._source, "the image", "PNG")
        if isinstance(self._source, Path | bytes):
            return _readable(self._source)
        return _encoded(PIL.Image.fromarray(self._source), "the image", "PNG")

    def num_frames(self) -> int:
        """Return the number of frames; a model sees the first one.

        Raises:
            ImagePromptError, MissingLibraryError: as `read`.
        """
        with needed("an image in a prompt", "Pillow", "vision"):
            import PIL.Image
        if isinstance(self._source, PIL.Image.Image):
            return int(getattr(self._source, "n_frames", 1))
        if not isinstance(self._source, Path | bytes):
            return 1
        data = _file_bytes(self._source) if isinstance(self._source, Path) else self._source
        with _opened(data, "the image" if isinstance(self._source, bytes) else f"the image {self._source}") as image:
            return int(getattr(image, "n_frames", 1))

    def num_pixels(self) -> int:
        """Return the number of pixels of the first frame, without decoding them; 0 if the source is not a file or bytes.

        Raises:
            ImagePromptError, MissingLibraryError: as `read`.
        """
        with needed("an image in a prompt", "Pillow", "vision"):
            import PIL.Image  # noqa: F401
        if not isinstance(self._source, Path | bytes):
            return 0
        data = _file_bytes(self._source) if isinstance(self._source, Path) else self._source
        with _opened(data, "the image" if isinstance(self._source, bytes) else f"the image {self._source}") as image:
            return image.width * image.height

    def __repr__(self) -> str:
        source = repr(str(self._source)) if isinstance(self._source, Path) else f"<{type(self._source).__name__}>"
        return f"{type(self).__name__}({source}, label={self.label!r})"


class ImageAttachment(Image):
    """An image file and an optional label: the name and the arguments of Apple's SDK.

    Raises:
        ImagePromptError: the file does not exist.
    """

    def __init__(self, path: str | Path, label: str | None = None) -> None:
        super().__init__(Path(path), label)
        self.path = Path(path)


def _checked(source: ImageSource) -> Any:
    """Return the source as a path, bytes, a Pillow image or an array."""
    if isinstance(source, str) and source.startswith("data:"):
        return _data_url_bytes(source)
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        raise ImagePromptError(f"images are not fetched from the web; download {source:.80} and pass the file or its bytes")
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_dir():
            raise ImagePromptError(f"the image {path} is a folder; pass an image file in it")
        if not path.is_file():
            raise ImagePromptError(f"the image {path} does not exist")
        return path
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    array: Any = source
    library = type(source).__module__.partition(".")[0]  # without importing it
    if library == "PIL":
        return source
    if library == "numpy" and hasattr(array, "shape"):
        shape = array.shape
        is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))
        if str(array.dtype) != "uint8" or not is_image or 0 in shape:
            raise ImagePromptError(
                f"an array must be uint8 of shape [height, width], [height, width, 3] or [height, width, 4],"
                f" got {array.dtype} of shape {list(shape)}"
            )
        return array.copy()
    raise ImagePromptError(
        f"an image is a path, bytes, a data URL, a Pillow image or an array of uint8; got {type(source).__name__}"
    )


def _data_url_bytes(url: str) -> bytes:
    header, comma, payload = url.partition(",")
    if not comma or not header.startswith("data:image/") or not header.endswith(";base64"):
        raise ImagePromptError(f"a data URL must begin with data:image/TYPE;base64, got {url[:40]!r}")
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise ImagePromptError(f"the base64 of a data URL is damaged: {error}") from error


def _readable(source: Path | bytes) -> bytes:
    """Return encoded bytes: unchanged if a model can take them, else encoded again."""
    name = "the image" if isinstance(source, bytes) else f"the image {source}"
    data = source if isinstance(source, bytes) else _file_bytes(source)
    if len(data) > MAX_IMAGE_BYTES:
        raise ImagePromptError(f"{name} has more than {MAX_IMAGE_BYTES:,} bytes; make it smaller")
    with _opened(data, name) as image:
        is_kept = (
            image.format in _FORMATS
            and image.mode in _MODES
            and max(image.size) <= MAX_SIDE
            and getattr(image, "n_frames", 1) == 1
            and not any(key in image.info for key in _METADATA)
        )
        if is_kept:
            _load(image, name)
            return data
        return _encoded(image, name, "JPEG" if image.format in ("JPEG", "MPO") else "PNG")


def _opened(data: bytes, name: str) -> PillowImage:
    import PIL.Image

    if not data:
        raise ImagePromptError(f"{name} is empty; restore the file, or pass another one")
    try:
        return PIL.Image.open(io.BytesIO(data), formats=_READ_FORMATS)
    except PIL.UnidentifiedImageError as error:
        raise ImagePromptError(f"{name} is not in a format that can be read; convert it to PNG or JPEG") from error
    except Exception as error:  # damaged data raises errors of many types
        raise ImagePromptError(f"{name} cannot be decoded: {error}") from error


def _file_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise ImagePromptError(f"the image {path} cannot be read: {error}") from error


def _load(image: PillowImage, name: str) -> None:
    """Decode the pixels.

    Raises:
        ImagePromptError: there are too many, or the data is damaged.
    """
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS:
        raise ImagePromptError(f"{name} has {width:,} x {height:,} pixels, more than {MAX_IMAGE_PIXELS:,}; make it smaller")
    try:
        image.load()
    except Exception as error:  # damaged data raises errors of many types
        raise ImagePromptError(f"{name} is damaged or cut short: {error}") from error


def _encoded(image: PillowImage, name: str, file_format: str) -> bytes:
    """Return the image upright, without metadata, in 8 bits a channel and at most MAX_SIDE pixels a side."""
    import PIL.ImageOps

    _load(image, name)
    upright = _eight_bits(PIL.ImageOps.exif_transpose(image), name)
    if file_format == "JPEG" and upright.mode not in ("L", "RGB"):
        upright = upright.convert("RGB")
    upright.thumbnail((MAX_SIDE, MAX_SIDE))
    upright.info.clear()
    file = io.BytesIO()
    upright.save(file, file_format, **({"quality": _JPEG_QUALITY} if file_format == "JPEG" else {}))
    return file.getvalue()


def _eight_bits(image: PillowImage, name: str) -> PillowImage:
    """Return the image in a mode that PNG stores with 8 bits a channel."""
    if image.mode in _MODES:
        return image
    if image.mode in _SIXTEEN_BITS:  # convert() would cut values above 255 off
        return image.point(lambda value: value * (1 / 256)).convert("L")
    if image.mode == "F":
        raise ImagePromptError(f"{name} has pixels of floating-point numbers; convert it to 8 bits a channel")
    return image.convert("RGB")
