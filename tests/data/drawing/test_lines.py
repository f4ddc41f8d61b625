"""Drawn lines."""

from __future__ import annotations

import random

import pytest

from openafm.data.drawing.fonts import fonts_for
from openafm.data.drawing.generators import generator_config
from openafm.data.drawing.lines import generator as lines


def test_lines_of_display_fonts_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hairline of a hyphen, a third of a pixel, was nearly the color of the paper in small lines."""
    thin = tuple(font for font in fonts_for("da", split="held_out") if font.family == "Noto Serif Display")
    if not thin:
        pytest.skip("needs the Debian package fonts-noto-core")
    monkeypatch.setattr(lines, "fonts_for", lambda *_, **__: thin)
    generator = generator_config("lines").build()
    drawn = [generator.draw(random.Random(seed), "da", "held_out") for seed in range(20)]
    assert min(command["size"] for line in drawn for command in line.log["commands"] if command["op"] == "text") == 28
    assert [error for line in drawn for error in generator.check(line)] == []
