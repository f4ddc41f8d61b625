"""The generator of tables: cells from data or from pages, a layout, questions, and an independent check."""

from __future__ import annotations

import atexit
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.canvas_check import check_canvas, check_ink
from openafm.data.drawing.choices import bold_of, draw_font, image_of, png_of
from openafm.data.drawing.data_tables import draw_data_table, draw_measures_table, markdown_table
from openafm.data.drawing.phrases import question, read_number, write_number
from openafm.data.drawing.table_questions import ask, check_answers, read_markdown
from openafm.data.drawing.tables.config import TablesConfig
from openafm.data.drawing.tables.html import PageTable, tables_of_file
from openafm.data.drawing.tables.layout import draw_table_style, lay_out_table
from openafm.data.images.documents import Question

if TYPE_CHECKING:
    from openafm.data.drawing.tables.chromium import ChromiumTables


class TableGenerator(Generator):
    """Draws tables."""

    def __init__(self, config: TablesConfig) -> None:
        self._config = config
        self._chromium: ChromiumTables | None = None
        self._pages = [table for page in config.pages for table in tables_of_file(Path(page))]

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        if self._pages and rng.random() < self._config.page_share:
            return self._draw_page_table(rng, language, split, rng.choice(self._pages))
        if rng.random() < 0.5:
            table = draw_measures_table(rng, language, split, num_rows=(2, 12), num_columns=(1, 5))
        else:
            table = draw_data_table(rng, language, split, num_rows=(2, 12), num_columns=(1, 5))
        header = (table.dimension, *table.columns)
        rows = [
            (name, *(write_number(language, value) for value in row))
            for name, row in zip(table.rows, table.values, strict=True)
        ]
        questions = ask(rng, language, split, table, group="table")
        return self._drawn(rng, language, split, table.title, header, rows, questions)

    def check(self, drawn: Drawn) -> Sequence[str]:
        title, header, rows = read_markdown(drawn.transcription)
        words = [region.label for region in drawn.images[0].regions]
        expected = [word for text in (title, *header, *(cell for row in rows for cell in row)) for word in text.split()]
        joined = "".join(words) == "".join(expected)  # wrapped cells of languages without spaces have more runs
        errors = [] if joined else ["the words on the image are not those of the transcription, in this order"]
        if "html" in drawn.log:
            from PIL import Image

            image = drawn.images[0]
            pixels = np.asarray(Image.open(io.BytesIO(image.data)))
            plain = self._browser().plain(str(drawn.log["html"]))
            errors += check_ink(np.any(pixels != plain, axis=2), image.regions)
        else:
            errors += check_canvas(drawn)
        return [*errors, *check_answers(drawn.language, drawn.transcription, drawn.questions)]

    def _draw_page_table(self, rng: random.Random, language: str, split: Split, table: PageTable) -> Drawn:
        questions = [Question(question=question(language, split, "rows"), answer=str(len(table.rows)), kind="table.rows")]
        markdown = markdown_table(table.title, table.header, table.rows)
        names = [row[0] for row in table.rows]
        if len(set(names)) == len(names) and all(names):
            row, column = rng.randrange(len(names)), rng.randrange(1, len(table.header))
            if table.rows[row][column]:
                text = question(language, split, "lookup", row=names[row], column=table.header[column])
                questions.append(Question(question=text, answer=table.rows[row][column], kind="table.lookup"))
        questions.append(
            Question(question=question(language, split, "transcribe_table"), answer=markdown, kind="table.table")
        )
        return self._drawn(rng, language, split, table.title, table.header, table.rows, tuple(questions), table.page)

    def _drawn(
        self,
        rng: random.Random,
        language: str,
        split: Split,
        title: str,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        questions: tuple[Question, ...],
        page: str = "",
    ) -> Drawn:
        style = draw_table_style(rng, split)
        text = "".join((title, *header, *(cell for row in rows for cell in row)))
        font = draw_font(rng, language, split, text, ("sans", "serif", "mono"))
        numeric = [
            column > 0 and all(read_number(language, row[column]) is not None for row in rows)
            for column in range(len(header))
        ]
        if self._config.renderer == "chromium":
            from openafm.data.drawing.tables.chromium import table_html

            document = table_html(rng, title, header, rows, style, font, numeric)
            rendered = self._browser().render(document)
            height, width, _ = rendered.pixels.shape
            image = DrawnImage(data=png_of(rendered.pixels), width=width, height=height, regions=rendered.regions)
            log: dict[str, object] = {"html": document}
        else:
            canvas = lay_out_table(title, header, rows, style, font, bold_of(font, text), numeric=numeric)
            image, log = image_of(canvas), {"commands": canvas.commands}
        return Drawn(
            kind="table",
            language=language,
            images=(image,),
            transcription=markdown_table(title, header, rows),
            questions=questions,
            metadata={"design": style.design, "font": font.family} | ({"page": page} if page else {}),
            log=log,
        )

    def _browser(self) -> ChromiumTables:
        """Return the browser of this process, which starts with the first table and ends with the process."""
        if self._chromium is None:
            from openafm.data.drawing.tables.chromium import ChromiumTables

            self._chromium = ChromiumTables()
            atexit.register(self._chromium.close)
        return self._chromium
