"""Draw pages of random letters, numbers and words; the transcription and the boxes of words are the truth."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.camera import draw_condition, shoot
from openafm.data.drawing.canvas import Canvas, LeavesCanvasError, text_width
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.flyers.sheet import Palette, draw_palette
from openafm.data.drawing.fonts import Font, fonts_for
from openafm.data.drawing.recheck import ink_errors, transcription_errors
from openafm.data.drawing.words.config import WordsConfig
from openafm.data.images.documents import Question
from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.tasks.messages import draw_message, draw_other_message
from openafm.data.synthetic.text_files.posters import poster_texts

_TRIES = 40
_LARGEST = 44
_MARGIN = 4
_MOST_WORDS, _MOST_LETTERS = 4, 9
_KINDS = {"letters": 0.5, "word": 0.25, "number": 0.25}
_NUMBERS = ("#", "##", "####", "#:##", "##:##", "#.##", "$##", "€#,##", "##/##", "##.##.####", "####-##-##", "##%", "(###)")
_MARKS = ".,:;!?"
_NUM_MESSAGES = 300


class WordsGenerator(Generator):
    """Draws pages; fonts and camera conditions of the two splits are disjoint, and most words are random."""

    def __init__(self, config: WordsConfig) -> None:
        self._config = config

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        for _ in range(_TRIES):
            try:
                return self._page(rng, language, split)
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
            size = max(_draw_size(rng, self._config), font.smallest)
            if len(lines) == num_lines or y + 1.6 * size > self._config.side:
                break
            if line := _put_line(canvas, rng, y, font, size, palette, _draw_words(rng, language, split)):
                lines.append(line)
                y += size * rng.uniform(1.5, 2.2)
        if not lines:
            raise DrawingFailedError(f"no line in '{language}' that a font has, after {_TRIES} attempts")
        return self._photographed(canvas, lines, rng, language, split)

    def _photographed(self, canvas: Canvas, lines: Sequence[str], rng: random.Random, language: str, split: Split) -> Drawn:
        words, transcription = list(canvas.regions), "\n".join(lines)
        shot = shoot(canvas.image(), words, rng, draw_condition(rng, split), protected=range(len(words)))
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


def _draw_size(rng: random.Random, config: WordsConfig) -> int:
    """Small letters are as frequent as in scaled pages: the size is uniform in its logarithm."""
    largest: float = max(min(_LARGEST, config.side / 4), config.smallest)
    return round(config.smallest * math.pow(largest / config.smallest, rng.random()))


def _draw_words(rng: random.Random, language: str, split: Split) -> list[str]:
    alphabet, vocabulary = _language_of(language, split)
    words = []
    for kind in rng.choices(tuple(_KINDS), tuple(_KINDS.values()), k=rng.randint(1, _MOST_WORDS)):
        match kind:
            case "letters":
                words.append(_styled(rng, "".join(rng.choices(alphabet, k=rng.randint(1, _MOST_LETTERS)))))
            case "word":
                words.append(_styled(rng, rng.choice(vocabulary)))
            case "number":
                digits = (str(rng.randrange(10)) if char == "#" else char for char in rng.choice(_NUMBERS))
                words.append("".join(digits))
    return words


def _styled(rng: random.Random, word: str) -> str:
    mark = rng.choice(_MARKS) if rng.random() < 0.1 else ""
    return rng.choice((str, str, str.capitalize, str.upper))(word) + mark


@functools.cache
def _language_of(language: str, split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the letters and the words of messages in a language."""
    rng, frames = random.Random(f"{language}:{split}"), poster_texts(language, split).frames
    messages = (
        rng.choice((draw_message, draw_other_message))(rng, frames, draw_reference_day(rng)) for _ in range(_NUM_MESSAGES)
    )
    words = {word for message in messages for word in message.text.split()}
    letters = {char.lower() for word in words for char in word if char.isalpha() and len(char.lower()) == 1}
    return tuple(sorted(letters)), tuple(sorted(word for word in words if word.isalpha() and len(word) <= 2 * _MOST_LETTERS))
