"""Draw flyers: content, design, fonts and camera, with the event, boxes, questions and captions as truth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.camera import Shot, draw_condition, shoot
from openafm.data.drawing.canvas import LeavesCanvasError
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.flyers.check import flyer_errors
from openafm.data.drawing.flyers.designs import draw_design
from openafm.data.drawing.flyers.sheet import Block, NoRoomError, Sheet, draw_palette
from openafm.data.drawing.fonts import Font, FontMissingError, fonts_for
from openafm.data.images.documents import Box, Question, Region
from openafm.data.images.grounding import box_text
from openafm.data.synthetic.announcements import Announcement, draw_announcement, with_random_words
from openafm.data.synthetic.reference import draw_reference, event_instructions, event_instructions_today_only, fill
from openafm.data.synthetic.text_files.posters import poster_texts
from openafm.tokenizer.schema_text import compact_json

FIELDS = ("title", "date", "time", "location")
_TRIES = 30
_CANONICAL_SHARE, _TODAY_ONLY_SHARE = 0.5, 0.1
_BOLD_SHARE = 0.7
_LONGEST_READ = 40


class FlyerGenerator(Generator):
    """Draws flyers; design, fonts, words and camera conditions of the two splits are disjoint."""

    def __init__(self, random_share: float = 0.0) -> None:
        self._random_share = random_share

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        for _ in range(_TRIES):
            content = draw_announcement(rng, language, split)
            if self._random_share and rng.random() < self._random_share:
                content = with_random_words(rng, content)
            design = draw_design(rng, split)
            fonts = draw_fonts(rng, language, split, content.all_text)
            sheet = Sheet(*rng.choice(design.formats), draw_palette(rng), fonts, rng)
            try:
                design.lay_out(sheet, content)
            except (NoRoomError, LeavesCanvasError):
                continue  # too long for this design
            if {block.field for block in sheet.blocks if block.field} == set(FIELDS):
                return _photographed(rng, sheet, content, split, design.name)
        raise DrawingFailedError(f"no legible flyer in '{language}' after {_TRIES} attempts")

    def check(self, drawn: Drawn) -> Sequence[str]:
        return flyer_errors(drawn)


def draw_fonts(rng: random.Random, language: str, split: Split, text: str) -> tuple[Font, Font]:
    """Return a font for titles and one for the rest, of which both have all characters of a text.

    Raises:
        FontMissingError: no font has them.
    """
    found = [font for font in fonts_for(language, split=split) if font.has(text)]
    if not found:
        raise FontMissingError(f"no installed font of the split '{split}' has all characters of {text!r}")
    upright = [font for font in found if not font.is_italic and font.kind != "mono"] or found
    bold = [font for font in upright if font.is_bold]
    title = rng.choice(bold if bold and rng.random() < _BOLD_SHARE else found)
    return title, rng.choice([font for font in upright if not font.is_bold] or upright)


def _photographed(rng: random.Random, sheet: Sheet, content: Announcement, split: Split, design: str) -> Drawn:
    words = list(sheet.canvas.regions)
    fields = [_field_region(block, words) for block in sheet.blocks if block.field]
    protected = {index for block in sheet.blocks if block.field for index in range(block.first, block.last)}
    protected |= set(range(len(words), len(words) + len(fields)))
    condition = draw_condition(rng, split)
    shot = shoot(sheet.canvas.image(), [*words, *fields], rng, condition, protected=protected)
    transcription = "\n".join(filter(None, (_visible(block, words, shot.covered) for block in sheet.blocks)))
    boxes = {region.kind: region.box for region in shot.regions if region.kind in FIELDS}
    extras = [text for block in sheet.blocks if not block.field and (text := _visible(block, words, shot.covered))]
    return Drawn(
        kind="flyer",
        language=content.language,
        images=(DrawnImage(data=shot.data, width=shot.width, height=shot.height, regions=shot.regions),),
        transcription=transcription,
        captions=_captions(rng, content, split, boxes, shot, extras),
        questions=_questions(rng, content, split, shot, transcription),
        metadata={
            "design": design,
            "title_font": sheet.title_font.family,
            "font": sheet.text_font.family,
            "condition": condition.name,
            "event": compact_json(content.event),
            "today": content.today.isoformat(),
        },
        log={
            "event": dict(content.event),
            "shown": {"title": content.title, "date": content.date, "time": content.time, "location": content.place},
            **shot.truth(sheet.canvas, words),
        },
    )


def _field_region(block: Block, words: Sequence[Region]) -> Region:
    boxes = [region.box for region in words[block.first : block.last]]
    left, top = min(box[0] for box in boxes), min(box[1] for box in boxes)
    right, bottom = max(box[2] for box in boxes), max(box[3] for box in boxes)
    return Region(label=block.text, box=(left, top, right, bottom), kind=block.field)


def _visible(block: Block, words: Sequence[Region], covered: frozenset[int]) -> str:
    """The text of a block without the words that are covered."""
    kept, at = [], 0
    for index in range(block.first, block.last):
        label = words[index].label
        start = block.text.index(label, at)
        kept.append(block.text[at:start] + (label if index not in covered else ""))
        at = start + len(label)
    return " ".join("".join(kept).split())


def _captions(
    rng: random.Random, content: Announcement, split: Split, boxes: Mapping[str, Box], shot: Shot, extras: Sequence[str]
) -> dict[str, str]:
    texts = poster_texts(content.language, split)
    values = {"title": content.title, "date": content.date, "time": content.time, "place": content.place}
    short = texts.draw(rng, "caption", values)
    grounded = {
        name: f"{text} {box_text(boxes['location' if name == 'place' else name], shot.width, shot.height)}"
        for name, text in values.items()
    }
    return {
        "keywords": ", ".join(values.values()),
        "short": short,
        "paragraph": "\n".join((short, *extras)),
        "grounded": texts.draw(rng, "caption", grounded),
    }


def _questions(
    rng: random.Random, content: Announcement, split: Split, shot: Shot, transcription: str
) -> tuple[Question, ...]:
    texts = poster_texts(content.language, split)
    asked = [
        Question(question=_instructions(rng, content, split), answer=compact_json(content.event), kind="event"),
        Question(question=texts.draw(rng, "ask.transcribe"), answer=transcription, kind="transcription"),
    ]
    shown = {"title": content.title, "date": content.date, "time": content.time, "place": content.place}
    asked += [
        Question(question=texts.draw(rng, f"ask.{field}"), answer=text, kind=f"flyer.{field}")
        for field, text in shown.items()
    ]
    field = rng.choice([region for region in shot.regions if region.kind in FIELDS])
    box = box_text(field.box, shot.width, shot.height)
    asked.append(Question(question=texts.draw(rng, "ask.where", {"text": field.label}), answer=box, kind="ground.box"))
    short = [region for region in shot.regions if region.kind in FIELDS and len(region.label) <= _LONGEST_READ]
    if short:
        read = rng.choice(short)
        box = box_text(read.box, shot.width, shot.height)
        asked.append(Question(question=texts.draw(rng, "ask.read", {"box": box}), answer=read.label, kind="refer.box"))
    question, _, refusal = texts.draw(rng, "absent").partition(" => ")
    asked.append(Question(question=question, answer=refusal, kind="absent"))
    return tuple(asked)


def _instructions(rng: random.Random, content: Announcement, split: Split) -> str:
    """The task and the reference day, as in the text corpus."""
    if rng.random() < _CANONICAL_SHARE:
        return event_instructions(content.today)
    if rng.random() < _TODAY_ONLY_SHARE:
        return event_instructions_today_only(content.today)
    frames = poster_texts(content.language, split).frames
    return f"{fill(rng, rng.choice(frames.instructions['event']))} {draw_reference(rng, frames, content.today)}"
