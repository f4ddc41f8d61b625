"""Independent check of a scene: boxes against pixels, and answers against the logged objects."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

from openafm.data.drawing.base import Drawn
from openafm.data.drawing.scenes.objects import COLORS
from openafm.data.drawing.scenes.texts import scene_texts
from openafm.data.images.documents import Question
from openafm.data.images.grounding import boxes_of, without_boxes

_NEAR = 2.0
_SECTIONS = {
    "counting": ("ask.count",),
    "ground.box": ("ask.box",),
    "refer.mark": ("ask.mark_of",),
    "absent": ("ask.absent", "ask.area", "ask.box"),
    "compare": ("ask.more",),
}
_RELATIONS = ("left", "right", "above", "below")


def scene_errors(drawn: Drawn) -> list[str]:
    """Return what is wrong with a scene's truth."""
    log: dict[str, Any] = dict(drawn.log)
    scenes: list[dict[str, Any]] = log["scenes"]
    errors = [error for index, scene in enumerate(scenes) for error in _pixel_errors(drawn, index, scene)]
    for question in drawn.questions:
        if question.kind == "compare":
            errors += _comparison_errors(drawn.language, question, scenes)
        else:
            errors += _answer_errors(drawn.language, question, scenes[0])
    if "grounded" in drawn.captions:
        errors += _caption_errors(drawn, scenes[0])
    return errors


def _pixel_errors(drawn: Drawn, index: int, scene: dict[str, Any]) -> Iterator[str]:
    """Each box holds the pixels that differ from the background exactly, and nothing is outside of all boxes."""
    import numpy as np
    from PIL import Image as Images

    with Images.open(io.BytesIO(drawn.images[index].data)) as image:
        painted = (np.asarray(image) != np.array(scene["background"])).any(axis=2)
    if [region.box for region in drawn.images[index].regions] != [tuple(item["box"]) for item in scene["objects"]]:
        yield "the regions are not the logged boxes"
    for item in scene["objects"]:
        left, top, right, bottom = (int(value) for value in item["box"])
        rows, columns = np.nonzero(painted[top:bottom, left:right])
        found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) if len(rows) else (0, 0, 0, 0)
        if max(abs(a - b) for a, b in zip(found, (0, 0, right - left, bottom - top), strict=True)) > _NEAR:
            yield f"the box of {item['phrase']!r} is {item['box']}, its pixels are at {found} in it"
        if item["color"] and not item["mark"]:
            middle = np.array(COLORS[item["color"]])
            with Images.open(io.BytesIO(drawn.images[index].data)) as image:
                pixels = np.asarray(image)[top:bottom, left:right]
            if not (np.abs(pixels.astype(int) - middle).max(axis=2) < 12).mean() > 0.2:
                yield f"the box of {item['phrase']!r} has little of its color"
        painted[top:bottom, left:right] = False
    if painted.any():
        yield f"{int(painted.sum())} painted pixels are in no box"


def _answer_errors(language: str, question: Question, scene: dict[str, Any]) -> Iterator[str]:
    width, height = scene["size"]
    objects: list[dict[str, Any]] = scene["objects"]
    phrases = [str(item["phrase"]) for item in objects]
    asked, answer = question.question, question.answer
    told = f"{question.kind}: {asked!r} has the answer {answer!r}"
    named = _named(language, question, phrases)
    match question.kind:
        case "counting":
            if named is None or int(answer) != phrases.count(named):
                yield told
        case "refer.box":
            ((_, box),) = boxes_of(asked, width, height)
            if not any(_close(box, item["box"]) and item["phrase"] == answer for item in objects):
                yield told
        case "refer.point":
            x, y = (int(value) / 1000 for value in re.findall(r"\[(\d+),(\d+)\]", asked)[0])
            if not any(
                item["phrase"] == answer
                and item["box"][0] <= x * width <= item["box"][2]
                and item["box"][1] <= y * height <= item["box"][3]
                for item in objects
            ):
                yield told
        case "ground.box":
            ((_, box),) = boxes_of(answer, width, height)
            if not any(_close(box, item["box"]) and item["phrase"] == named for item in objects):
                yield told
        case "refer.mark":
            marks = {str(item["mark"]): item["phrase"] for item in objects}
            number = answer if answer in marks else re.findall(r"\d+", asked)[0]
            if marks[number] not in (answer, named):
                yield told
        case "spatial.relation":
            yield from _relation_errors(language, answer, objects, told)
        case "color":
            names = {scene_texts(language).color(item["color"]) for item in objects if item["color"]}
            if answer not in names:
                yield told
        case "absent":
            if named is not None:
                yield told


def _relation_errors(language: str, answer: str, objects: list[dict[str, Any]], told: str) -> Iterator[str]:
    """Compare the statement with those of all pairs, of which the centers are compared."""
    texts = scene_texts(language)
    for first in objects:
        for second in objects:
            for side in _RELATIONS:
                if texts.draw(random.Random(0), side, a=first["phrase"], b=second["phrase"]) == answer:
                    axis = 0 if side in ("left", "right") else 1
                    before, after = (item["box"][axis] + item["box"][axis + 2] for item in (first, second))
                    if (before < after) == (side in ("left", "above")):
                        return
    yield told


def _comparison_errors(language: str, question: Question, scenes: list[dict[str, Any]]) -> Iterator[str]:
    texts = scene_texts(language)
    phrases = [[str(item["phrase"]) for item in scene["objects"]] for scene in scenes]
    named = _named(language, question, (*phrases[0], *phrases[1]))
    first, second = (found.count(named or "") for found in phrases)
    expected = texts.more(0 if first > second else 1 if first < second else 2)
    if named is None or question.answer != expected:
        yield f"{question.question!r} has the answer {question.answer!r}, the counts are {first} and {second}"


def _caption_errors(drawn: Drawn, scene: dict[str, Any]) -> Iterator[str]:
    width, height = scene["size"]
    grounded = drawn.captions["grounded"]
    found = [box for _, box in boxes_of(grounded, width, height)]
    if len(found) != len(scene["objects"]):
        yield f"the grounded caption has {len(found)} boxes for {len(scene['objects'])} objects"
    for item in scene["objects"]:
        if not any(_close(box, item["box"]) for box in found):
            yield f"the grounded caption lacks the box of {item['phrase']!r}"
    if "[" in without_boxes(grounded):
        yield "the grounded caption has a malformed box"


def _named(language: str, question: Question, phrases: Iterable[str]) -> str | None:
    """The phrase with which the templates of a kind of question give this question."""
    texts, sections = scene_texts(language), _SECTIONS.get(question.kind, ())
    lines = ((phrase, texts.all_lines(section, phrase)) for phrase in phrases for section in sections)
    return next((phrase for phrase, found in lines if question.question in found), None)


def _close(told: tuple[float, float, float, float], box: list[float]) -> bool:
    return max(abs(a - b) for a, b in zip(told, box, strict=True)) <= _NEAR
