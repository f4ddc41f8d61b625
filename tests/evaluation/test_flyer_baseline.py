"""Baseline of events on flyers: fields from lines, in the languages' ways to write dates and times."""

from __future__ import annotations

import datetime
import shutil

import pytest

from openafm.evaluation.flyer_baseline import ReadLine, flyer_event, read_lines

TODAY = datetime.date(2031, 5, 7)


@pytest.mark.parametrize(
    ("language", "date", "time", "expected"),
    [
        ("en", "June 14, 2031", "7 pm", ("2031-06-14", "19:00")),
        ("de", "Samstag, 14. Juni 2031", "19 Uhr", ("2031-06-14", "19:00")),
        ("fr", "samedi 14 juin", "19h30", ("2031-06-14", "19:30")),
        ("es", "14 de junio de 2031", "19:30 h", ("2031-06-14", "19:30")),
        ("pt", "14/06/2031", "19h", ("2031-06-14", "19:00")),
        ("vi", "ngày 14 tháng 6 năm 2031", "19h30", ("2031-06-14", "19:30")),
        ("ko", "2031년 6월 14일", "19시", ("2031-06-14", "19:00")),
        ("ja", "6月14日", "19時30分", ("2031-06-14", "19:30")),
    ],
)
def test_fields_of_a_flyer(language, date, time, expected):
    lines = [ReadLine("Festival", 60), ReadLine(date, 30), ReadLine(time, 30), ReadLine("Hall", 31), ReadLine("notes", 15)]
    event = flyer_event(lines, language, TODAY)
    assert event == {"title": "Festival", "date": expected[0], "time": expected[1], "location": "Hall"}


def test_an_empty_image_has_no_title():
    assert flyer_event([], "en", TODAY) == {"title": ""}


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="needs the command tesseract")
def test_lines_are_read():
    from openafm.data.drawing.canvas import Canvas
    from openafm.data.drawing.fonts import fonts_for

    canvas = Canvas(500, 160)
    font = next(font for font in fonts_for("en", style="sans") if not font.is_italic)
    canvas.text(20, 10, "Summer Festival", font, 48)
    canvas.text(20, 100, "Town Hall", font, 28)
    first, second = read_lines(canvas.png(), "eng", 6)
    assert (first.text, second.text) == ("Summer Festival", "Town Hall")
    assert first.height > second.height
    assert read_lines(b"no image", "eng") == []
