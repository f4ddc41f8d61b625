"""Captions in levels, and questions about a scene whose answers follow from its objects."""

from __future__ import annotations

import random
from collections.abc import Iterator

from openafm.data.drawing.base import Split
from openafm.data.drawing.scenes.objects import SceneObject, kinds_of
from openafm.data.drawing.scenes.scene import Scene, relation
from openafm.data.drawing.scenes.texts import SceneTexts
from openafm.data.images.documents import Question
from openafm.data.images.grounding import box_text, point_text

_MOST_RELATIONS = 4
_ASK_ABSENT = ("ask.absent", "ask.area", "ask.box")
"""Most questions about an absent object have the words of those about a present one, so that only the image tells."""


def scene_captions(rng: random.Random, texts: SceneTexts, scene: Scene) -> dict[str, str]:
    """Return the captions of a scene by level."""
    counts = scene.counts
    phrases = {kind: texts.phrase(kind) for kind in counts}
    short = texts.draw(
        rng, "list", list=texts.joined([texts.counted(phrases[kind], count) for kind, count in counts.items()])
    )
    width, height = scene.canvas.width, scene.canvas.height
    grounded = [
        f"{texts.counted(phrases[kind], count)} "
        + " ".join(box_text(placed.box, width, height) for placed in scene.objects if placed.kind == kind)
        for kind, count in counts.items()
    ]
    sentences = [short]
    for placed in scene.unique:
        if (area := scene.area(placed)) is not None:
            sentences.append(texts.draw(rng, "at", a=phrases[placed.kind], area=texts.area(*area)))
    sentences += _relations(rng, texts, scene)[:_MOST_RELATIONS]
    separator = "" if texts.language in ("ja", "zh-Hans", "zh-Hant") else " "
    return {
        "keywords": ", ".join(phrases.values()),
        "short": short,
        "paragraph": separator.join(sentences),
        "grounded": texts.draw(rng, "list", list=texts.joined(grounded)),
    }


def _relations(rng: random.Random, texts: SceneTexts, scene: Scene) -> list[str]:
    unique = scene.unique
    pairs = [(first, second) for first in unique for second in unique if first is not second]
    rng.shuffle(pairs)
    found = []
    seen: set[frozenset[SceneObject]] = set()
    for first, second in pairs:
        side = relation(first, second)
        both = frozenset((first.kind, second.kind))
        if side is not None and both not in seen:
            seen.add(both)
            found.append(texts.draw(rng, side, a=texts.phrase(first.kind), b=texts.phrase(second.kind)))
    return found


def scene_questions(
    rng: random.Random, texts: SceneTexts, scene: Scene, split: Split, captions: dict[str, str]
) -> list[Question]:
    """Return the questions of a scene, one or two of each kind that it allows, in any order.

    After the description of a scene, the text alone answers most of the others.
    """
    asked = [Question(question=texts.draw(rng, "ask.describe"), answer=captions["paragraph"], kind="describe")]
    counts = scene.counts
    kind = rng.choice(list(counts))
    phrase = texts.phrase(kind)
    asked.append(Question(question=texts.draw(rng, "ask.count", a=phrase), answer=str(counts[kind]), kind="counting"))
    asked += _spatial(rng, texts, scene)
    asked += _referring(rng, texts, scene)
    absent = rng.choice([kind for kind in kinds_of(split) if kind not in counts])
    phrase = texts.phrase(absent)
    question = texts.draw(rng, rng.choice(_ASK_ABSENT), a=phrase)
    asked.append(Question(question=question, answer=texts.draw(rng, "no", a=phrase), kind="absent"))
    rng.shuffle(asked)
    return asked


def _spatial(rng: random.Random, texts: SceneTexts, scene: Scene) -> Iterator[Question]:
    unique = scene.unique
    placed = [item for item in unique if scene.area(item) is not None]
    if placed:
        item = rng.choice(placed)
        row, column = scene.area(item) or (0, 0)
        answer = texts.draw(rng, "at", a=texts.phrase(item.kind), area=texts.area(row, column))
        yield Question(question=texts.draw(rng, "ask.area", a=texts.phrase(item.kind)), answer=answer, kind="spatial.area")
    pairs = [(first, second, side) for first in unique for second in unique if (side := relation(first, second))]
    if pairs:
        first, second, side = rng.choice(pairs)
        values = {"a": texts.phrase(first.kind), "b": texts.phrase(second.kind)}
        yield Question(
            question=texts.draw(rng, "ask.relation", **values),
            answer=texts.draw(rng, side, **values),
            kind="spatial.relation",
        )


def _referring(rng: random.Random, texts: SceneTexts, scene: Scene) -> Iterator[Question]:
    width, height = scene.canvas.width, scene.canvas.height
    item = rng.choice(scene.objects)
    phrase = texts.phrase(item.kind)
    box, point = box_text(item.box, width, height), point_text(*item.center, width, height)
    yield Question(question=texts.draw(rng, "ask.in_box", box=box), answer=phrase, kind="refer.box")
    yield Question(question=texts.draw(rng, "ask.at_point", point=point), answer=phrase, kind="refer.point")
    unique = scene.unique
    if unique:
        single = rng.choice(unique)
        phrase = texts.phrase(single.kind)
        answer = box_text(single.box, width, height)
        yield Question(question=texts.draw(rng, "ask.box", a=phrase), answer=answer, kind="ground.box")
        if single.mark:
            yield Question(question=texts.draw(rng, "ask.mark_of", a=phrase), answer=str(single.mark), kind="refer.mark")
    if item.mark:
        asked = texts.draw(rng, "ask.marked", n=str(item.mark))
        yield Question(question=asked, answer=texts.phrase(item.kind), kind="refer.mark")
    shapes = {placed.kind.name for placed in scene.objects if placed.kind.color}
    alone = [
        item for item in scene.objects if item.kind.color and sum(p.kind.name == item.kind.name for p in scene.objects) == 1
    ]
    if shapes and alone:
        shape = rng.choice(alone)
        answer = texts.color(shape.kind.color or "")
        yield Question(question=texts.draw(rng, "ask.color", a=texts.shape(shape.kind)), answer=answer, kind="color")


def comparison(rng: random.Random, texts: SceneTexts, first: Scene, second: Scene) -> Question:
    """Return the question which of two images has more objects of a kind."""
    kind = rng.choice(sorted({*first.counts, *second.counts}, key=lambda kind: (kind.name, kind.color or "")))
    difference = first.counts[kind] - second.counts[kind]
    answer = texts.more(0 if difference > 0 else 1 if difference < 0 else 2)
    return Question(question=texts.draw(rng, "ask.more", a=texts.phrase(kind)), answer=answer, kind="compare")
