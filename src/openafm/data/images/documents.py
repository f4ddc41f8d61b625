"""What image corpora hold: documents of text and images in order, with what is known about the images.

Report 3.2. A document's images are stored once, by the digest of their encoded bytes, in the image shards beside it
(`shards.py`). Pixels count from the top left corner; a box is (left, top, right, bottom), right and bottom exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

CAPTION_LEVELS = ("alt", "keywords", "short", "paragraph", "grounded")
"""Levels of captions: the text of the page, key words, one sentence, a full description, and one with coordinates."""

Box: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """Text of a document, as Markdown."""

    text: str


@dataclass(frozen=True, kw_only=True)
class ImagePart:
    """An image at its place in a document: the SHA-256 of its encoded bytes in hex."""

    digest: str


Part: TypeAlias = TextPart | ImagePart


@dataclass(frozen=True, kw_only=True)
class Region:
    """A part of an image. `kind` is the kind of label: `word`, `line`, `object`, `title`, ..."""

    label: str
    box: Box
    kind: str = "object"
    image: str = ""
    """Digest of the image; empty in documents with one image."""
    centers: tuple[tuple[float, float], ...] = ()
    """The center of each character of a word in pixels; empty where they are not known."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about the images of a document, and its answer.

    `kind` names the ability, such as `chart.lookup`, `spatial`, `counting`, `absent` (the answer refuses), `refer.box`.
    `answer` of kind `event` or `table.json` is JSON.
    """

    question: str
    answer: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image as stored: its encoded bytes and what is known about them. Orientation is applied, metadata is removed.

    `opt_out` is the reason why the image must not be used for training; empty if it may be.
    """

    digest: str
    data: bytes
    format: str
    """`png`, `jpeg` or `webp`, also the suffix of the file in the shard."""
    width: int
    height: int
    source: str = ""
    """URL, or the generator that drew it."""
    license: str = ""
    opt_out: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImageDocument:
    """Text and images in order, and what is known about the images.

    `kind` is `pair` (an image and its alt text), `interleaved`, or what a generator drew (`chart`, `flyer`, ...).
    `captions` are by level (`CAPTION_LEVELS`). `transcription` is the text of the image in reading order, as Markdown.
    `split` is `train` or `held_out`.
    """

    id: str
    kind: str
    parts: tuple[Part, ...]
    language: str = ""
    captions: Mapping[str, str] = field(default_factory=dict)
    transcription: str = ""
    regions: tuple[Region, ...] = ()
    questions: tuple[Question, ...] = ()
    split: str = "train"
    source: str = ""
    license: str = ""
    opt_out: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of the images, in order."""
        return tuple(part.digest for part in self.parts if isinstance(part, ImagePart))

    @property
    def text(self) -> str:
        """The text parts, joined by blank lines; images are left out."""
        return "\n\n".join(part.text for part in self.parts if isinstance(part, TextPart))
