"""Filters of image-text pairs: the interface, the quality of alt texts, overrides by publisher, and text in images."""

from __future__ import annotations

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config, ConfigError
from openafm.data.filtering.base import by_language, digests_of
from openafm.data.web.documents import Dropped
from openafm.data.web.urls import domain_of

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An image and its alt text, with the page around them.

    `nearby` is the text of the page before and after the image. `pixels` decodes the image, [H, W, 3] uint8; filters that
    read the text alone do not pay for it.
    """

    text: str
    language: str
    image_url: str
    page_url: str
    width: int
    height: int
    caption: str = ""
    title: str = ""
    nearby: str = ""
    pixels: Callable[[], Pixels]
    metadata: dict[str, str] = field(default_factory=dict)
    """What filters measure; it is stored with the pair."""


class PairFilter(ABC):
    """Keeps or drops one pair at a time, without state between pairs, so that order never matters."""

    @abstractmethod
    def check(self, pair: Pair) -> Dropped | None:
        """Return the reason for a drop; None if the pair is kept. Measured values go into `pair.metadata`."""


@dataclass(frozen=True, kw_only=True)
class PairFilterConfig(Config, ABC):
    """Base of the configs of pair filters. `REASONS` lists every reason for a drop.

    `VERSION` is part of the key of cached results: increase it when the results of the filter change. A filter that
    `IS_OF_IMAGES` does not read the alt text, and is also applied to the images of interleaved documents.
    """

    REASONS: ClassVar[tuple[str, ...]] = ()
    VERSION: ClassVar[int] = 1
    IS_OF_IMAGES: ClassVar[bool] = False

    @abstractmethod
    def build(self) -> PairFilter:
        """Return the filter."""

    def input_digests(self) -> tuple[str, ...]:
        """Return the digests of the files that the filter reads; they are part of the key of cached results."""
        return ()


_FILE_NAME = re.compile(r"[\w()%+ -]+\.(?:jpe?g|png|gif|webp|avif|bmp|tiff?|svg)|(?:img|dsc|dscn|pxl|image)[ _-]?\d+", re.I)
_ADDRESS = re.compile(r"https?://\S+|www\.\S+", re.IGNORECASE)
_LETTERS = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"\w+")
_GENERIC_WORDS = (
    "image images img photo photos picture pic logo icon banner avatar thumbnail thumb placeholder spacer untitled default",
    "figure screenshot loading advertisement ad null undefined none foto fotos bild bilder imagen imágenes immagine",
    "immagini imagem imagens afbeelding billede bilde resim görsel logotipo hình ảnh 画像 写真 图片 圖片 照片 사진 이미지",
)
_GENERIC = frozenset(" ".join(_GENERIC_WORDS).split())


@dataclass(frozen=True, kw_only=True)
class AltTextConfig(PairFilterConfig):
    """Drop pairs whose alt text describes nothing.

    It is absent, a file name, a generic word such as "logo", too short or too long, has few letters, or repeats one word.

    Chinese, Japanese and Korean write more in a character; `min_by_language` has their lower limits.
    """

    REASONS: ClassVar[tuple[str, ...]] = (
        "no_alt_text",
        "file_name",
        "generic_text",
        "short_text",
        "long_text",
        "few_letters",
        "repetitive_text",
    )

    min_letters: int = 8
    max_characters: int = 1000
    min_letter_share: float = 0.5
    min_by_language: dict[str, int] = field(default_factory=lambda: {"zh": 3, "ja": 3, "ko": 4})

    def build(self) -> PairFilter:
        return AltTextFilter(self)


class AltTextFilter(PairFilter):
    """See `AltTextConfig`."""

    def __init__(self, config: AltTextConfig) -> None:
        self._config = config

    def check(self, pair: Pair) -> Dropped | None:
        config, text = self._config, pair.text
        letters = len(_LETTERS.findall(text))
        minimum = by_language(config.min_by_language, pair.language, config.min_letters)
        words = _WORD.findall(text.lower())
        reason = ""
        if not text:
            reason = "no_alt_text"
        elif _FILE_NAME.fullmatch(text) or _ADDRESS.fullmatch(text):
            reason = "file_name"
        elif all(word in _GENERIC or word.isdigit() for word in words):
            reason = "generic_text"
        elif letters < minimum:
            reason = "short_text"
        elif len(text) > config.max_characters:
            reason = "long_text"
        elif letters < config.min_letter_share * len(text.replace(" ", "")):
            reason = "few_letters"
        elif len(words) >= 4 and len(set(words)) * 2 < len(words):
            reason = "repetitive_text"
        return Dropped(reason=reason, detail=text[:200], url=pair.image_url) if reason else None


@dataclass(frozen=True, kw_only=True)
class OverridesConfig(PairFilterConfig):
    """Drop the images of publishers on a list, whatever their pages declare, such as adult sites and compliance requests.

    `file` is TOML of `[[publisher]]` tables: `domain` (of the image or of its page, subdomains included), optionally `path`
    (a prefix of the path of the image or page) and `reason`, which the drop records.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("override",)
    IS_OF_IMAGES: ClassVar[bool] = True

    file: str

    def input_digests(self) -> tuple[str, ...]:
        return digests_of(self.file)

    def build(self) -> PairFilter:
        """Return the filter.

        Raises:
            ConfigError: the file is missing or not of this form.
        """
        return OverridesFilter(read_overrides(Path(self.file)))


@dataclass(frozen=True)
class Override:
    """A publisher whose images are dropped."""

    domain: str
    path: str = "/"
    reason: str = ""

    def applies(self, url: str) -> bool:
        """Return True if a URL is of this publisher."""
        host = domain_of(url)
        path = url.partition("://")[2].partition("/")[2]
        return (host == self.domain or host.endswith(f".{self.domain}")) and f"/{path}".startswith(self.path)


class OverridesFilter(PairFilter):
    """See `OverridesConfig`."""

    def __init__(self, overrides: tuple[Override, ...]) -> None:
        self._overrides = overrides

    def check(self, pair: Pair) -> Dropped | None:
        for each in self._overrides:
            if each.applies(pair.image_url) or each.applies(pair.page_url):
                return Dropped(reason="override", detail=f"{each.domain}: {each.reason}", url=pair.image_url)
        return None


def read_overrides(path: Path) -> tuple[Override, ...]:
    """Read a file of overrides.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    try:
        tables: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["publisher"]
        found = tuple(Override(**table) for table in tables)
        if not all(isinstance(each.domain, str) and each.domain and isinstance(each.path, str) for each in found):
            raise ValueError("domain and path must be text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a file of overrides: {error}; expected [[publisher]] tables with domain, path, reason"
        ) from error
    return found
