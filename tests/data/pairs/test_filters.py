"""Filters of pairs: alt texts, overlap of texts, overrides, and text that tesseract reads."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openafm.core.config import ConfigError
from openafm.data.pairs.alignment import SCORE_KEY, AlignmentConfig, TextOverlapConfig, tokens_of
from openafm.data.pairs.filters import AltTextConfig, OverridesConfig, Pair, Pixels
from openafm.data.pairs.ocr import OcrConfig, TesseractMissingError

needs_tesseract = pytest.mark.skipif(shutil.which("tesseract") is None, reason="the command tesseract is not installed")


def pair(text: str, language: str = "en", **values: str) -> Pair:
    return Pair(
        text=text,
        language=language,
        image_url=values.pop("image_url", "http://a.example/1.jpg"),
        page_url="http://a.example/",
        width=200,
        height=100,
        pixels=lambda: np.zeros((100, 200, 3), np.uint8),
        **values,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Fishing boats in the old harbor", ""),
        ("", "no_alt_text"),
        ("IMG_2041.jpg", "file_name"),
        ("my holiday photo (2).png", "file_name"),
        ("DSC 1234", "file_name"),
        ("https://example.com/a", "file_name"),
        ("Logo", "generic_text"),
        ("Photo 3", "generic_text"),
        ("a cat", "short_text"),
        ("word " * 400, "long_text"),
        ("12-34-5678 90:12 abcdefgh 345-678", "few_letters"),
        ("buy boats buy boats buy boats", "repetitive_text"),
    ],
)
def test_alt_texts(text: str, reason: str) -> None:
    found = AltTextConfig().build().check(pair(text.strip()))
    assert (found.reason if found else "") == reason


def test_languages_without_spaces_need_fewer_letters() -> None:
    check = AltTextConfig().build().check
    assert check(pair("港の漁船", "ja")) is None
    assert check(pair("港", "ja")) is not None


def test_long_alt_texts_take_linear_time() -> None:
    start = time.process_time()
    for text in ("a" * 50_000 + "!", "a b_" * 20_000, "www." * 20_000, "x-" * 30_000 + ".jpeg?"):
        AltTextConfig().build().check(pair(text))
    assert time.process_time() - start < 2


def test_overlap_counts_words_around_the_image() -> None:
    score = TextOverlapConfig().build().score
    assert score(pair("Boats in the harbor", nearby="The harbor has many boats.")) == 1.0
    assert score(pair("Boats, harbor", image_url="http://a.example/old-harbor.jpg")) == 0.5
    assert score(pair("Quarterly revenue", nearby="The harbor has many boats.")) == 0.0
    assert score(pair("港の漁船", "ja", caption="漁船が港に入る")) == pytest.approx(1 / 3)
    assert score(pair("!?")) == 0.0
    assert tokens_of("The 漁船です of it") == {"the", "漁船", "船で", "です"}


def test_alignment_drops_low_scores_and_stores_the_others() -> None:
    check = AlignmentConfig(min_score=0.5).build().check
    assert check(pair("Boats of the town", nearby="nothing like it")) is not None
    kept = pair("Boats of the town", nearby="the town has boats")
    assert check(kept) is None
    assert kept.metadata == {SCORE_KEY: "1.0000", "alignment.scorer": "TextOverlapConfig"}


def test_overrides_apply_to_domains_below_and_to_pages(tmp_path: Path) -> None:
    file = tmp_path / "overrides.toml"
    file.write_text('[[publisher]]\ndomain = "bad.example"\n[[publisher]]\ndomain = "a.example"\npath = "/x/"\n')
    check = OverridesConfig(file=str(file)).build().check
    assert check(pair("x", image_url="http://img.bad.example/1.jpg")) is not None
    assert check(pair("x", image_url="http://a.example/x/1.jpg")) is not None
    assert check(pair("x", image_url="http://notbad.example/1.jpg")) is None
    assert check(replace(pair("x", image_url="http://b.example/"), page_url="http://bad.example/")) is not None


@pytest.mark.parametrize("text", ["", "[[publisher]]\nreason = 'x'", "publisher = 3", "[[publisher]]\ndomain = 5"])
def test_malformed_overrides_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "overrides.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"expected \[\[publisher\]\] tables"):
        OverridesConfig(file=str(file)).build()


@needs_tesseract
def test_images_full_of_text_are_dropped() -> None:
    few, many = _written("BOATS\nHARBOR"), _written("\n".join(["The old harbor of the town"] * 8))
    check = OcrConfig(max_words=20).build().check
    found = [check(replace(pair(text), pixels=lambda image=image: image)) for text, image in (  # type: ignore[misc]
        ("Two fishing boats at the pier", few),
        ("Boats harbor", few),
        ("Two fishing boats at the pier", many),
    )]  # fmt: skip
    assert [each.reason if each else "" for each in found] == ["", "text_is_read", "text_image"]


def test_without_tesseract_the_filter_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TesseractMissingError, match="apt install tesseract-ocr"):
        OcrConfig().build()


def _written(text: str) -> Pixels:
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf", 32)
    image = Image.new("RGB", (640, 480), "white")
    ImageDraw.Draw(image).multiline_text((40, 40), text, fill="black", font=font, spacing=16)
    return np.asarray(image)
