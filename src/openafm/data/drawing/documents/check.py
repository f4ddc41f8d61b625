"""Check documents: ink, order of words, answers from the transcription, sums of prices, check boxes and bars in pixels."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from openafm.data.drawing.base import Drawn
from openafm.data.drawing.canvas_check import check_canvas
from openafm.data.drawing.phrases import labels, read_number, slots_of
from openafm.data.drawing.table_questions import check_answers
from openafm.data.images.documents import Question, Region

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MARKUP = re.compile(r"^#+ |^- \[[x ]\] |^\| --- .*$", re.MULTILINE)
_SEPARATOR = re.compile(r"(?<!\\)\|")


def check_document(drawn: Drawn) -> list[str]:
    """Return the errors of a drawn document."""
    errors = check_canvas(drawn)
    regions = drawn.images[0].regions
    written = "".join(region.label for region in regions if region.kind not in ("checkbox", "bar"))
    if written != words_of_markdown(drawn.transcription):
        errors.append("the words on the image are not those of the transcription, in this order")
    design = drawn.metadata["document"]
    if design == "infographic":
        errors += check_answers(drawn.language, drawn.transcription, drawn.questions)
        errors += _check_bars(drawn, [region for region in regions if region.kind == "bar"])
    else:
        errors += [error for each in drawn.questions for error in _check_question(drawn, each)]
    if design in ("receipt", "invoice"):
        errors += _check_sums(drawn)
    return errors + _check_boxes(drawn, [region for region in regions if region.kind == "checkbox"])


def words_of_markdown(text: str) -> str:
    """Return the text of Markdown without markup and white space."""
    plain = _SEPARATOR.sub(" ", _MARKUP.sub("", text))
    return "".join(re.sub(r"\\([\\|])", r"\1", plain).split())


def _check_question(drawn: Drawn, asked: Question) -> list[str]:
    """Answer a question by reading the lines of the transcription."""
    key = asked.kind.rpartition(".")[2]
    lines = drawn.transcription.splitlines()
    found: list[str] = []
    slots = slots_of(drawn.language, key, asked.question) or {}
    match key:
        case "title":
            found = [lines[0].removeprefix("# ")]
        case "transcribe":
            found = [drawn.transcription]
        case "paragraphs":
            found = [str(len(re.split(r"\n\n", drawn.transcription)) - 2)]  # after the title and the date
        case "checked":
            names = labels(drawn.language, "forms")
            found = [names["yes" if "[x]" in line[:6] else "no"] for line in lines if line[6:] == slots.get("label")]
        case "field":
            name = slots.get("label", "")
            found = [line.partition(": ")[2] for line in lines if line.startswith(f"{name}: ")]
            found += [row[-1] for row in _rows(drawn) if row[0] == name]
        case "price":
            found = [row[2 if len(row) == 4 else 1] for row in _rows(drawn) if row[0] == slots.get("row")]
    return [] if asked.answer in found else [f"{asked.question!r}: answer {asked.answer!r}, recomputed {found}"]


def _rows(drawn: Drawn) -> list[list[str]]:
    rows = [line for line in drawn.transcription.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [
        [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in _SEPARATOR.split(row.removeprefix("|").removesuffix("|"))]
        for row in rows
    ]


def _check_sums(drawn: Drawn) -> list[str]:
    """Items add up to the subtotal, with tax to the total; the change is what cash leaves."""
    words = labels(drawn.language, "receipts")
    rows = _rows(drawn)
    ends = [index for index, row in enumerate(rows) if row[0] == words["subtotal"] and row[-1]]
    if not ends:
        return ["there is no subtotal"]
    first = 1 if drawn.metadata["document"] == "invoice" else 2  # after the header, or the date and the time
    amounts = [read_number(drawn.language, row[-1]) for row in rows]
    items = [amount for amount in amounts[first : ends[-1]] if amount is not None]
    rest = [amount for amount in amounts[ends[-1] :] if amount is not None]
    errors = [] if sum(items) == rest[0] else [f"the items add up to {sum(items)}, the subtotal is {rest[0]}"]
    errors += [] if rest[0] + rest[1] == rest[2] else ["subtotal and tax are not the total"]
    if len(rest) == 5 and rest[3] - rest[2] != rest[4]:
        errors.append("the change is wrong")
    if drawn.metadata["document"] == "invoice":
        for row in rows[1 : ends[-1]]:
            count, unit, amount = (read_number(drawn.language, cell) or Decimal(0) for cell in row[1:])
            if count * unit != amount:
                errors.append(f"{row[0]!r}: {count} times {unit} is not {amount}")
    return errors


def _pixels(drawn: Drawn) -> NDArray[np.int16]:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(drawn.images[0].data)).convert("RGB"), dtype=np.int16)


def _check_boxes(drawn: Drawn, boxes: Sequence[Region]) -> list[str]:
    """A box is marked in its inside if and only if the transcription has it as checked."""
    if not boxes:
        return []
    pixels, errors = _pixels(drawn), []
    states = re.findall(r"^- \[([x ])\]", drawn.transcription, re.MULTILINE)
    for state, region in zip(states, boxes, strict=True):
        left, top, right, bottom = map(round, region.box)
        inside = pixels[top + 2 : bottom - 2, left + 2 : right - 2]
        is_marked = bool((np.abs(inside - inside[0, 0]) > 40).any())
        if is_marked != (state == "x") or (region.label == "checked") != is_marked:
            errors.append(f"the check box at ({left}, {top}) is {region.label!r}, its pixels and the text differ")
    return errors


def _check_bars(drawn: Drawn, bars: Sequence[Region]) -> list[str]:
    """Bars are as long as their numbers, measured in pixels of their color."""
    pixels, values = _pixels(drawn), {row[0]: read_number(drawn.language, row[1]) for row in _rows(drawn)[1:]}
    lengths: dict[str, int] = {}
    for bar in bars:
        left, top, _, bottom = map(round, bar.box)
        line = pixels[(top + bottom) // 2, left:]
        same = (line == line[(round(bar.box[2]) - left) // 2]).all(axis=1)
        lengths[bar.label] = int(np.argmin(same)) if not same.all() else len(line)
    if set(lengths) != set(values):
        return ["the bars are not those of the table"]
    longest = max(lengths, key=lambda name: lengths[name])
    scale = lengths[longest] / float(values[longest] or 1)
    return [
        f"the bar of {name!r} has {length} pixels"
        for name, length in lengths.items()
        if abs(length - scale * float(values[name] or 0)) > 1.5
    ]
