"""The optional filter of images full of text: words that tesseract reads in an image."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from typing import ClassVar

from openafm.core.errors import OpenAFMError
from openafm.data.images.decoding import png
from openafm.data.pairs.alignment import tokens_of
from openafm.data.pairs.filters import Pair, PairFilter, PairFilterConfig, Pixels
from openafm.data.web.documents import Dropped

_LANGUAGES = {
    "en": "eng", "da": "dan", "nl": "nld", "fr": "fra", "de": "deu", "it": "ita", "nb": "nor", "pt": "por", "es": "spa",
    "sv": "swe", "tr": "tur", "zh-Hans": "chi_sim", "zh-Hant": "chi_tra", "ja": "jpn", "ko": "kor", "vi": "vie",
}  # fmt: skip
_TIMEOUT_S = 60.0


class TesseractMissingError(OpenAFMError):
    """The command tesseract is not installed, or fails on every image."""


@dataclass(frozen=True, kw_only=True)
class OcrConfig(PairFilterConfig):
    """Drop pairs whose image is full of text (`max_words`), or whose alt text only repeats the words in the image.

    The second kind trains reading, not seeing: at least `max_read_share` of the alt text's words are in the image. Images
    are read in the language of their page, or in English if tesseract lacks it. Needs the command tesseract (Debian:
    tesseract-ocr and tesseract-ocr-all); about 0.3 s for each image.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("text_image", "text_is_read")

    max_words: int = 60
    max_read_share: float = 0.9
    min_confidence: float = 60.0
    languages: dict[str, str] = field(default_factory=lambda: dict(_LANGUAGES))

    def build(self) -> PairFilter:
        """Return the filter.

        Raises:
            TesseractMissingError: the command is not installed.
        """
        return OcrFilter(self)


class OcrFilter(PairFilter):
    """See `OcrConfig`."""

    def __init__(self, config: OcrConfig) -> None:
        self._config, self._installed = config, installed_languages()

    def check(self, pair: Pair) -> Dropped | None:
        config = self._config
        model = config.languages.get(pair.language, "eng")
        words = read_words(pair.pixels(), model if model in self._installed else "eng", config.min_confidence)
        pair.metadata["ocr.words"] = str(len(words))
        if len(words) > config.max_words:
            return Dropped(reason="text_image", detail=f"{len(words)} words in the image", url=pair.image_url)
        wanted = tokens_of(pair.text)
        share = len(wanted & tokens_of(" ".join(words))) / max(len(wanted), 1)
        if wanted and share >= config.max_read_share:
            return Dropped(reason="text_is_read", detail=f"{share:.0%} of the words are in the image", url=pair.image_url)
        return None


def installed_languages() -> frozenset[str]:
    """Return the languages of tesseract.

    Raises:
        TesseractMissingError: the command is not installed, or cannot list its languages.
    """
    command = shutil.which("tesseract")
    if command is None:
        raise TesseractMissingError(
            "the OCR filter needs the command tesseract; install it (Debian: apt install tesseract-ocr tesseract-ocr-all), "
            "or leave OcrConfig out of pair_filters"
        )
    result = subprocess.run([command, "--list-langs"], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if result.returncode != 0:
        raise TesseractMissingError(f"tesseract --list-langs failed: {result.stderr.strip()[:300]}; install it again")
    return frozenset(result.stdout.split("\n")[1:])


def read_words(pixels: Pixels, language: str, min_confidence: float) -> list[str]:
    """Return the words that tesseract reads in an image with at least this confidence (0 to 100); none if it fails.

    Raises:
        TesseractMissingError: the command is not installed.
    """
    command = ["tesseract", "stdin", "stdout", "-l", language, "--psm", "11", "tsv"]
    try:
        result = subprocess.run(command, input=png(pixels), capture_output=True, check=False, timeout=_TIMEOUT_S)
    except FileNotFoundError as error:
        raise TesseractMissingError("the command tesseract is not installed; see docs/images.md") from error
    except subprocess.TimeoutExpired:
        return []
    rows = (line.split("\t") for line in result.stdout.decode("utf-8", "replace").splitlines()[1:])
    read = [(row[11].strip(), float(row[10])) for row in rows if len(row) == 12]
    return [text for text, confidence in read if text and confidence >= min_confidence]
