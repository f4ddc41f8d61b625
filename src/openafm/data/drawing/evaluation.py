"""Evaluation sets of drawn images: held-out flyers, charts, reading, spatial questions, and probes for hallucination.

A set is a folder. Its images have held-out designs, fonts, words and camera conditions.

    images/           an image corpus
    questions.jsonl   one question a line: id, language, kind, images (digests), question, answer
    card.md           what the set asks, how it was drawn, counts, and how to score it
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from openafm.core.errors import UsageError
from openafm.core.executors import ExecutorConfig
from openafm.core.files import atomic_file
from openafm.data.drawing.base import GeneratorConfig
from openafm.data.drawing.charts import ChartsConfig
from openafm.data.drawing.corpus import DrawingConfig, draw_corpus
from openafm.data.drawing.flyers import FlyersConfig
from openafm.data.drawing.lines import LinesConfig
from openafm.data.drawing.scenes import ScenesConfig
from openafm.data.drawing.signs import SignsConfig
from openafm.data.images.manifest import Manifest
from openafm.data.images.shards import open_image_corpus
from openafm.data.synthetic.languages import LANGUAGES

IMAGES, QUESTIONS, CARD = "images", "questions.jsonl", "card.md"
SEED = 20250717  # of the sets that results are reported on


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """What a set draws, the kinds of questions that it asks (prefixes), and how to score the answers."""

    title: str
    generators: tuple[GeneratorConfig, ...]
    kinds: tuple[str, ...]
    scoring: str


EVALUATION_SETS: Mapping[str, EvaluationSet] = {
    "flyers": EvaluationSet(
        title="Events of held-out flyers",
        generators=(FlyersConfig(),),
        kinds=("event",),
        scoring="The answer is JSON with title, date, time and location: exact match of each field, and of the whole event.",
    ),
    "charts": EvaluationSet(
        title="Questions about charts",
        generators=(ChartsConfig(),),
        kinds=("chart",),
        scoring="Exact match; answers that are numbers also with a tolerance of 5 %.",
    ),
    "reading": EvaluationSet(
        title="Reading lines and signs in sixteen languages",
        generators=(LinesConfig(), SignsConfig()),
        kinds=("transcription",),
        scoring="Character error rate: edits without white space, divided by the characters of the answer.",
    ),
    "spatial": EvaluationSet(
        title="Places, counts and references in scenes",
        generators=(ScenesConfig(pairs=0.25),),
        kinds=("spatial", "counting", "refer", "ground", "compare", "color"),
        scoring="Exact match; answers of kind ground.box by intersection over union of 0.5 or more.",
    ),
    "hallucination": EvaluationSet(
        title="Questions about absent things, among questions about things that are there",
        generators=(ScenesConfig(pairs=0.0), FlyersConfig()),
        kinds=("absent", "spatial.area", "flyer.date"),
        scoring="A question of kind absent is right if the answer refuses; the other kinds if it does not.",
    ),
}


def write_evaluation_set(
    name: str,
    folder: Path,
    *,
    count: int,
    languages: tuple[str, ...] = LANGUAGES,
    seed: int = SEED,
    executor: ExecutorConfig | None = None,
) -> Manifest:
    """Draw a set with `count` documents of each of its generators into a folder. A call that was interrupted continues.

    Raises:
        UsageError: the set is unknown.
    """
    if name not in EVALUATION_SETS:
        raise UsageError(f"unknown evaluation set '{name}'; known: {', '.join(EVALUATION_SETS)}")
    chosen = EVALUATION_SETS[name]
    config = DrawingConfig(
        generators=chosen.generators, languages=languages, count=count, seed=seed, split="held_out", check=True
    )
    manifest = draw_corpus(config, folder / IMAGES, executor)
    asked: Counter[tuple[str, str]] = Counter()
    with atomic_file(folder / QUESTIONS) as file:
        for row in _questions(folder / IMAGES, chosen.kinds):
            asked[str(row["language"]), str(row["kind"])] += 1
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    with atomic_file(folder / CARD) as file:
        file.write(_card(name, chosen, config, manifest, asked).encode())
    return manifest


def _questions(corpus: Path, kinds: tuple[str, ...]) -> Iterator[dict[str, object]]:
    for document in open_image_corpus(corpus).documents():
        for number, question in enumerate(document.questions):
            if any(question.kind == kind or question.kind.startswith(f"{kind}.") for kind in kinds):
                yield {
                    "id": f"{document.id}/{number}",
                    "language": document.language,
                    "kind": question.kind,
                    "images": list(document.digests),
                    "question": question.question,
                    "answer": question.answer,
                }


def _card(
    name: str, chosen: EvaluationSet, config: DrawingConfig, manifest: Manifest, asked: Counter[tuple[str, str]]
) -> str:
    kinds = sorted({kind for _, kind in asked})
    drawn = ", ".join(generator.name for generator in chosen.generators)
    lines = [
        f"# {chosen.title}",
        "",
        f"{sum(asked.values()):,} questions about {manifest.num_images:,} drawn images ({drawn}), "
        f"{len(config.languages)} languages.",
        "Training data of these generators never has the set's designs, fonts, names, sentences and camera conditions.",
        "Every document passed the generator's independent check; dropped documents: "
        + (", ".join(f"{reason} {number:,}" for reason, number in sorted(manifest.dropped.items())) or "none")
        + ".",
        "",
        f"Score: {chosen.scoring}",
        "",
        f"Images are in the corpus `{IMAGES}`, by digest; questions are in `{QUESTIONS}`. License: Apache-2.0.",
        f"To draw it again: `openafm data evaluation-sets {name} --count {config.count} --seed {config.seed}`;"
        " bytes depend on the installed fonts.",
        "",
        "The images are synthetic. They measure reading and reasoning under known conditions, not the variety of the world.",
        "",
        "| language | " + " | ".join(kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for language in config.languages:
        lines.append(f"| {language} | " + " | ".join(f"{asked[language, kind]:,}" for kind in kinds) + " |")
    return "\n".join(lines) + "\n"
