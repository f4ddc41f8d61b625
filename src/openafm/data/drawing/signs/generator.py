"""Draw signs with one to three texts, photographed; the transcription and the boxes of words are the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.camera import draw_condition, shoot
from openafm.data.drawing.canvas import LeavesCanvasError
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.flyers.generator import draw_fonts
from openafm.data.drawing.flyers.sheet import NoRoomError, Sheet, draw_palette
from openafm.data.drawing.recheck import box_errors, ink_errors, transcription_errors
from openafm.data.images.documents import Box, Question
from openafm.data.images.grounding import box_text, boxes_of
from openafm.data.synthetic.text_files.posters import poster_texts

_TRIES = 20
_FOREIGN_SHARE = 0.2
_KINDS = {"notice": 0.4, "shop": 0.3, "street": 0.15, "hours": 0.15}
_SIZES = ((900, 420), (760, 560), (640, 640), (1000, 320))


class SignGenerator(Generator):
    """Draws signs; designs, fonts, names and camera conditions of the two splits are disjoint."""

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        for _ in range(_TRIES):
            kind = rng.choices(tuple(_KINDS), tuple(_KINDS.values()))[0]
            texts = _draw_texts(rng, language, split, kind)
            fonts = draw_fonts(rng, language, split, " ".join(texts))
            sheet = Sheet(*rng.choice(_SIZES), draw_palette(rng), fonts, rng)
            design = rng.choice([name for name, (side, _) in _DESIGNS.items() if side == split])
            try:
                inner = _DESIGNS[design][1](sheet)
                _put_texts(sheet, texts, inner)
            except (NoRoomError, LeavesCanvasError):
                continue  # too long for this sign
            return _photographed(rng, sheet, language, split, {"design": design, "sign": kind})
        raise DrawingFailedError(f"no legible sign in '{language}' after {_TRIES} attempts")

    def check(self, drawn: Drawn) -> Sequence[str]:
        return [*ink_errors(drawn), *transcription_errors(drawn), *_question_errors(drawn)]


def _draw_texts(rng: random.Random, language: str, split: Split, kind: str) -> list[str]:
    texts = poster_texts(language, split)
    hours = {
        "open": f"{rng.randint(6, 11)}:{rng.choice(('00', '30'))}",
        "close": f"{rng.randint(16, 23)}:{rng.choice(('00', '30'))}",
    }
    match kind:
        case "notice":
            found = list(texts.draw_several(rng, "sign", rng.choice((1, 1, 2)), {}))
            if len(found) == 1 and language != "en" and rng.random() < _FOREIGN_SHARE:
                found.append(poster_texts("en", split).draw(rng, "sign"))
            return found
        case "shop":
            found = [texts.draw(rng, "shop")]
            return [*found, texts.draw(rng, "hours", hours)] if rng.random() < 0.5 else found
        case "street":
            return [texts.draw(rng, "venue") if rng.random() < 0.4 else texts.frames.draw_word(rng, "street")]
    return [texts.draw(rng, "sign"), texts.draw(rng, "hours", hours), texts.frames.draw_word(rng, "phone")]


def _put_texts(sheet: Sheet, texts: Sequence[str], box: Box) -> None:
    """The first text large, the others below it."""
    left, top, right, bottom = box
    share = 1.0 if len(texts) == 1 else 0.58
    low = top + (bottom - top) * share
    fill = sheet.palette.ink
    sheet.put(
        texts[0], (left, top, right, low), 150, align="center", font=sheet.title_font, fill=fill, middle=True, least=24
    )
    for index, text in enumerate(texts[1:]):
        height = (bottom - low) / (len(texts) - 1)
        high = low + index * height
        sheet.put(text, (left, high, right, high + height), 56, align="center", fill=fill, middle=True, least=20)


def _photographed(rng: random.Random, sheet: Sheet, language: str, split: Split, metadata: dict[str, str]) -> Drawn:
    words = list(sheet.canvas.regions)
    condition = draw_condition(rng, split)
    shot = shoot(sheet.canvas.image(), words, rng, condition, protected=range(len(words)))
    texts = poster_texts(language, split)
    transcription = "\n".join(block.text for block in sheet.blocks)
    word = rng.choice(shot.regions)
    box = box_text(word.box, shot.width, shot.height)
    questions = (
        Question(question=texts.draw(rng, "ask.sign"), answer=transcription, kind="transcription"),
        Question(question=texts.draw(rng, "ask.where", {"text": word.label}), answer=box, kind="ground.box"),
        Question(question=texts.draw(rng, "ask.read", {"box": box}), answer=word.label, kind="refer.box"),
    )
    once = sum(region.label == word.label for region in shot.regions) == 1
    return Drawn(
        kind="sign",
        language=language,
        images=(DrawnImage(data=shot.data, width=shot.width, height=shot.height, regions=shot.regions),),
        transcription=transcription,
        captions={"alt": transcription.replace("\n", " ")},
        questions=tuple(question for question in questions if once or question.kind != "ground.box"),
        metadata=metadata
        | {"title_font": sheet.title_font.family, "font": sheet.text_font.family, "condition": condition.name},
        log=shot.truth(sheet.canvas, words),
    )


def _question_errors(drawn: Drawn) -> Iterator[str]:
    image = drawn.images[0]
    for question in drawn.questions:
        for text in (question.answer, question.question):
            for _, box in boxes_of(text, image.width, image.height):
                near = [region for region in image.regions if not list(box_errors(box, region.box, region.label))]
                told = question.answer if question.kind == "refer.box" else question.question
                if not any(region.label in told for region in near):
                    yield f"{text!r} is not the box of a word in {told!r}"


def _framed(sheet: Sheet) -> Box:
    width, height = sheet.width, sheet.height
    margin = sheet.rng.randint(14, 26)
    box = (margin, margin, width - margin, height - margin)
    sheet.canvas.rectangle(
        box, outline=sheet.palette.accent, width=sheet.rng.randint(4, 12), radius=sheet.rng.choice((0, 24))
    )
    return (margin + 40, margin + 30, width - margin - 40, height - margin - 30)


def _plain(sheet: Sheet) -> Box:
    return (40, 30, sheet.width - 40, sheet.height - 30)


def _screwed(sheet: Sheet) -> Box:
    """A plate with screws in its corners."""
    for x in (26, sheet.width - 26):
        for y in (26, sheet.height - 26):
            sheet.canvas.ellipse((x - 10, y - 10, x + 10, y + 10), fill=sheet.palette.soft, outline=sheet.palette.ink)
    return (60, 44, sheet.width - 60, sheet.height - 44)


def _barred(sheet: Sheet) -> Box:
    height = sheet.height * 0.12
    sheet.canvas.rectangle((0, 0, sheet.width, height), fill=sheet.palette.accent)
    sheet.canvas.rectangle((0, sheet.height - height, sheet.width, sheet.height), fill=sheet.palette.accent)
    return (40, height + 20, sheet.width - 40, sheet.height - height - 20)


def _striped(sheet: Sheet) -> Box:
    """An awning above the text."""
    height = sheet.height * 0.2
    step = sheet.width / 12
    for index in range(0, 12, 2):
        sheet.canvas.rectangle((index * step, 0, (index + 1) * step, height), fill=sheet.palette.accent)
    return (40, height + 16, sheet.width - 40, sheet.height - 24)


def _arrow(sheet: Sheet) -> Box:
    """An arrow to the right of the text."""
    width, height = sheet.width, sheet.height
    x, y, size = width * 0.87, height / 2, min(width, height) * 0.14
    points = [(x - size, y - size / 2), (x, y - size / 2), (x, y - size), (x + size, y), (x, y + size), (x, y + size / 2)]
    sheet.canvas.polygon([*points, (x - size, y + size / 2)], fill=sheet.palette.accent)
    return (40, 30, x - size - 30, height - 30)


def _dotted(sheet: Sheet) -> Box:
    """Lamps around the text."""
    step = 48
    for x in range(24, sheet.width, step):
        for y in (22, sheet.height - 22):
            sheet.canvas.ellipse((x - 9, y - 9, x + 9, y + 9), fill=sheet.palette.accent)
    return (44, 56, sheet.width - 44, sheet.height - 56)


_DESIGNS: dict[str, tuple[Split, Callable[[Sheet], Box]]] = {
    "framed": ("train", _framed),
    "plain": ("train", _plain),
    "screwed": ("train", _screwed),
    "barred": ("train", _barred),
    "striped": ("train", _striped),
    "arrow": ("held_out", _arrow),
    "dotted": ("held_out", _dotted),
}
