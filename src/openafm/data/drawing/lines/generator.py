"""Draw one line of a message of the text corpus; the transcription and the boxes of words are the truth."""

from __future__ import annotations

import random
from collections.abc import Sequence

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.camera import draw_condition, shoot
from openafm.data.drawing.canvas import Canvas
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.flyers.sheet import draw_palette
from openafm.data.drawing.fonts import fonts_for
from openafm.data.drawing.lines.config import LinesConfig
from openafm.data.drawing.recheck import ink_errors, transcription_errors
from openafm.data.images.documents import Question
from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.tasks.messages import draw_message, draw_other_message
from openafm.data.synthetic.text_files.posters import poster_texts

_TRIES = 20
_SMALLEST, _LARGEST = 18, 44
_FEWEST_CHARACTERS = 4


class LineGenerator(Generator):
    """Draws lines; fonts, words, frames and camera conditions of the two splits are disjoint."""

    def __init__(self, config: LinesConfig) -> None:
        self._config = config

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        texts = poster_texts(language, split)
        for _ in range(_TRIES):
            write = rng.choice((draw_message, draw_other_message))
            text = rng.choice(write(rng, texts.frames, draw_reference_day(rng)).text.splitlines())
            fonts = [font for font in fonts_for(language, split=split) if font.has(text)]
            if not fonts:
                continue  # an emoji
            font, size, palette = rng.choice(fonts), rng.randint(_SMALLEST, _LARGEST), draw_palette(rng)
            size = max(size, font.smallest)
            canvas = Canvas(self._config.width, size * 2 + 20, palette.paper)
            line = canvas.wrap(text, font, size, self._config.width - 60)[0]
            if len(line) < _FEWEST_CHARACTERS:
                continue
            words = list(canvas.text(30, size + 10, line, font, size, palette.ink, anchor="lm"))
            shot = shoot(canvas.image(), words, rng, draw_condition(rng, split), protected=range(len(words)))
            question = Question(question=texts.draw(rng, "ask.transcribe"), answer=line, kind="transcription")
            return Drawn(
                kind="line",
                language=language,
                images=(DrawnImage(data=shot.data, width=shot.width, height=shot.height, regions=shot.regions),),
                transcription=line,
                questions=(question,),
                metadata={"font": font.family, "condition": str(shot.log["condition"])},
                log=shot.truth(canvas, words),
            )
        raise DrawingFailedError(f"no line in '{language}' that a font has, after {_TRIES} attempts")

    def check(self, drawn: Drawn) -> Sequence[str]:
        return [*ink_errors(drawn), *transcription_errors(drawn)]
