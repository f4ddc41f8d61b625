"""Check charts: ink against boxes, marks against data, words against names, answers against the transcription."""

from __future__ import annotations

import io
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from openafm.data.drawing.base import Drawn
from openafm.data.drawing.canvas_check import check_ink
from openafm.data.drawing.charts.rendering import render_chart
from openafm.data.drawing.charts.spec import ChartSpec
from openafm.data.drawing.phrases import read_number
from openafm.data.drawing.table_questions import check_answers, read_markdown
from openafm.data.images.documents import Region

_PIXELS = 1.6
"""Largest error of a bar's length: anti-aliasing of both ends."""


def check_chart(drawn: Drawn) -> list[str]:
    """Return the errors of a drawn chart."""
    from PIL import Image

    spec = ChartSpec.from_json(drawn.log)
    image = drawn.images[0]
    pixels = np.asarray(Image.open(io.BytesIO(image.data)))
    if pixels.shape != (image.height, image.width, 3):
        return [f"the image has shape {pixels.shape}, not {(image.height, image.width, 3)}"]
    plain = render_chart(spec.kind, spec.table, spec.style, spec.language, with_text=False).pixels
    texts = [region for region in image.regions if region.kind != "mark"]
    marks = [region for region in image.regions if region.kind == "mark"]
    return [
        *check_ink(np.any(pixels != plain, axis=2), texts),
        *_check_names(spec, texts),
        *_check_marks(spec, marks),
        *_check_cells(spec, drawn.transcription),
        *check_answers(spec.language, drawn.transcription, drawn.questions),
    ]


def _check_names(spec: ChartSpec, texts: Sequence[Region]) -> list[str]:
    """Every name and every written value is among the texts."""
    written = [region.label for region in texts]
    names = [spec.table.title, *spec.table.rows]
    if spec.table.measure and spec.kind not in ("box", "histogram") and len(spec.table.columns) > 1:
        names += [spec.table.measure]
    names += [] if spec.kind == "box" else spec.table.columns
    errors = [f"{name!r} is not written" for name in names if not any(name in text for text in written)]
    if spec.style.shows_values:
        values = [read_number(spec.language, text.rpartition(": ")[2]) for text in written]
        wanted = [value for row in spec.table.values for value in row]
        errors += [f"the value {value} is not written" for value in wanted if value not in values]
    return errors


def _check_marks(spec: ChartSpec, marks: Sequence[Region]) -> list[str]:
    """Lengths of bars are proportional to their values; all other marks have the size of their share."""
    if spec.kind in ("pie", "donut"):
        return []
    by_name: dict[str, Decimal] = {}
    for row, values in zip(spec.table.rows, spec.table.values, strict=True):
        for column, value in zip(spec.table.columns, values, strict=True):
            by_name[row if len(spec.table.columns) == 1 else f"{row}, {column}"] = abs(value)
    across = spec.kind == "horizontal_bar"
    lengths = {mark.label: mark.box[2] - mark.box[0] if across else mark.box[3] - mark.box[1] for mark in marks}
    if not lengths:
        return []
    longest = max(lengths, key=lambda name: lengths[name])
    scale = lengths[longest] / float(by_name[longest])
    return [
        f"the bar of {name!r} is {length:.1f} pixels long, its value needs {float(by_name[name]) * scale:.1f}"
        for name, length in lengths.items()
        if abs(length - float(by_name[name]) * scale) > _PIXELS
    ]


def _check_cells(spec: ChartSpec, transcription: str) -> list[str]:
    """The transcription's cells are the data."""
    _, header, rows = read_markdown(transcription)
    errors = [] if header == [spec.table.dimension, *spec.table.columns] else ["the header is not that of the data"]
    for name, values, cells in zip(spec.table.rows, spec.table.values, rows, strict=False):
        if cells[0] != name or [read_number(spec.language, cell) for cell in cells[1:]] != list(values):
            errors.append(f"the row {name!r} is not that of the data")
    return errors if len(rows) == len(spec.table.rows) else [*errors, "rows are missing"]
