"""The generator of documents."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from openafm.data.drawing.base import Drawn, Generator, Split
from openafm.data.drawing.choices import DrawingFailedError, draw_font
from openafm.data.drawing.documents.check import check_document
from openafm.data.drawing.documents.commerce import draw_invoice, draw_menu, draw_receipt
from openafm.data.drawing.documents.config import DOCUMENTS, DocumentsConfig
from openafm.data.drawing.documents.pages import draw_form, draw_infographic, draw_letter, draw_poster
from openafm.data.drawing.documents.sheet import HELD_OUT_THEMES, THEMES, Sheet
from openafm.data.drawing.fonts import FontMissingError
from openafm.data.drawing.phrases import question
from openafm.data.images.documents import Question

_DESIGNS: dict[str, tuple[Callable[[Sheet], None], tuple[int, ...]]] = {
    "receipt": (draw_receipt, (300, 340, 380)),
    "invoice": (draw_invoice, (560, 620, 680)),
    "menu": (draw_menu, (440, 520, 600)),
    "form": (draw_form, (480, 560, 640)),
    "poster": (draw_poster, (480, 560, 640)),
    "infographic": (draw_infographic, (400, 480, 560)),
    "letter": (draw_letter, (560, 640, 720)),
}
"""The function that draws each document, and widths in pixels."""
_ATTEMPTS = 6


class DocumentGenerator(Generator):
    """Draws documents."""

    def __init__(self, config: DocumentsConfig) -> None:
        self._documents = config.documents or DOCUMENTS

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        document = rng.choice(self._documents)
        draw, widths = _DESIGNS[document]
        reason: Exception | None = None
        for _ in range(_ATTEMPTS):
            theme = rng.choice([name for name in THEMES if (name in HELD_OUT_THEMES) == (split == "held_out")])
            font = draw_font(rng, language, split, "", ("mono", "sans") if document == "receipt" else ("sans", "serif"))
            sheet = Sheet.start(rng, language, split, theme, font, rng.choice(widths), rng.choice((13, 14, 15, 16)))
            try:
                draw(sheet)
            except (FontMissingError, ValueError) as error:  # a rare character, or a text that leaves the canvas
                reason = error
                continue
            return _drawn(sheet, document, theme)
        raise DrawingFailedError(f"no document of type '{document}' in '{language}' after {_ATTEMPTS} attempts: {reason}")

    def check(self, drawn: Drawn) -> Sequence[str]:
        return check_document(drawn)


def _drawn(sheet: Sheet, document: str, theme: str) -> Drawn:
    transcription = "\n".join(sheet.lines)
    questions = list(sheet.questions)
    if document != "infographic":  # its table is asked for
        text = question(sheet.language, sheet.split, "transcribe")
        questions.append(Question(question=text, answer=transcription, kind="document.transcribe"))
    image = sheet.image()
    return Drawn(
        kind="document",
        language=sheet.language,
        images=(image,),
        transcription=transcription,
        questions=tuple(questions),
        metadata={"document": document, "design": theme, "font": sheet.font.family},
        log={"commands": sheet.canvas.commands},
    )
