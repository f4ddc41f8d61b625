"""Handwriting-like text: letters of a font with their own size, angle and place, sheared and bent; not real handwriting."""

from __future__ import annotations

import io
import math
import random
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openafm.core.libraries import needed
from openafm.data.drawing.base import Drawn, DrawnImage, Generator, GeneratorConfig, Split
from openafm.data.drawing.canvas_check import check_ink
from openafm.data.drawing.choices import DrawingFailedError, color_of, draw_font, png_of
from openafm.data.drawing.data_tables import draw_names
from openafm.data.drawing.fonts import Font, FontMissingError, fonts_for
from openafm.data.drawing.phrases import question
from openafm.data.images.documents import Question, Region
from openafm.data.sites.texts import SentenceWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SCALE = 2  # words are drawn larger and reduced, so that bent strokes are smooth
_ATTEMPTS = 6
_PAPERS = {
    "blank": ("#fdfdf8", "", ""),
    "ruled": ("#fffef6", "#b9cbe6", "rows"),
    "squared": ("#ffffff", "#cfd8e3", "grid"),
    "yellow": ("#fff6c9", "#e0cf8a", "rows"),
    "recycled": ("#efe9dd", "#cdc3b1", "rows"),
}
_HELD_OUT_PAPERS = ("yellow",)
_INKS = ("#1a1a1a", "#1b2f78", "#14345c", "#3b1a1a", "#274b2a")


