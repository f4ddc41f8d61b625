"""Charts whose plotting code a model writes: the data by rules, the code in the sandbox, the truth verified afterwards.

The model is a callable from a prompt to text. Its code gets the data as `data.json`. It never runs in this process.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openafm.data.drawing.base import Drawn, DrawnImage, Split
from openafm.data.drawing.charts.data import draw_chart_data
from openafm.data.drawing.charts.kinds import KINDS
from openafm.data.drawing.choices import draw_font
from openafm.data.drawing.data_tables import DataTable
from openafm.data.drawing.phrases import write_number
from openafm.data.drawing.table_questions import ask
from openafm.data.images.decoding import ImageLimits, pixels, stored_image
from openafm.data.images.documents import Region
from openafm.data.web.documents import Dropped
from openafm.sandbox import SandboxFailedError, SandboxLimits, run_python

CodeWriter = Callable[[str], str]
"""Returns a model's answer to a prompt."""

_FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)
_LARGEST_CODE = 20_000
_LIMITS = SandboxLimits(wall_seconds=60, cpu_seconds=30)
_PROMPT = """Write Python code that draws one chart with matplotlib.

The chart is a {kind} chart. The file data.json holds `title`, `dimension` (what the rows are), `measure`, `rows`, `columns`,
`values` (a list of numbers for each row) and `texts` (the same numbers as they must be written on the chart).
Read the file; do not repeat its numbers in the code. Show the title, every name of a row, and every name of a column.
Choose your own colors, font sizes and layout; no text may overlap another one. Do not set a font family, do not save or
show the figure. Answer with the code only.
"""
# Runs the model's code, then writes the picture and the box of each text's ink.
_HARNESS = """
import json, sys
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib import font_manager
from matplotlib.text import Text
plt.rcParams["text.parse_math"] = False
exec(compile(open("code.py", encoding="utf-8").read(), "code.py", "exec"), {"__name__": "__main__"})
figure = plt.gcf()
figure.set_dpi(100)
family = getattr(font_manager, "FontPath", lambda path, index: path)("font", int(open("face").read()))
for text in figure.findobj(Text):
    text.set_fontproperties(font_manager.FontProperties(fname=family, size=text.get_fontsize()))
figure.savefig("chart.png", dpi=100)
canvas = figure.canvas
canvas.draw()
texts = []
height = canvas.get_width_height()[1]
for text in figure.findobj(Text):
    if text.get_visible() and text.get_text().strip():
        box = text.get_window_extent(canvas.get_renderer())
        texts.append([text.get_text(), [float(box.x0), height - float(box.y1), float(box.x1), height - float(box.y0)]])
json.dump(texts, open("texts.json", "w"))
"""


class ChartCodeError(SandboxFailedError):
    """A model's plotting code cannot be run, fails, or draws a chart that does not show the data."""


@dataclass(frozen=True)
class _Written:
    """A chart that code of a model drew."""

    image: Any
    regions: tuple[Region, ...]
    font: str


def draw_model_chart(write: CodeWriter, rng: random.Random, language: str, split: Split, *, kind: str = "") -> Drawn:
    """Return a chart of random data that a model's code draws. The answer is checked before it is used.

    Raises:
        SandboxMissingError: there is no sandbox on this machine; the code is not run.
        ChartCodeError: the answer is not code, the code fails, or names of the data are missing on the chart.
        FontMissingError: no font has the letters of the language.
    """
    name = kind or rng.choice([each for each, needs in KINDS.items() if needs.data == "measure"])
    table = draw_chart_data(rng, language, split, KINDS[name], is_written=True)
    prompt = _PROMPT.format(kind=name.replace("_", " "))
    code = code_of(write(prompt))
    written = _run(code, table, language, split, rng)
    image = DrawnImage(
        data=written.image.data, width=written.image.width, height=written.image.height, regions=written.regions
    )
    questions = ask(rng, language, split, table, group="chart", keys=("max", "min", "compare", "above"))
    return Drawn(
        kind="chart",
        language=language,
        images=(image,),
        transcription=table.markdown(language),
        questions=questions,
        metadata={"chart": name, "design": "model", "font": written.font},
        log={"code": code, "values": [[str(value) for value in row] for row in table.values]},
    )


