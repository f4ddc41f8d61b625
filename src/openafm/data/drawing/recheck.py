"""Parts of independent checks: text is drawn again with Pillow alone, and compared with boxes and transcriptions."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from openafm.data.drawing.base import Drawn
from openafm.data.drawing.camera import Geometry
from openafm.data.drawing.canvas import VISIBLE_INK
from openafm.data.drawing.fonts import font_named
from openafm.data.images.documents import Box, Region

if TYPE_CHECKING:
    from PIL.Image import Image

_TOLERANCE = 3  # pixels: words are placed on whole pixels
_INK = 200
_COORDINATE = 2.5  # pixels: thousandths of an image
_CENTER = 1.5  # pixels: words are placed on whole pixels
_CENTER_HEIGHT = 0.25  # above the baseline, in sizes of the font


def ink_errors(drawn: Drawn) -> Iterator[str]:
    """Yield words whose box does not hold their ink, in the drawing and in the photograph.

    The log is one of `Shot.truth`. The centers of letters are checked in words that nothing covers.
    """
    import numpy as np
    from PIL import Image as Images
    from PIL import ImageDraw

    log: dict[str, Any] = dict(drawn.log)
    image = drawn.images[0]
    with Images.open(io.BytesIO(image.data)) as opened:
        if opened.size != (image.width, image.height):
            yield f"the image has {opened.size} pixels, not {(image.width, image.height)}"
    width, height = log["commands"][0]["size"]
    ink = Images.new("L", (width, height))
    for command in log["commands"]:
        if command["op"] == "text":
            yield from _line_errors(command, log["words"], _drawn_again(command, width, height))
            for word in log["words"][slice(*command["regions"])]:
                yield from _word_errors(command, word, ink)
    geometry = Geometry.of_log(log["camera"]["geometry"]) if "geometry" in log["camera"] else None
    boxes = [tuple(word["box"]) for word in log["words"]]
    if geometry is not None:
        ink, boxes = geometry.warp(ink), list(geometry.boxes(boxes))
    allowed = Images.new("L", ink.size)
    for left, top, right, bottom in boxes:
        ImageDraw.Draw(allowed).rectangle((left - 2, top - 2, right + 1, bottom + 1), fill=255)
    outside = (np.asarray(ink) > _INK) & (np.asarray(allowed) == 0)
    if outside.any():
        yield f"{int(outside.sum())} pixels of ink are in no word's box"
    shown = [region for region in image.regions if region.kind == "word"]
    expected = [box for index, box in enumerate(boxes) if index not in set(log["covered"])]
    if len(shown) != len(expected):
        yield f"the image has {len(shown)} words, the log has {len(expected)}"
    visible = [index for index in range(len(boxes)) if index not in set(log["covered"])]
    commands = _commands_of_words(log["commands"])
    for index, region in zip(visible, shown, strict=False):
        yield from _center_errors(commands[index], log["words"][index], region, geometry)
    for index, (region, box) in enumerate(zip(shown, expected, strict=False)):
        yield from box_errors(box, region.box, region.label)
        left, top, right, bottom = (round(value) for value in region.box)
        found = ink.crop((left, top, right, bottom)).point([0] * 48 + [255] * 208).getbbox()
        if found is None or (found[2] - found[0]) < 0.5 * (right - left) - 4:
            yield f"the box of word {index}, {region.label!r}, holds too little ink"


def _drawn_again(command: Mapping[str, Any], width: int, height: int) -> Image:
    """The ink of a text command as a mask, drawn at once and not word by word."""
    from PIL import Image as Images
    from PIL import ImageDraw

    font = font_named(command["font"]).at(command["size"])
    anchor, (x, y) = command["anchor"], command["at"]
    mask = Images.new("L", (width, height))
    if command["direction"] == "ltr" and anchor[1] == "m":
        ascent, descent = font.getmetrics()
        y, anchor = y + (ascent - descent) / 2, anchor[0] + "s"
    anchor = anchor.replace("t", "a") if command["direction"] == "ltr" else anchor
    ImageDraw.Draw(mask).text((x, y), command["text"], 255, font, anchor, direction=command["direction"])
    return mask.point(VISIBLE_INK)


def _alone(command: Mapping[str, Any], word: str) -> Image:
    """The ink of a word of a text command, drawn by itself: its pen starts two sizes from the left and from the top."""
    size, is_line = command["size"], command["direction"] == "ltr"
    around = (len(word) + 6) * 2 * size
    alone = {"text": word, "at": [2 * size, 2 * size], "anchor": "ls" if is_line else "mt"}
    return _drawn_again({**command, **alone}, *((around, 6 * size) if is_line else (6 * size, around)))


def _word_errors(command: Mapping[str, Any], word: Mapping[str, Any], ink: Image) -> Iterator[str]:
    """Compare the size of a word's box with the word drawn alone, and add its ink at the box."""
    left, top, right, bottom = (int(value) for value in word["box"])
    mask = _alone(command, word["text"])
    found = mask.getbbox()
    if found is None or max(abs(found[2] - found[0] - right + left), abs(found[3] - found[1] - bottom + top)) > 1:
        yield f"the box {word['box']} of {word['text']!r} has another size than its ink, {found}"
        return
    ink.paste(mask.crop(found), (left, top), mask.crop(found))


