"""Tables: cells of data and of pages are drawn, and the transcription, the words and the answers are checked."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from openafm.core.config import ConfigError
from openafm.data.drawing.corpus import image_document
from openafm.data.drawing.data_tables import draw_data_table
from openafm.data.drawing.tables import TablesConfig
from openafm.data.drawing.tables.html import tables_of_file, tables_of_html
from openafm.data.images.documents import Question
from openafm.data.rendering.browser import RenderingUnavailableError, find_executable
from openafm.data.rendering.config import RenderConfig
from openafm.data.web.documents import Page
from openafm.data.web.permissions.opt_out import training_opt_out
from openafm.data.web.warc import Capture, capture_bytes

PAGE = """<html><body><table><tr><td><table><tr><td>layout</td></tr></table></td></tr></table>
<table><caption>Trains <sup class="reference">[1]</sup></caption>
<thead><tr><th>City</th><th colspan="2">Times</th></tr></thead>
<tr><td>x</td><td>1</td><td>2</td></tr></table>
<table><caption>Rivers</caption><tr><th>River</th><th>Length | km</th><th>Sea</th></tr>
<tr><td>Rhine</td><td>1,233</td><td rowspan="2">North<br> Sea</td></tr>
<tr><td>Elbe</td><td>1,094</td></tr><tr><td>Danube</td><td>2,850</td><td>Black Sea</td></tr></table>
<table><tr><td><input></td><td>a</td></tr><tr><td>b</td><td>c</td></tr><tr><td>d</td><td>e</td></tr></table>
</body></html>"""


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_tables_are_drawn_with_correct_truth(split):
    generator = TablesConfig().build()
    for seed in range(4):
        drawn = generator.draw(random.Random(seed), ("en", "de", "fr", "sv")[seed % 4], split)
        assert list(generator.check(drawn)) == []


def test_the_check_finds_wrong_truth():
    generator = TablesConfig().build()
    drawn = generator.draw(random.Random(0), "en", "train")
    image = drawn.images[0]
    first = image.regions[0]
    left, top, right, bottom = first.box
    for box in ((left + 1, top, right, bottom), (left, top, right, bottom + 1)):
        regions = (replace(first, box=box), *image.regions[1:])
        assert generator.check(replace(drawn, images=(replace(image, regions=regions),)))
    title = drawn.transcription.partition("\n")[0]
    assert generator.check(replace(drawn, transcription=drawn.transcription.replace(title, "# Wrong")))
    wrong = Question(question=drawn.questions[0].question, answer="-1", kind=drawn.questions[0].kind)
    assert generator.check(replace(drawn, questions=(wrong,)))


def test_tables_of_pages_are_found_and_expanded():
    (table,) = tables_of_html(PAGE)
    assert (table.title, table.header) == ("Rivers", ("River", "Length | km", "Sea"))
    assert table.rows[:2] == (("Rhine", "1,233", "North Sea"), ("Elbe", "1,094", "North Sea"))
    assert list(tables_of_html("")) == []
    assert list(tables_of_html("<table>" + "<tr><td>a</td><td>b</td></tr>" * 500 + "</table>")) == []


def test_tables_of_pages_are_drawn(tmp_path):
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    config = TablesConfig(pages=(str(tmp_path / "page.html"),), page_share=1.0)
    generator = config.build()
    drawn = generator.draw(random.Random(1), "en", "train")
    assert list(generator.check(drawn)) == []
    assert drawn.transcription.startswith("# Rivers\n\n| River | Length \\| km | Sea |\n")
    document, _ = image_document(drawn, "tables", "train")
    assert (document.source, document.license) == ("page.html", "")
    assert {question.kind for question in drawn.questions} == {"table.rows", "table.lookup", "table.table"}
    before = config.input_digests()
    (tmp_path / "page.html").write_text(PAGE + " ", encoding="utf-8")
    assert config.input_digests() != before


def test_tables_of_crawled_pages_respect_opt_outs(tmp_path):
    file = tmp_path / "pages.warc.gz"
    with file.open("wb") as stream:
        for url, header in (("https://a.example/", {}), ("https://b.example/", {"x-robots-tag": "noai"})):
            headers = {"content-type": "text/html", **header}
            opt_out = training_opt_out(url, headers, PAGE.encode())
            page = Page(url=url, body=PAGE.encode(), headers=headers, fetched_at="2026-01-01T00:00:00Z", opt_out=opt_out)
            stream.write(capture_bytes(Capture(page=page)))
    assert [table.page for table in tables_of_file(file)] == ["https://a.example/"]


def test_names_of_months_do_not_depend_on_the_languages_before():
    # babel returns Chinese names for other locales after it has read Chinese ones in the context "stand-alone".
    code = (
        "import random\nfrom openafm.data.drawing.data_tables import draw_data_table\n"
        "for language in {}:\n"
        "    found = draw_data_table(random.Random(5), language, 'train', num_rows=(12, 12), is_timed=True)\n"
        "print(found.rows)"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code.format(order)], capture_output=True, text=True, check=True).stdout
        for order in (["de"], ["zh-Hans", "ja", "de"])
    }
    assert len(outputs) == 1


def test_drawn_data_have_the_requested_shape():
    for seed in range(30):
        table = draw_data_table(
            random.Random(seed), "ko", "train", num_rows=(3, 5), num_columns=(2, 3), is_signed=False, is_ratio=True
        )
        assert 2 <= len(table.rows) <= 5
        assert 2 <= len(table.columns) <= 3
        values = [value for row in table.values for value in row]
        assert min(values) >= 0
        assert len(set(table.rows)) == len(table.rows)


def test_wrong_values_are_errors():
    with pytest.raises(ConfigError, match="page_share must be from 0 to 1, got 2"):
        TablesConfig(page_share=2)


@pytest.mark.slow
def test_tables_by_chromium_have_exact_boxes():
    try:
        find_executable(RenderConfig())
    except RenderingUnavailableError as error:
        pytest.skip(str(error))
    generator = TablesConfig(renderer="chromium").build()
    for seed, language in enumerate(("en", "ko", "de")):
        drawn = generator.draw(random.Random(seed), language, "train")
        assert list(generator.check(drawn)) == []
    first = drawn.images[0].regions[0]
    left, top, right, bottom = first.box
    moved = (replace(first, box=(left + 1, top, right, bottom)), *drawn.images[0].regions[1:])
    assert generator.check(replace(drawn, images=(replace(drawn.images[0], regions=moved),)))
