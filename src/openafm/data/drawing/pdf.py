"""Pages of PDF files: the rendered page, and its own text layer as transcription and boxes (report 3.2.3).

PDF files come from anywhere: PDFium parses them, a page that does not show its text is dropped, and every other failure is a
drop with a reason. Run it in a worker process with limits: `openafm data draw --pdf`.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openafm.core.config import Config
from openafm.core.libraries import needed
from openafm.data.drawing.choices import png_of
from openafm.data.drawing.phrases import question
from openafm.data.images.documents import Box, ImageDocument, ImagePart, Question, Region, StoredImage, TextPart
from openafm.data.images.shard_writer import ShardItem
from openafm.data.web.documents import Dropped

if TYPE_CHECKING:
    from numpy.typing import NDArray

REASONS = (
    "pdf_password",
    "pdf_broken",
    "pdf_too_large",
    "pdf_page_broken",
    "pdf_without_text",
    "pdf_hidden_text",
    "pdf_unmapped_text",
)
"""Reasons for which a PDF file or one of its pages is dropped."""
_POINTS = 72
_PASSWORD_ERROR = 4
_HYPHEN = 0xFFFE  # PDFium's mark of a hyphen at the end of a line


@dataclass(frozen=True, kw_only=True)
class PdfConfig(Config):
    """What is read of PDF files, and how pages are rendered.

    A page is dropped if fewer than `min_words` words are on it, if less than `min_visible` of its words have ink in their
    box, or if more than `max_unmapped` of its characters have no Unicode character.
    """

    dpi: int = 110
    max_side: int = 1600
    max_bytes: int = 64 << 20
    max_pages: int = 500
    min_words: int = 5
    min_visible: float = 0.95
    max_unmapped: float = 0.02

    def __post_init__(self) -> None:
        smallest = min(self.dpi, self.max_side, self.max_bytes, self.max_pages)
        self.require(smallest >= 1, f"dpi, max_side, max_bytes and max_pages must be 1 or more, got {smallest}")
        shares = (self.min_visible, self.max_unmapped)
        self.require(all(0 <= share <= 1 for share in shares), f"shares must be from 0 to 1, got {shares}")


@dataclass(frozen=True)
class _Word:
    text: str
    box: Box


def pdf_pages(
    data: bytes, config: PdfConfig, *, source: str = "", language: str = "", license: str = ""
) -> Iterator[ShardItem]:
    """Yield a document for each page of a PDF file, or the reason for its drop."""
    with needed("PDF pages", "pypdfium2", "images"):
        import pypdfium2
    if len(data) > config.max_bytes:
        yield Dropped(reason="pdf_too_large", detail=f"{len(data)} bytes", url=source)
        return
    try:
        file = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        is_locked = error.err_code == _PASSWORD_ERROR
        yield Dropped(reason="pdf_password" if is_locked else "pdf_broken", detail=str(error), url=source)
        return
    try:
        count = len(file)
        for index in range(min(count, config.max_pages)):
            try:
                yield _page(file[index], config, f"{source}#page={index + 1}", language, license)
            except pypdfium2.PdfiumError as error:
                yield Dropped(reason="pdf_page_broken", detail=str(error), url=f"{source}#page={index + 1}")
        for index in range(config.max_pages, count):
            yield Dropped(reason="pdf_too_large", detail=f"page {index + 1} of {count}", url=f"{source}#page={index + 1}")
        if count < 1:
            yield Dropped(reason="pdf_broken", detail="no page", url=source)
    finally:
        file.close()


def _page(page: Any, config: PdfConfig, source: str, language: str, license: str) -> ShardItem:
    width, height = page.get_size()
    if not (math.isfinite(width) and math.isfinite(height) and min(width, height) > 1):
        return Dropped(reason="pdf_page_broken", detail=f"the size is {width} x {height}", url=source)
    scale = min(config.dpi / _POINTS, config.max_side / max(width, height))
    pixels = np.ascontiguousarray(page.render(scale=scale, rev_byteorder=True).to_numpy()[..., :3])
    words, text, num_unmapped = _read_text(page, pixels.shape[1], pixels.shape[0])
    if len(words) < config.min_words:
        return Dropped(reason="pdf_without_text", detail=f"{len(words)} words; pages of scans need OCR", url=source)
    if num_unmapped > config.max_unmapped * len(text):
        return Dropped(reason="pdf_unmapped_text", detail=f"{num_unmapped} of {len(text)} characters", url=source)
    visible = [word for word in words if _has_ink(pixels, word.box)]
    if len(visible) < config.min_visible * len(words):
        return Dropped(reason="pdf_hidden_text", detail=f"{len(visible)} of {len(words)} words have ink", url=source)
    return _document(pixels, visible, text, source, language, license)


def _document(
    pixels: NDArray[np.uint8], words: list[_Word], text: str, source: str, language: str, license: str
) -> tuple[ImageDocument, tuple[StoredImage, ...]]:
    data = png_of(pixels)
    digest = hashlib.sha256(data).hexdigest()
    image = StoredImage(
        digest=digest, data=data, format="png", width=pixels.shape[1], height=pixels.shape[0], source=source, license=license
    )
    asked = Question(question=question(language or "en", "train", "transcribe"), answer=text, kind="pdf.transcribe")
    document = ImageDocument(
        id=f"pdf/{digest[:16]}",
        kind="pdf_page",
        parts=(ImagePart(digest=digest), TextPart(text=text)),
        language=language,
        transcription=text,
        regions=tuple(Region(label=word.text, box=word.box, kind="word") for word in words),
        questions=(asked,),
        source=source,
        license=license,
    )
    return document, (image,)


def _read_text(page: Any, width: int, height: int) -> tuple[list[_Word], str, int]:
    """Return the words with boxes in pixels, the text in the order of the file, and the number of unmapped characters."""
    import pypdfium2.raw as pdfium

    layer = page.get_textpage()
    words: list[_Word] = []
    lines: list[str] = [""]
    letters = ""
    corners: list[tuple[float, float]] = []
    num_unmapped = 0

    def end_word() -> None:
        nonlocal letters, corners
        if letters and corners:
            x, y = zip(*corners, strict=True)
            box = (max(min(x), 0.0), max(min(y), 0.0), min(max(x), float(width)), min(max(y), float(height)))
            words.append(_Word(letters, box))
        letters, corners = "", []

    for index in range(layer.count_chars()):
        code = pdfium.FPDFText_GetUnicode(layer, index)
        if code in (_HYPHEN, 0xAD):
            code = 0x2D
        char = chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
        num_unmapped += char == "\ufffd" or 0xE000 <= code < 0xF900
        if char == "\r":
            continue
        if char.isspace():
            end_word()
            lines = [*lines, ""] if char == "\n" else [*lines[:-1], lines[-1] + " "]
            continue
        left, bottom, right, top = layer.get_charbox(index)
        corners += [_device(page, width, height, left, bottom), _device(page, width, height, right, top)]
        letters += char
        lines[-1] += char
    end_word()
    layer.close()
    return words, "\n".join(" ".join(line.split()) for line in lines).strip(), num_unmapped


def _device(page: Any, width: int, height: int, x: float, y: float) -> tuple[float, float]:
    """Return a point of the page in pixels; rotation and crop of the page are applied."""
    import pypdfium2.raw as pdfium

    column, row = ctypes.c_int(), ctypes.c_int()
    # In hundredths of a pixel, since the function returns whole numbers.
    pdfium.FPDF_PageToDevice(page, 0, 0, 100 * width, 100 * height, 0, x, y, column, row)
    return column.value / 100, row.value / 100


def _has_ink(pixels: NDArray[np.uint8], box: Box) -> bool:
    """True if the pixels of a box differ from each other."""
    left, top, right, bottom = box
    part = pixels[int(top) : math.ceil(bottom) + 1, int(left) : math.ceil(right) + 1]
    return bool(part.size) and int(part.max()) - int(part.min()) > 24
