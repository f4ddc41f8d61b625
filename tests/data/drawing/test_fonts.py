"""Fonts: the right ones for a language, no missing glyph, and families that split."""

from __future__ import annotations

import dataclasses

import pytest

from openafm.data.drawing import fonts
from openafm.data.drawing.fonts import FontMissingError, font_named, fonts_for, installed_fonts, split_of_family
from openafm.data.synthetic.languages import LANGUAGES


@pytest.fixture
def without_fontconfig(monkeypatch):
    caches = (fonts.installed_fonts, fonts._languages, fonts._serving, fonts._fontconfig_lines, fonts._from_fontconfig)
    for function in caches:
        function.cache_clear()
    monkeypatch.setattr(fonts.shutil, "which", lambda _: None)
    yield
    for function in caches:
        function.cache_clear()


def test_fonts_have_the_letters_of_their_language():
    samples = {
        "tr": "İstanbul ağ",
        "vi": "Đường phố",
        "ja": "会場は東京です",
        "ko": "행사 안내",
        "zh-Hans": "活动时间",
        "zh-Hant": "活動時間",
    }
    for language in LANGUAGES:
        try:
            found = fonts_for(language)
        except FontMissingError:
            continue  # not installed here
        assert found == tuple(sorted(found))
        assert all(font.has(samples.get(language, "Größe, café 12:30")) for font in found)


def test_chinese_fonts_are_of_the_right_region():
    for language, wrong in (("zh-Hans", " JP"), ("ja", " SC"), ("zh-Hant", " KR")):
        try:
            families = {font.family for font in fonts_for(language)}
        except FontMissingError:
            pytest.skip("no Chinese fonts installed")
        assert not [family for family in families if wrong in family]


def test_a_missing_glyph_is_found():
    font = next(font for font in installed_fonts() if "DejaVu Sans" in font.family)
    assert font.missing("Ab 会場") == "会場"
    assert font.has("Łódź 12")


def test_missing_language_names_a_package(without_fontconfig):
    assert {font.family for font in fonts_for("en")} >= {"DejaVu Sans", "DejaVu Serif"}
    with pytest.raises(FontMissingError, match=r"'ja'.*fonts-noto-cjk"):
        fonts_for("ja")


def test_matplotlib_fonts_serve_both_splits(without_fontconfig):
    train, held_out = (fonts_for("en", split=split) for split in ("train", "held_out"))
    assert train
    assert held_out
    assert not {font.family for font in train} & {font.family for font in held_out}


def test_regions_and_monospaced_variants_share_a_split():
    sides = {split_of_family(f"Noto Sans{mono} CJK {region}") for mono in ("", " Mono") for region in ("JP", "SC", "KR")}
    assert len(sides) == 1


def test_styles():
    assert all(font.kind == "mono" for font in fonts_for("en", style="mono"))
    assert all("Serif" in font.family or font.kind == "serif" for font in fonts_for("en", style="serif"))
    assert fonts_for("en", style="display")


def test_a_name_is_one_font(monkeypatch):
    found = fonts._from_fontconfig() or fonts._from_matplotlib()
    copies = tuple(dataclasses.replace(found[0], path=path) for path in ("/~", "/!"))
    monkeypatch.setattr(fonts, "_from_fontconfig", lambda: (*found[1:], *copies))
    fonts.installed_fonts.cache_clear()
    try:
        installed = installed_fonts()
        assert font_named(found[0].name).path == "/!"
        with pytest.raises(FontMissingError, match="no installed font is named 'No Such Font'"):
            font_named("No Such Font")
    finally:
        fonts.installed_fonts.cache_clear()
    assert len({font.name for font in installed}) == len(installed)
