"""Draw scenes, alone or in pairs, with captions, questions and boxes as truth."""

from __future__ import annotations

import random
from collections.abc import Sequence

from openafm.data.drawing.base import Drawn, DrawnImage, Generator, Split
from openafm.data.drawing.scenes.check import scene_errors
from openafm.data.drawing.scenes.config import ScenesConfig
from openafm.data.drawing.scenes.questions import comparison, scene_captions, scene_questions
from openafm.data.drawing.scenes.scene import Scene, draw_scene
from openafm.data.drawing.scenes.texts import SceneTexts, scene_texts
from openafm.data.images.documents import Region


class SceneGenerator(Generator):
    """Draws scenes; the splits have different kinds of objects."""

    def __init__(self, config: ScenesConfig) -> None:
        self._config = config

    def draw(self, rng: random.Random, language: str, split: Split) -> Drawn:
        texts = scene_texts(language, split)
        config = self._config
        is_pair = rng.random() < config.pairs
        marked = not is_pair and rng.random() < config.marks
        scenes = [
            draw_scene(rng, split, rng.randint(config.least, config.most), marked=marked) for _ in range(2 if is_pair else 1)
        ]
        if is_pair:
            captions: dict[str, str] = {}
            questions = [comparison(rng, texts, *scenes)]
        else:
            captions = scene_captions(rng, texts, scenes[0])
            questions = scene_questions(rng, texts, scenes[0], split, captions)
        return Drawn(
            kind="scene",
            language=language,
            images=tuple(_drawn_image(scene, texts) for scene in scenes),
            captions=captions,
            questions=tuple(questions),
            metadata={"objects": str(sum(len(scene.objects) for scene in scenes)), "marked": str(marked).lower()},
            log={"scenes": [_scene_log(scene, texts) for scene in scenes]},
        )

    def check(self, drawn: Drawn) -> Sequence[str]:
        return scene_errors(drawn)


def _drawn_image(scene: Scene, texts: SceneTexts) -> DrawnImage:
    regions = tuple(Region(label=texts.phrase(item.kind), box=item.box, kind="object") for item in scene.objects)
    canvas = scene.canvas
    return DrawnImage(data=canvas.png(), width=canvas.width, height=canvas.height, regions=regions)


def _scene_log(scene: Scene, texts: SceneTexts) -> dict[str, object]:
    return {
        "background": list(scene.background),
        "size": [scene.canvas.width, scene.canvas.height],
        "objects": [
            {
                "name": item.kind.name,
                "color": item.kind.color,
                "phrase": texts.phrase(item.kind),
                "box": list(item.box),
                "mark": item.mark,
            }
            for item in scene.objects
        ],
    }