def code_of(answer: str) -> str:
    """Return the code of an answer: its first fenced block, or all of it.

    Raises:
        ChartCodeError: it is empty, too long, or not Python.
    """
    match = _FENCE.search(answer)
    code = (match[1] if match else answer).strip()
    if not code or len(code) > _LARGEST_CODE:
        raise ChartCodeError(f"the answer has {len(code)} characters of code, expected 1 to {_LARGEST_CODE}")
    try:
        compile(code, "code.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ChartCodeError(f"the answer is not Python: {error}") from error
    return code


def _run(code: str, table: DataTable, language: str, split: Split, rng: random.Random) -> _Written:
    names = "".join((table.title, table.dimension, table.measure, *table.rows, *table.columns))
    font = draw_font(rng, language, split, names + "0123456789.,-%")
    data = {
        "title": table.title,
        "dimension": table.dimension,
        "measure": table.measure or table.columns[0],
        "rows": table.rows,
        "columns": table.columns,
        "values": [[float(value) for value in row] for row in table.values],
        "texts": [[write_number(language, value) for value in row] for row in table.values],
    }
    files = {
        "code.py": code.encode(),
        "data.json": json.dumps(data, ensure_ascii=False).encode(),
        "font": Path(font.path).read_bytes(),
        "face": str(font.index).encode(),
        **_font_cache(),
    }
    result = run_python(_HARNESS, files=files, collect=("chart.png", "texts.json"), limits=_LIMITS)
    if result.timed_out or result.exit_code != 0 or len(result.files) < 2:
        last = (result.output.strip().splitlines() or [f"exit code {result.exit_code}"])[-1]
        raise ChartCodeError(f"the plotting code {'exceeded its time' if result.timed_out else 'failed: ' + last[:200]}")
    # The files come from code that is not trusted: they are decoded as downloaded images are, and every box is measured.
    image = stored_image(result.files["chart.png"], limits=ImageLimits(), source="openafm:charts/model")
    if isinstance(image, Dropped):
        raise ChartCodeError(f"the plotting code wrote an image that is not usable: {image.reason}")
    regions = _measured(pixels(image), _read_texts(result.files["texts.json"]))
    shown = " ".join(region.label for region in regions)
    names_shown = (table.title, *table.rows, *(table.columns if len(table.columns) > 1 else ()))
    missing = [name for name in names_shown if name not in shown]
    if missing:
        raise ChartCodeError(f"the chart does not show {missing[0]!r}")
    return _Written(image, regions, font.family)


def _font_cache() -> dict[str, bytes]:
    """Return matplotlib's list of the installed fonts, which takes it seconds to make."""
    import matplotlib

    return {path.name: path.read_bytes() for path in Path(matplotlib.get_cachedir()).glob("fontlist-*.json")}


def _read_texts(data: bytes) -> list[tuple[str, tuple[float, ...]]]:
    """Return the texts and boxes that the harness wrote.

    Raises:
        ChartCodeError: the file is something else.
    """
    try:
        values = json.loads(data)
        return [(str(text), tuple(float(number) for number in box)) for text, box in values if len(box) == 4]
    except (ValueError, TypeError, RecursionError) as error:
        raise ChartCodeError(f"the boxes of the texts cannot be read: {error}") from error


def _measured(image: Any, texts: list[tuple[str, tuple[float, ...]]]) -> tuple[Region, ...]:
    """Return the texts whose box has ink, with the box of the ink: pixels that differ from the box's most common color."""
    height, width, _ = image.shape
    regions = []
    for text, (left, top, right, bottom) in texts:
        if not all(map(np.isfinite, (left, top, right, bottom))):
            continue
        x0, y0 = max(int(left) - 1, 0), max(int(top) - 1, 0)
        x1, y1 = min(int(right) + 2, width), min(int(bottom) + 2, height)
        part = image[y0:y1, x0:x1].astype(np.int64)
        if not part.size:
            continue
        colors = (part[..., 0] << 16) | (part[..., 1] << 8) | part[..., 2]
        found, counts = np.unique(colors, return_counts=True)
        ink = colors != found[counts.argmax()]
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        if not len(rows):
            continue
        box = (float(x0 + columns[0]), float(y0 + rows[0]), float(x0 + columns[-1] + 1), float(y0 + rows[-1] + 1))
        regions.append(Region(label=text, box=box, kind="text"))
    return tuple(regions)
