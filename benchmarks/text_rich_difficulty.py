"""How difficult the drawn sets are: tesseract's character error rate on held-out flyers, lines and signs, per language.

A baseline for models: the error rate of reading (edits over characters, without white space), and the share of the events'
fields that tesseract with regular expressions finds on the flyers. Needs the command tesseract with the languages' models.

    python benchmarks/text_rich_difficulty.py [--quick] [--json] [--languages en,de]
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # of tesseract; more threads are slower on small images

from shared.reporting import benchmark_parser, hand_in

from openafm.core.edit_distance import edits
from openafm.data.drawing.base import Drawn
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.evaluation import SEED
from openafm.data.drawing.fonts import FontMissingError
from openafm.data.drawing.generators import generator_config
from openafm.data.pairs.ocr import OcrConfig, TesseractMissingError, installed_languages
from openafm.data.synthetic.languages import LANGUAGES
from openafm.evaluation.flyer_baseline import flyer_event, read_lines

RESULTS = Path(__file__).parent.parent / "docs" / "benchmarks" / "text_rich_difficulty.json"
COUNTS = {"flyers": 8, "lines": 16, "signs": 8}
QUICK_COUNTS = {"flyers": 1, "lines": 1, "signs": 1}
LAYOUT = 6  # of tesseract: the best of 3, 6, 7 and 11 on 16 English held-out drawings
FIELDS = ("title", "date", "time", "location")


def compact(text: str) -> str:
    return "".join(text.split())


class Scores:
    """Errors and characters of one group of images, and fields that were found."""

    def __init__(self) -> None:
        self.errors = self.characters = self.documents = 0
        self.found: dict[str, int] = defaultdict(int)

    def add_text(self, read: str, truth: str) -> None:
        self.documents += 1
        # More edits than characters say no more than that nothing was read.
        self.errors += min(edits(compact(read), compact(truth)), len(compact(truth)))
        self.characters += len(compact(truth))

    def add_event(self, read: dict[str, str], truth: dict[str, str]) -> None:
        for field in FIELDS:
            self.found[field] += compact(read.get(field, "")).casefold() == compact(truth[field]).casefold()

    def to_dict(self) -> dict[str, Any]:
        scores: dict[str, Any] = {"cer": round(self.errors / max(self.characters, 1), 4), "documents": self.documents}
        if self.found:
            scores["fields"] = {field: round(self.found[field] / self.documents, 3) for field in FIELDS}
        return scores


def documents(kind: str, language: str, count: int) -> list[Drawn]:
    """The held-out drawings of a kind in a language."""
    generator = generator_config(kind).build()
    return [draw_document(generator, f"{kind}.{language}", language, "held_out", SEED, number) for number in range(count)]


def main() -> None:
    parser = benchmark_parser(__doc__, "a few images of each language")
    parser.add_argument("--languages", default=",".join(LANGUAGES), help="language tags separated by commas")
    parser.add_argument("--count", type=int, help="flyers and signs of each language, and half as many as lines")
    options = parser.parse_args()
    counts = QUICK_COUNTS if options.quick else COUNTS
    if options.count:
        counts = {"flyers": options.count, "lines": 2 * options.count, "signs": options.count}
    try:
        installed = installed_languages()
    except TesseractMissingError as error:
        sys.exit(f"text_rich_difficulty: {error}")
    models = OcrConfig().languages
    by_language: dict[str, dict[str, Scores]] = {}
    by_condition: dict[str, Scores] = defaultdict(Scores)
    left_out: dict[str, str] = {}
    for language in options.languages.split(","):
        if models[language] not in installed:
            left_out[language] = f"tesseract lacks {models[language]}"
            continue
        scores = {kind: Scores() for kind in COUNTS}
        try:
            for kind, count in counts.items():
                for drawn in documents(kind, language, count):
                    read = read_lines(drawn.images[0].data, models[language], LAYOUT)
                    text = "\n".join(line.text for line in read)
                    for group in (scores[kind], by_condition[f"{kind}.{drawn.metadata['condition']}"]):
                        group.add_text(text, drawn.transcription)
                        if kind == "flyers":
                            today = datetime.date.fromisoformat(drawn.metadata["today"])
                            group.add_event(flyer_event(read, language, today), json.loads(drawn.metadata["event"]))
        except FontMissingError as error:
            left_out[language] = str(error)
            continue
        by_language[language] = scores
    cer = {
        language: round(sum(s.errors for s in scores.values()) / max(sum(s.characters for s in scores.values()), 1), 4)
        for language, scores in by_language.items()
    }
    report = {
        "figures": {
            "tesseract_cer": cer,
            "flyer_cer": {language: scores["flyers"].to_dict()["cer"] for language, scores in by_language.items()},
            "line_cer": {language: scores["lines"].to_dict()["cer"] for language, scores in by_language.items()},
            "sign_cer": {language: scores["signs"].to_dict()["cer"] for language, scores in by_language.items()},
            "flyer_fields": {language: scores["flyers"].to_dict()["fields"] for language, scores in by_language.items()},
            "left_out": left_out,
        },
        "tesseract_cer": cer,
        "by_condition": {name: scores.to_dict() for name, scores in sorted(by_condition.items())},
        "documents_per_language": counts,
        "seed": SEED,
    }
    hand_in(report, RESULTS, options)


if __name__ == "__main__":
    main()
