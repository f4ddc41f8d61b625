"""Drawn lines."""

from __future__ import annotations

import pytest

from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.fonts import fonts_for
from openafm.data.drawing.generators import generator_config


def test_the_hyphen_of_a_small_line_in_a_display_font_is_visible() -> None:
    """Its hairline of a third of a pixel was nearly the color of the paper."""
    if not any(font.family == "Noto Serif Display" for font in fonts_for("da", split="held_out")):
        pytest.skip("needs the Debian package fonts-noto-core")
    generator = generator_config("lines").build()
    drawn = draw_document(generator, "lines", "da", "held_out", seed=11, number=65)
    assert " - " in drawn.transcription
    assert not list(generator.check(drawn))
