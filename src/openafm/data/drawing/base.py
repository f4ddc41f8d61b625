"""Base of the generators of drawn images.

A generator is a pure function of (config, seed, index): workers draw any indices in any order, and the bytes are the same.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from openafm.core.config import Config
from openafm.data.images.documents import Question, Region

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


@dataclass(frozen=True, kw_only=True)
class DrawnImage:
    """One image of a drawn document: PNG, or JPEG where a camera is simulated."""

    data: bytes
    width: int
    height: int
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a generator draws: one or more images and the truth about them.

    `log` holds the drawing commands or data that an independent check recomputes the truth from, as JSON values.
    `metadata` holds what held-out splits are made by (design, font, condition, ...).
    """

    kind: str
    language: str
    images: tuple[DrawnImage, ...]
    transcription: str = ""
    captions: Mapping[str, str] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    log: Mapping[str, object] = field(default_factory=dict)


class Generator(ABC):
    """Draws documents of one kind."""

    @abstractmethod
    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        """Return a document. All randomness comes from `rng`.

        Raises:
            FontMissingError: no installed font has the glyphs of the language.
        """

    @abstractmethod
    def check(self, drawn: Drawn) -> Sequence[str]:
        """Return the errors that an independent check finds in a document's truth; empty if it holds.

        The check shares no code with `draw` that computes the truth: it reads pixels (a word's box contains its ink), the
        data in `log` (answers are recomputed), and the drawing commands (the text is read again).
        """


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig(Config, ABC):
    """Base of the generators' configs. `name` is the kind on the command line: `openafm data draw charts`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The kind of documents, in the plural."""

    @abstractmethod
    def build(self) -> Generator:
        """Return the generator; imports the drawing libraries."""
