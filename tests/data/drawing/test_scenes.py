"""Scenes: boxes hold the objects, answers follow from them, and questions about absent things are refused."""

from __future__ import annotations

import dataclasses
import random

import pytest

from openafm.data.drawing.scenes import ScenesConfig, objects
from openafm.data.drawing.scenes.objects import COLORS, EMOJI, SHAPES, SceneObject, kinds_of
from openafm.data.drawing.scenes.scene import PlacedObject, relation
from openafm.data.drawing.scenes.texts import scene_texts
from openafm.data.images.documents import Question
from openafm.data.images.grounding import boxes_of, without_boxes
from openafm.data.synthetic.languages import LANGUAGES

single = ScenesConfig(pairs=0.0).build()


@pytest.mark.parametrize("language", LANGUAGES)
def test_independent_check_finds_no_error(language):
    scenes = ScenesConfig().build()
    for split in ("train", "held_out"):
        drawn = scenes.draw(random.Random(f"{language}{split}"), language, split)
        assert list(scenes.check(drawn)) == []


def planted(drawn, kind, answer):
    """A document whose question of a kind has another answer."""
    questions = [
        dataclasses.replace(question, answer=answer) if question.kind == kind else question for question in drawn.questions
    ]
    return dataclasses.replace(drawn, questions=tuple(questions))


def test_check_finds_planted_errors():
    drawn = single.draw(random.Random(4), "en", "train")
    kinds = {question.kind for question in drawn.questions}
    assert {"counting", "refer.box", "ground.box", "absent"} <= kinds
    assert list(single.check(drawn)) == []
    assert single.check(planted(drawn, "counting", "11"))
    assert single.check(planted(drawn, "refer.box", "whale"))
    assert single.check(planted(drawn, "ground.box", "[0,0,9,9]"))
    present = drawn.log["scenes"][0]["objects"][0]["phrase"]
    for asked in (f"Describe the {present} in the image.", f"Where is the {present}? Answer with its box."):
        absent = Question(question=asked, answer="There is none.", kind="absent")
        assert single.check(dataclasses.replace(drawn, questions=(absent,)))
    shifted = [dict(item, box=[value + 6 for value in item["box"]]) for item in drawn.log["scenes"][0]["objects"]]
    assert single.check(dataclasses.replace(drawn, log={"scenes": [{**drawn.log["scenes"][0], "objects": shifted}]}))


def test_words_of_a_question_do_not_tell_whether_its_object_is_there():
    names = (*COLORS, *SHAPES, *EMOJI)
    wordings = {"absent": [], "present": []}
    for seed in range(60):
        for question in single.draw(random.Random(seed), "en", "train").questions:
            if question.kind in ("absent", "spatial.area", "ground.box"):
                words = tuple(word for word in question.question.split() if word.strip(".?,") not in names)
                wordings["absent" if question.kind == "absent" else "present"].append(words)
    shared = [words for words in wordings["absent"] if words in wordings["present"]]
    assert len(shared) > len(wordings["absent"]) / 2


def test_the_description_of_a_scene_rarely_comes_before_the_other_questions():
    """It names every object: after it, the text alone answers most of them."""
    drawn = [single.draw(random.Random(seed), "en", "train") for seed in range(60)]
    places = [[question.kind for question in each.questions].index("describe") for each in drawn]
    assert 0 < places.count(0) < 20
    assert len(set(places)) > 4


def test_captions_have_levels_and_grounded_ones_have_a_box_per_object():
    drawn = single.draw(random.Random(2), "en", "train")
    assert set(drawn.captions) == {"keywords", "short", "paragraph", "grounded"}
    image = drawn.images[0]
    found = [box for _, box in boxes_of(drawn.captions["grounded"], image.width, image.height)]
    assert len(found) == len(image.regions)
    assert "[" not in without_boxes(drawn.captions["grounded"])
    assert drawn.captions["paragraph"].startswith(drawn.captions["short"][:8])


def test_pairs_compare_two_images():
    pairs = ScenesConfig(pairs=1.0).build()
    drawn = pairs.draw(random.Random(3), "de", "train")
    assert len(drawn.images) == 2
    (question,) = drawn.questions
    assert question.kind == "compare"
    wrong = {"Im ersten Bild.": "Im zweiten Bild."}.get(question.answer, "Im ersten Bild.")
    assert pairs.check(planted(drawn, "compare", wrong))


def test_marks_are_drawn_on_the_objects():
    marked = ScenesConfig(pairs=0.0, marks=1.0).build()
    drawn = marked.draw(random.Random(1), "en", "train")
    assert list(marked.check(drawn)) == []
    assert sorted(item["mark"] for item in drawn.log["scenes"][0]["objects"]) == list(
        range(1, len(drawn.images[0].regions) + 1)
    )
    assert "refer.mark" in {question.kind for question in drawn.questions}


def test_splits_share_no_kind_of_object(monkeypatch):
    assert not set(kinds_of("train")) & set(kinds_of("held_out"))
    monkeypatch.setattr(objects, "emoji_font", lambda: (_ for _ in ()).throw(objects.FontMissingError("none")))
    assert all(kind.color for kind in kinds_of("train"))


def test_relations():
    def at(left, top):
        return PlacedObject(SceneObject("cat"), (left, top, left + 50, top + 50))

    assert relation(at(0, 0), at(200, 20)) == "left"
    assert relation(at(20, 300), at(0, 0)) == "below"
    assert relation(at(0, 0), at(200, 200)) is None
    assert relation(at(0, 0), at(40, 0)) is None


def test_every_language_names_every_object_differently():
    for language in LANGUAGES:
        texts = scene_texts(language)
        kinds = [SceneObject(name) for name in EMOJI] + [SceneObject(shape, color) for shape in SHAPES for color in COLORS]
        assert len({texts.phrase(kind) for kind in kinds}) == len(kinds)
    english = scene_texts("en")
    assert english.counted("slice of pizza", 2) == "two slices of pizza"
    assert english.counted("orange star", 1) == "an orange star"


def test_equal_seeds_draw_equal_bytes():
    first, second = (single.draw(random.Random(9), "fr", "train") for _ in range(2))
    assert first == second
