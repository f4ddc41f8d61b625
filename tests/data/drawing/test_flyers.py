"""Flyers: the event is what is drawn, boxes hold their ink after the camera, and the splits share nothing."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random

import pytest

from openafm.core.config import ConfigError
from openafm.data.drawing.camera import CONDITIONS, Geometry, draw_geometry, shoot
from openafm.data.drawing.canvas import Canvas
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.flyers import FlyersConfig, generator
from openafm.data.drawing.flyers.designs import DESIGNS
from openafm.data.drawing.flyers.generator import FlyerGenerator
from openafm.data.drawing.fonts import FontMissingError, fonts_for
from openafm.data.images.documents import Region
from openafm.data.synthetic.announcements import draw_announcement, with_random_words
from openafm.data.synthetic.languages import LANGUAGES
from openafm.data.synthetic.rendering import lower

flyers = FlyerGenerator()


def draw(seed, language="en", split="train"):
    try:
        return flyers.draw(random.Random(seed), language, split)
    except FontMissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_content_holds_the_event(language, split):
    for seed in range(3):
        content = draw_announcement(random.Random(seed), language, split)
        assert set(content.event) == {"title", "date", "time", "location"}
        assert content.today < datetime.date.fromisoformat(content.event["date"])
        assert (content.title, content.place) == (content.event["title"], content.event["location"])
        assert content.date != content.time
        assert not {"{", "<", "["} & set(content.all_text)


def test_independent_check_finds_no_error():
    for index, (language, split) in enumerate([("en", "train"), ("de", "held_out"), ("ja", "train"), ("vi", "held_out")]):
        drawn = draw(index, language, split)
        assert list(flyers.check(drawn)) == []


def test_a_text_that_is_part_of_another_is_not_taken_for_it():
    try:  # its time is "1", its address ends with "15" and is asked for
        drawn = draw_document(flyers, "flyers", "tr", "train", 11, 2026)
    except FontMissingError as error:
        pytest.skip(str(error))
    assert {"1", "Eski Değirmen, Okul Sokak 15"} < {region.label for region in drawn.images[0].regions}
    assert list(flyers.check(drawn)) == []


@pytest.mark.parametrize(("language", "split", "number"), [("ja", "train", 7917), ("zh-Hant", "held_out", 9660)])
def test_fonts_that_place_words_further_apart_are_no_error(language, split, number):
    """A column whose font has spaces of a whole character, and a line whose font kerns across a space."""
    try:
        drawn = draw_document(flyers, "flyers", language, split, 11, number)
    except FontMissingError as error:
        pytest.skip(str(error))
    assert list(flyers.check(drawn)) == []


def test_check_finds_a_column_beside_its_ink():
    drawn = draw_document(flyers, "flyers", "ja", "train", 11, 7917)
    column = next(command for command in drawn.log["commands"] if command.get("direction") == "ttb")
    words = [dict(word) for word in drawn.log["words"]]
    for word in words[slice(*column["regions"])]:
        word["box"] = [value + 20 * (index % 2 == 0) for index, value in enumerate(word["box"])]
    assert any(
        "their ink is at" in each for each in flyers.check(dataclasses.replace(drawn, log={**drawn.log, "words": words}))
    )


def test_check_finds_planted_errors():
    drawn = draw(3)
    words = [dict(word) for word in drawn.log["words"]]
    words[2]["box"] = [value + 9 for value in words[2]["box"]]
    assert flyers.check(dataclasses.replace(drawn, log={**drawn.log, "words": words}))
    event = {**drawn.log["event"], "date": "1999-01-03"}
    assert flyers.check(dataclasses.replace(drawn, log={**drawn.log, "event": event}))
    assert flyers.check(dataclasses.replace(drawn, transcription=drawn.transcription + " more"))


def test_equal_seeds_draw_equal_bytes():
    first, second = draw(5), draw(5)
    assert first.images[0].data == second.images[0].data
    assert first.questions == second.questions
    assert first.images[0].data != draw(6).images[0].data


def test_questions_have_the_event_in_the_form_of_the_text_corpus():
    drawn = draw(8, "de")
    question = next(question for question in drawn.questions if question.kind == "event")
    assert json.loads(question.answer) == drawn.log["event"]
    assert {"event", "transcription", "flyer.date", "ground.box", "absent"} <= {
        question.kind for question in drawn.questions
    }
    json.dumps(drawn.log)


@pytest.mark.parametrize(
    ("language", "seed"), [("en", 1), ("tr", 1), ("tr", 2), ("zh-Hans", 1), ("de", 2), ("de", 21), ("de", 27)]
)
def test_random_words_have_the_places_and_letters_of_the_names_that_they_replace(language, seed):
    rng = random.Random(seed)
    content = draw_announcement(rng, language, "train")
    drawn = with_random_words(rng, content)
    assert drawn.title != content.title
    assert (drawn.event["title"], drawn.event["location"]) == (drawn.title, drawn.place)
    assert {field: drawn.event[field] for field in ("date", "time")} == {
        field: content.event[field] for field in ("date", "time")
    }
    for before, after in [(content.title, drawn.title), *zip(content.lines, drawn.lines, strict=True)]:
        assert len(after) == len(before)
        assert [char for char in after if not char.isalpha()] == [char for char in before if not char.isalpha()]
    assert set(lower(drawn.all_text, language)) <= set(lower(content.all_text, language))


def test_a_share_of_the_flyers_has_random_words():
    mixed = FlyersConfig(random_share=0.5).build()
    found = [mixed.draw(random.Random(seed), "en", "train") for seed in range(8)]
    written = [draw_announcement(random.Random(seed), "en", "train").title for seed in range(8)]
    unchanged = sum(title == drawn.log["event"]["title"] for title, drawn in zip(written, found, strict=True))
    assert 1 <= unchanged <= 7
    for drawn in found:
        assert list(flyers.check(drawn)) == []
        assert drawn.log["event"]["title"] in drawn.transcription
    with pytest.raises(ConfigError, match="random_share is a share from 0 to 1, got 2"):
        FlyersConfig(random_share=2)


def test_splits_share_no_design_font_or_condition():
    seen = {split: [draw(seed, "en", split).metadata for seed in range(3)] for split in ("train", "held_out")}
    for key in ("design", "title_font", "font", "condition"):
        assert not {metadata[key] for metadata in seen["train"]} & {metadata[key] for metadata in seen["held_out"]}
    assert len([design for design in DESIGNS.values() if design.split == "train"]) >= 12


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_every_condition_moves_boxes_with_their_ink(name):
    canvas = Canvas(400, 520)
    font = fonts_for("en")[0]
    (word,) = canvas.text(150, 240, "Festival", font, 40)
    shot = shoot(canvas.image(), [word], random.Random(2), CONDITIONS[name], protected={0})
    assert shot.log["condition"] == name
    (box,) = (region.box for region in shot.regions)
    if "geometry" in shot.log:
        ink = Canvas(400, 520, (0, 0, 0))
        ink.rectangle(word.box, fill=(255, 255, 255))
        left, top, right, bottom = Geometry.of_log(shot.log["geometry"]).warp(ink.image().convert("L")).getbbox()
        assert max(abs(a - b) for a, b in zip(box, (left, top, right, bottom), strict=True)) < 3
    else:
        assert box == word.box


@pytest.mark.parametrize("name", ["crumpled", "reencoded"])
def test_centers_of_letters_move_with_their_ink(name):
    canvas = Canvas(400, 520)
    (word,) = canvas.text(100, 240, "OOOOOO", fonts_for("en")[0], 40)
    shot = shoot(canvas.image(), [word], random.Random(2), CONDITIONS[name], protected={0})
    (region,) = shot.regions
    for (x, y), (moved_x, moved_y) in zip(word.centers, region.centers, strict=True):
        dot = Canvas(400, 520, (0, 0, 0))
        dot.rectangle((x - 2, y - 2, x + 2, y + 2), fill=(255, 255, 255))
        ink = dot.image().convert("L")
        if "geometry" in shot.log:
            ink = Geometry.of_log(shot.log["geometry"]).warp(ink)
        left, top, right, bottom = ink.getbbox()
        assert abs((left + right) / 2 - moved_x) < 1.5
        assert abs((top + bottom) / 2 - moved_y) < 1.5
    if "geometry" in shot.log:
        assert region.centers != word.centers


def test_geometry_inverts():
    import numpy as np

    geometry = draw_geometry(random.Random(1), 600, 800, CONDITIONS["crumpled"])
    points = np.array([(20.0, 30.0), (300, 400), (580, 790)])
    assert np.abs(geometry.to_drawing(geometry.to_photograph(points)) - points).max() < 0.1


def test_covered_words_lose_their_regions():
    """A cover touches no protected region, and what it touches is gone from the regions."""
    canvas = Canvas(500, 600)
    regions = [Region(label=str(row), box=(10.0, 20.0 * row, 490.0, 20.0 * row + 18), kind="word") for row in range(28)]
    shots = [
        shoot(canvas.image(), regions, random.Random(seed), CONDITIONS["covered"], protected={0, 1, 2}) for seed in range(6)
    ]
    assert any(shot.covered for shot in shots)
    for shot in shots:
        assert not shot.covered & {0, 1, 2}
        assert len(shot.regions) == 28 - len(shot.covered)


def test_words_that_are_covered_leave_the_transcription(monkeypatch):
    monkeypatch.setattr(generator, "draw_condition", lambda *_: CONDITIONS["covered"])
    drawn = next(drawn for drawn in map(draw, range(60)) if drawn.log["covered"])
    hidden = drawn.log["words"][drawn.log["covered"][0]]["text"]
    shown = [region.label for region in drawn.images[0].regions if region.kind == "word"]
    assert len(drawn.transcription.split()) == len(shown)
    assert shown.count(hidden) < [word["text"] for word in drawn.log["words"]].count(hidden)
    assert list(flyers.check(drawn)) == []