@dataclass(frozen=True, kw_only=True)
class HandwritingConfig(GeneratorConfig):
    """Notes, lists and short letters of handwriting-like text. `strength` scales how uneven the letters are."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        self.require(0 <= self.strength <= 2, f"strength must be from 0 to 2, got {self.strength}")

    @property
    def name(self) -> str:
        return "handwriting"

    def build(self) -> Generator:
        return HandwritingGenerator(self)


@dataclass(frozen=True)
class _Hand:
    """How one writer writes: slant, and how far letters differ from each other."""

    size: int
    slant: float
    turn: float
    bend: float
    rise: float
    ink: str
    line_height: float


class HandwritingGenerator(Generator):
    """Draws handwriting-like text."""

    def __init__(self, config: HandwritingConfig) -> None:
        self._strength = config.strength

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        reason: Exception | None = None
        for _ in range(_ATTEMPTS):
            lines = _draw_lines(rng, language, split)
            try:
                font = _hand_font(rng, language, split, "".join(lines))
            except FontMissingError as error:
                reason = error  # a rare character
                continue
            return self._drawn(rng, language, split, lines, font)
        assert reason is not None
        raise reason

    def check(self, drawn: Drawn) -> Sequence[str]:
        """Draw the paper again from the log; the rest is ink. The words are those of the transcription."""
        from PIL import Image

        image = drawn.images[0]
        paper: Any = drawn.log["paper"]
        pixels = np.asarray(Image.open(io.BytesIO(image.data)))
        ink = np.any(pixels != _paper(image.width, image.height, paper["name"], paper["step"]), axis=2)
        errors = check_ink(ink, image.regions)
        words = drawn.transcription.split()
        if words != [region.label for region in image.regions]:
            errors.append("the words on the image are not those of the transcription, in this order")
        if any(asked.answer != drawn.transcription for asked in drawn.questions):
            errors.append("the answer is not the transcription")
        return errors

    def _drawn(self, rng: random.Random, language: str, split: Split, lines: Sequence[str], font: Font) -> Drawn:
        strength = self._strength
        hand = _Hand(
            size=rng.choice((20, 22, 24, 28)),
            slant=rng.uniform(-0.1, 0.35),
            turn=strength * rng.uniform(1.0, 5.0),
            bend=strength * rng.uniform(0.4, 1.4),
            rise=strength * rng.uniform(0.3, 1.6),
            ink=rng.choice(_INKS),
            line_height=rng.uniform(1.7, 2.2),
        )
        name = rng.choice([paper for paper in _PAPERS if (paper in _HELD_OUT_PAPERS) == (split == "held_out")])
        step = round(hand.size * hand.line_height)
        placed = _place(rng, lines, font, hand, rng.choice((480, 560, 640)), step)
        width = max(left + mask.shape[1] for _, left, _, mask in placed) + 24
        height = max(top + mask.shape[0] for _, _, top, mask in placed) + 24
        pixels = _paper(width, height, name, step).astype(np.float32)
        regions = []
        color = np.array(color_of(hand.ink), np.float32)
        for word, left, top, mask in placed:
            rows, columns = mask.shape
            part = pixels[top : top + rows, left : left + columns]
            part += (color - part) * mask[..., None]
            box = (float(left), float(top), float(left + columns), float(top + rows))
            regions.append(Region(label=word, box=box, kind="word"))
        transcription = "\n".join(" ".join(line.split()) for line in lines)
        image = DrawnImage(data=png_of(np.rint(pixels).astype(np.uint8)), width=width, height=height, regions=tuple(regions))
        asked = Question(
            question=question(language, split, "transcribe"), answer=transcription, kind="handwriting.transcribe"
        )
        return Drawn(
            kind="handwriting",
            language=language,
            images=(image,),
            transcription=transcription,
            questions=(asked,),
            metadata={"design": name, "font": font.family},
            log={"paper": {"name": name, "step": step}},
        )


def _hand_font(rng: random.Random, language: str, split: Split, text: str) -> Font:
    """Return a font of handwriting where one is installed, else another one."""
    try:
        hands = [font for font in fonts_for(language, style="hand", split=split) if font.has(text)]
    except FontMissingError:
        hands = []
    if hands and rng.random() < 0.8:
        return rng.choice(hands)
    return draw_font(rng, language, split, text, ("sans", "serif"), is_light=True)


def _draw_lines(rng: random.Random, language: str, split: Split) -> list[str]:
    """Return the lines of a list, or sentences in lines of a few words."""
    if rng.random() < 0.4:
        kind = rng.choice(("food", "product", "person", "city", "hobby"))
        return draw_names(rng, language, split, kind, rng.randint(2, 7), 24)
    writer = SentenceWriter(language, split)
    text = writer.paragraph(rng, rng.choice(writer.topics), rng.randint(1, 3))
    lines, line = [], ""
    words = text.split() if writer.space else [text[at : at + 12] for at in range(0, len(text), 12)]
    for word in words:
        longer = f"{line} {word}".strip() if writer.space else word
        if len(longer) > 30 or not writer.space:
            lines += [line] if line else []
            line = word
        else:
            line = longer
    return [*lines, line]


def _place(
    rng: random.Random, lines: Sequence[str], font: Font, hand: _Hand, width: int, step: int
) -> list[tuple[str, int, int, NDArray[np.float32]]]:
    """Return each word with its place and the coverage of its ink. Long lines shrink to the width."""
    indent = rng.randint(20, 48)
    longest = max(float(font.at(hand.size).getlength(line)) for line in lines)
    size = max(min(hand.size, int(hand.size * (width - indent) / (1.25 * longest))), 12)
    placed = []
    for number, line in enumerate(lines):
        x = float(indent + rng.uniform(-4, 4))
        drift = rng.uniform(-0.012, 0.012)
        for word in line.split():
            mask, above = _word(rng, word, font, size, hand)
            baseline = step * (number + 1.6) + drift * x
            top = max(round(baseline - above), 2)
            placed.append((word, round(x), top, mask))
            x += mask.shape[1] + size * rng.uniform(0.3, 0.55)
    return placed


def _letters(word: str) -> list[str]:
    """Return the characters of a word, each with the combining marks and variation selectors that follow it."""
    letters: list[str] = []
    for char in word:
        if letters and unicodedata.category(char) in ("Mn", "Me", "Cf"):
            letters[-1] += char
        else:
            letters.append(char)
    return letters


def _word(rng: random.Random, word: str, font: Font, size: int, hand: _Hand) -> tuple[NDArray[np.float32], float]:
    """Return the coverage of a word's ink, cut to the ink, and how far it reaches above the baseline."""
    with needed("Drawing", "Pillow", "images"):
        from PIL import Image, ImageDraw
    large = size * _SCALE
    margin = large
    pillow = font.at(large)
    letters = [(letter, float(pillow.getlength(letter))) for letter in _letters(word)]
    surface = np.zeros((2 * margin + large, round(1.25 * sum(length for _, length in letters)) + 2 * margin), np.uint8)
    x = float(margin)
    for letter, length in letters:
        tile = Image.new("L", (3 * large, 3 * large))
        ImageDraw.Draw(tile).text((large, 2 * large), letter, 255, pillow, "ls")
        tile = tile.rotate(rng.gauss(0, hand.turn), Image.Resampling.BILINEAR, center=(1.3 * large, 1.7 * large))
        box = tile.getbbox()
        if box is not None:
            part = np.asarray(tile.crop(box))
            top = margin + large + box[1] - 2 * large + round(rng.gauss(0, hand.rise * _SCALE))
            left = round(x) + box[0] - large
            spot = surface[top : top + part.shape[0], left : left + part.shape[1]]
            np.maximum(spot, part, out=spot)
        x += length * rng.uniform(0.94, 1.08)
    bent = _bend(rng, surface, margin + large, hand)
    reduced = np.asarray(Image.fromarray(bent).reduce(_SCALE), np.float32) / 255
    reduced *= rng.uniform(0.85, 1.0)
    visible = reduced > 0.12  # fainter ink is not a stroke
    rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
    if not len(rows):
        raise DrawingFailedError(f"{font.name} draws nothing for {word!r}")
    cut = np.where(visible, reduced, 0)[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return cut.astype(np.float32), (margin + large) / _SCALE - float(rows[0])


def _bend(rng: random.Random, surface: NDArray[np.uint8], baseline: int, hand: _Hand) -> NDArray[np.uint8]:
    """Shear letters by the slant of the hand, and move their ink along smooth waves."""
    height, width = surface.shape
    amount = hand.bend * _SCALE
    y, x = np.arange(height)[:, None], np.arange(width)[None]
    waves = [(rng.uniform(0.6, 1.6), rng.uniform(0, 2 * math.pi)) for _ in range(3)]
    period = 2.2 * hand.size * _SCALE
    down = sum(amount * np.sin(2 * math.pi * x * speed / period + phase) for speed, phase in waves) / 2
    across = amount * np.sin(2 * math.pi * y * waves[0][0] / period + waves[1][1]) + hand.slant * (y - baseline)
    source_y = np.clip(np.rint(y + down), 0, height - 1).astype(np.intp)
    source_x = np.clip(np.rint(x + across), 0, width - 1).astype(np.intp)
    bent: NDArray[np.uint8] = surface[source_y, source_x]
    return bent


def _paper(width: int, height: int, name: str, step: int) -> NDArray[np.uint8]:
    """Return blank paper with its lines."""
    color, rule, kind = _PAPERS[name]
    paper = np.empty((height, width, 3), np.uint8)
    paper[:] = color_of(color)
    if kind == "rows":
        paper[round(1.7 * step) :: step] = color_of(rule)
    elif kind == "grid":
        paper[:: step // 2] = color_of(rule)
        paper[:, :: step // 2] = color_of(rule)
    return paper
