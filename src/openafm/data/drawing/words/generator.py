"""Draw pages of random letters, numbers and words; the transcription and the boxes of words are the truth."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.camera import CONDITIONS, Condition, draw_condition, shoot
from openafm.data.drawing.canvas import Canvas, LeavesCanvasError, text_width
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.flyers.sheet import Palette, draw_palette
from openafm.data.drawing.fonts import Font, Style, fonts_for
from openafm.data.drawing.recheck import ink_errors, transcription_errors
from openafm.data.drawing.words.config import WordsConfig
from openafm.data.drawing.words.paragraphs import draw_colors, draw_paragraph
from openafm.data.drawing.words.texts import random_letters, random_number, random_word
from openafm.data.images.documents import Question
from openafm.data.synthetic.text_files.posters import poster_texts

_TRIES = 40
_LARGEST = 44
_LINES_OF_SIDE = 10
"""The side of a page of paragraphs is at least so many times the size of its font."""
_MARGIN = 4
_MOST_WORDS = 4
_KINDS = {"letters": 0.5, "word": 0.25, "number": 0.25}
_SAVED = Condition(name="saved", split="train", camera=False, quality=(15, 90))
"""A file of any quality, which documents and screens often are. Other drawings of training have none below 45."""
_FILES = (_SAVED, *(condition for condition in CONDITIONS.values() if not condition.camera))
_FILE_SHARE, _TEXT_SHARE = 0.7, 0.6
"""Shares of the pages of paragraphs that are files, and in fonts for text."""
_TEXT_STYLES: tuple[Style, ...] = ("sans", "serif", "mono")


class WordsGenerator(Generator):
    """Draws pages; fonts of the two splits are disjoint, and so are camera conditions, but for paragraphs; most words are
    random."""

    def __init__(self, config: WordsConfig) -> None:
        self._config = config

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        for _ in range(_TRIES):
            is_paragraph = rng.random() < self._config.paragraph_share
            try:
                return (self._paragraph if is_paragraph else self._page)(rng, language, split)
            except LeavesCanvasError:
                continue  # a letter reaches over the edge
        raise DrawingFailedError(f"no page in '{language}' that holds its letters, after {_TRIES} attempts")

    def _page(self, rng: random.Random, language: str, split: Split) -> Drawn:
        palette = draw_palette(rng)
        canvas, fonts = Canvas(self._config.side, self._config.side, palette.paper), fonts_for(language, split=split)
        y, num_lines = rng.uniform(_MARGIN, self._config.side / 4), rng.randint(1, self._config.most_lines)
        lines: list[str] = []
        for _ in range(_TRIES):
            font = rng.choice(fonts)
            size = max(_draw_size(rng, self._config, min(_LARGEST, self._config.side / 4)), font.smallest)
            if len(lines) == num_lines or y + 1.6 * size > self._config.side:
                break
            if line := _put_line(canvas, rng, y, font, size, palette, _draw_words(rng, language, split)):
                lines.append(line)
                y += size * rng.uniform(1.5, 2.2)
        if not lines:
            raise DrawingFailedError(f"no line in '{language}' that a font has, after {_TRIES} attempts")
        return self._photographed(canvas, lines, rng, language, split, draw_condition(rng, split))

    def _paragraph(self, rng: random.Random, language: str, split: Split) -> Drawn:
        paper, ink = draw_colors(rng)
        canvas, font = Canvas(self._config.side, self._config.side, paper), _draw_font(rng, language, split)
        size = max(_draw_size(rng, self._config, self._config.side / _LINES_OF_SIDE), font.smallest)
        lines = draw_paragraph(canvas, rng, language, split, font, size, ink)
        if not lines:
            raise LeavesCanvasError("no word fits")
        files = [each for each in _FILES if each.split == split]
        condition = rng.choice(files) if rng.random() < _FILE_SHARE else draw_condition(rng, split)
        return self._photographed(canvas, lines, rng, language, split, condition)

    def _photographed(
        self, canvas: Canvas, lines: Sequence[str], rng: random.Random, language: str, split: Split, condition: Condition
    ) -> Drawn:
        words, transcription = list(canvas.regions), "\n".join(lines)
        shot = shoot(canvas.image(), words, rng, condition, protected=range(len(words)))
        ask = poster_texts(language, split).draw(rng, "ask.transcribe")
        return Drawn(
            kind="words",
            language=language,
            images=(DrawnImage(data=shot.data, width=shot.width, height=shot.height, regions=shot.regions),),
            transcription=transcription,
            questions=(Question(question=ask, answer=transcription, kind="transcription"),),
            metadata={"condition": str(shot.log["condition"])},
            log=shot.truth(canvas, words),
        )

    def check(self, drawn: Drawn) -> Sequence[str]:
        return [*ink_errors(drawn), *transcription_errors(drawn)]


def _put_line(
    canvas: Canvas, rng: random.Random, y: float, font: Font, size: int, palette: Palette, words: Sequence[str]
) -> str:
    """Draw the first words of a line, as many as fit, and return them; nothing if the first does not."""
    room, line = canvas.width - 2 * _MARGIN - size // 2, ""
    for word in words:
        longer = f"{line} {word}".strip()
        if font.missing(word) or text_width(longer, font, size) > room:
            break
        line = longer
    if line:
        x = _MARGIN + size / 4 + rng.random() * (room - text_width(line, font, size))
        canvas.text(x, y + 0.8 * size, line, font, size, rng.choice((palette.ink, palette.ink, palette.accent)), anchor="lm")
    return line


def _draw_font(rng: random.Random, language: str, split: Split) -> Font:
    """Return a font, more often one for text; as many with letters of one width as with serifs."""
    fonts, style = fonts_for(language, split=split), rng.choice(_TEXT_STYLES)
    of_style = [font for font in fonts if font.kind == style]
    return rng.choice(of_style if of_style and rng.random() < _TEXT_SHARE else fonts)


def _draw_size(rng: random.Random, config: WordsConfig, largest: float) -> int:
    """Small letters are as frequent as in scaled pages: the size is uniform in its logarithm."""
    return round(config.smallest * math.pow(max(largest / config.smallest, 1.0), rng.random()))


def _draw_words(rng: random.Random, language: str, split: Split) -> list[str]:
    words = []
    for kind in rng.choices(tuple(_KINDS), tuple(_KINDS.values()), k=rng.randint(1, _MOST_WORDS)):
        match kind:
            case "letters":
                words.append(random_letters(rng, language, split))
            case "word":
                words.append(random_word(rng, language, split))
            case "number":
                words.append(random_number(rng))
    return words