def _line_errors(command: Mapping[str, Any], words: Sequence[Mapping[str, Any]], line: Image) -> Iterator[str]:
    first, last = command["regions"]
    found = line.getbbox()
    drawn = [word["box"] for word in words[first:last]]
    if "".join(word["text"] for word in words[first:last]) != without_space(command["text"]):
        yield f"the words of {command['text']!r} are others"
    if found is None or not drawn:
        if found is not None or drawn:
            yield f"{command['text']!r} has ink without words or words without ink"
        return
    union = [min(box[0] for box in drawn), min(box[1] for box in drawn)]
    union += [max(box[2] for box in drawn), max(box[3] for box in drawn)]
    kerning = 0.1 * command["size"] * (len(drawn) - 1)
    limit = _TOLERANCE + kerning + (0.06 * command["size"] if command["direction"] == "ttb" else 0)
    expected = _spread(command, found)
    is_low = command["direction"] == "ltr" and max(abs(union[1] - found[1]), abs(union[3] - found[3])) > _TOLERANCE
    if is_low or max(abs(a - b) for a, b in zip(union, expected, strict=True)) > limit:
        yield f"the words of {command['text']!r} are at {union}, their ink is at {expected}"


def _spread(command: Mapping[str, Any], found: tuple[int, int, int, int]) -> list[float]:
    """Return where the ink of a line drawn at once would be if its words were placed one by one.

    The canvas places words one by one: a space of the font apart in a line, half of the size apart in a column. Fonts kern
    across spaces, and a column may have spaces as long as a character.
    """
    is_column = command["direction"] == "ttb"
    font = font_named(command["font"]).at(command["size"])
    words = command["text"].split()
    gap = command["size"] / 2 if is_column else font.getlength(" ")
    apart = sum(font.getlength(word, direction=command["direction"]) for word in words) + gap * (len(words) - 1)
    change = apart - font.getlength(command["text"], direction=command["direction"])
    before = {"m": 0.5, "r": 1.0, "b": 1.0, "d": 1.0}.get(command["anchor"][is_column], 0.0) * change
    left, top, right, bottom = found
    if is_column:
        return [left, top - before, right, bottom + change - before]
    return [left - before, top, right + change - before, bottom]


def _commands_of_words(commands: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the command that draws each word, by the index of the word."""
    texts = (command for command in commands if command["op"] == "text")
    return {index: command for command in texts for index in range(*command["regions"])}


def _center_errors(
    command: Mapping[str, Any], word: Mapping[str, Any], region: Region, geometry: Geometry | None
) -> Iterator[str]:
    """Compare the centers of a word's letters with the widths of its beginnings and the height of its baseline.

    Both are measured from the ink of the word alone, whose pen is where `_alone` puts it.
    """
    if command["direction"] == "ttb":
        if region.centers:
            yield f"the column {word['text']!r} has centers of letters, which only lines have"
        return
    size, text = command["size"], word["text"]
    font, (left, top, _, _) = font_named(command["font"]).at(size), word["box"]
    ink = _alone(command, text).getbbox()
    if ink is None:
        return
    pen, baseline = left - ink[0] + 2 * size, top - ink[1] + 2 * size
    ends = [pen + font.getlength(text[:count]) for count in range(len(text) + 1)]
    middle = baseline - _CENTER_HEIGHT * size
    expected: Sequence[tuple[float, float]] = [(sum(pair) / 2, middle) for pair in pairwise(ends)]
    expected = geometry.points(expected) if geometry else expected
    if len(region.centers) != len(text):
        yield f"{text!r} has {len(region.centers)} centers for {len(text)} characters"
    elif any(math.dist(told, true) > _CENTER for told, true in zip(region.centers, expected, strict=True)):
        yield f"the letters of {text!r} are at {region.centers}, not at {expected}"


def transcription_errors(drawn: Drawn) -> Iterator[str]:
    """Yield an error if the transcription of a drawing is not the text that its commands draw, without covered words."""
    log: dict[str, Any] = dict(drawn.log)
    expected = without_space(text_of_commands(log["commands"], log["words"], set(log["covered"])))
    if without_space(drawn.transcription) != expected:
        yield f"the transcription {drawn.transcription!r} is not what the commands draw: {expected!r}"
    for question in drawn.questions:
        if question.kind == "transcription" and question.answer != drawn.transcription:
            yield "the answer is not the transcription"


def text_of_commands(commands: Sequence[Mapping[str, Any]], words: Sequence[Mapping[str, Any]], covered: set[int]) -> str:
    """Return the texts that commands draw, without covered words."""
    lines = []
    for command in commands:
        if command["op"] == "text":
            first, last = command["regions"]
            lines.append(" ".join(str(words[index]["text"]) for index in range(first, last) if index not in covered))
    return "\n".join(lines)


def box_errors(told: Box, true: Box, label: str) -> Iterator[str]:
    """Yield an error if a box in coordinates of the text format is not the true one."""
    if max(abs(a - b) for a, b in zip(told, true, strict=True)) > _COORDINATE:
        yield f"the box of {label!r} is {true}, not {told}"


def without_space(text: str) -> str:
    """Return a text without white space."""
    return "".join(text.split())
