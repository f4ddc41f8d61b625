"""The generator of charts: data by rules or by a model, a drawing, questions, and an independent check."""

from __future__ import annotations

import random
from collections.abc import Sequence

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.charts.check import check_chart
from openafm.data.drawing.charts.config import ChartsConfig
from openafm.data.drawing.charts.data import draw_chart_data
from openafm.data.drawing.charts.kinds import KINDS
from openafm.data.drawing.charts.rendering import RenderedChart, render_chart
from openafm.data.drawing.charts.spec import ChartSpec
from openafm.data.drawing.charts.styles import DESIGNS, draw_design, draw_style
from openafm.data.drawing.choices import DrawingFailedError, draw_font, png_of
from openafm.data.drawing.data_tables import DataTable
from openafm.data.drawing.table_questions import ask

_ATTEMPTS = 12
_DIGITS = "0123456789.,-−–: %"


class ChartGenerator(Generator):
    """Draws charts."""

    def __init__(self, config: ChartsConfig) -> None:
        self._kinds = config.kinds or tuple(KINDS)

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        kind = rng.choice(self._kinds)
        for attempt in range(_ATTEMPTS):
            # Numbers at every mark are the usual reason for texts that overlap.
            is_written = KINDS[kind].values == "always" or (
                KINDS[kind].values == "choice" and attempt < _ATTEMPTS // 2 and rng.random() < 0.6
            )
            table = draw_chart_data(rng, language, split, KINDS[kind], is_written=is_written)
            spec, rendered = draw_chart_of(rng, language, split, kind, table, is_written=is_written)
            if rendered.is_legible:
                return chart_document(rng, spec, rendered, split)
        raise DrawingFailedError(f"no legible chart of kind '{kind}' in '{language}' after {_ATTEMPTS} attempts")

    def check(self, drawn: Drawn) -> Sequence[str]:
        return check_chart(drawn)


def draw_chart_of(
    rng: random.Random, language: str, split: Split, kind: str, table: DataTable, *, is_written: bool
) -> tuple[ChartSpec, RenderedChart]:
    """Draw data as a chart of a kind in a random style."""
    design = draw_design(rng, split)
    texts = "".join((table.title, table.dimension, table.measure, *table.rows, *table.columns, _DIGITS))
    font = draw_font(rng, language, split, texts, DESIGNS[design].font_styles)
    num_colors = len(table.columns) if len(table.columns) > 1 else len(table.rows)
    style = draw_style(rng, design, font, num_colors=num_colors, shows_values=is_written)
    spec = ChartSpec(kind=kind, table=table, style=style, language=language)
    return spec, render_chart(kind, table, style, language)


def chart_document(rng: random.Random, spec: ChartSpec, rendered: RenderedChart, split: Split) -> Drawn:
    """Return a drawn chart with its truth."""
    table, language = spec.table, spec.language
    keys = None if spec.style.shows_values else ("max", "min", "compare", "above")
    questions = ask(rng, language, split, table, group="chart", keys=keys)
    height, width, _ = rendered.pixels.shape
    image = DrawnImage(data=png_of(rendered.pixels), width=width, height=height, regions=rendered.regions)
    return Drawn(
        kind="chart",
        language=language,
        images=(image,),
        transcription=table.markdown(language),
        captions={"keywords": ", ".join((spec.kind.replace("_", " "), table.title, *table.columns[:4]))},
        questions=questions,
        metadata={
            "design": spec.style.design,
            "font": spec.style.font.family,
            "chart": spec.kind,
            "values": "written" if spec.style.shows_values else "read",
        },
        log=spec.to_json(),
    )
