"""Events from flyers (report 8): held-out drawn images, of which a model with a vision encoder returns the event."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from openafm.data.synthetic import EVENT_SCHEMA
from openafm.evaluation.event_baselines import constant_event
from openafm.evaluation.features.base import FeatureConfig
from openafm.evaluation.features.written import is_valid, read_json
from openafm.evaluation.harness.task import Item, Output, Prompt, Verdict

if TYPE_CHECKING:
    from openafm.data.drawing.base import Drawn

FIELDS = ("title", "date", "time", "location")
SEED = 20250717  # that of `openafm data evaluation-sets`
_GENERATOR, _LANGUAGE = "flyers", "en"


@dataclass(frozen=True, kw_only=True)
class FlyersEventConfig(FeatureConfig):
    """Events from drawn flyers. The score of an item is its share of right fields; groups are camera conditions.

    The split `held_out` has designs, fonts, names and camera conditions that training data never have. Bytes depend on the
    installed fonts: compare runs of one machine.
    """

    METRIC: ClassVar[str] = "score"

    count: int = 50
    max_tokens: int = 120

    def __post_init__(self) -> None:
        self.require(self.count > 0, f"count must be positive, got {self.count}")

    def items(self, data: Path) -> Iterator[Item]:
        for number in range(self.count):
            drawn = _drawn(number)
            prompt = Prompt(
                text=next(each.question for each in drawn.questions if each.kind == "event"),
                images=(drawn.images[0].data,),
                schema=dict(EVENT_SCHEMA),
                max_tokens=self.max_tokens,
            )
            yield Item(
                id=str(number),
                prompt=prompt,
                reference={"event": json.loads(drawn.metadata["event"]), "today": drawn.metadata["today"]},
                language=_LANGUAGE,
                group=drawn.metadata["condition"],
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        found, truth = read_json(output.text), item.reference["event"]
        event = found if isinstance(found, dict) else {}
        right = {field: _compact(event.get(field, "")) == _compact(truth[field]) for field in FIELDS}
        scores = {field: float(is_right) for field, is_right in right.items()}
        return Verdict(
            scores={
                "score": sum(right.values()) / len(FIELDS),
                "whole": float(all(right.values())),
                "valid": float(is_valid(dict(EVENT_SCHEMA), output.text)),
                **scores,
            },
            extraction=json.dumps(event, ensure_ascii=False),
            expected=json.dumps(truth, ensure_ascii=False),
        )

    def constant(self, item: Item) -> Output:
        return Output(text=json.dumps(constant_event()))

    def pattern(self, item: Item) -> Output:
        """Read lines with tesseract, and fields with regular expressions. Without tesseract the answer is empty."""
        from openafm.evaluation.flyer_baseline import flyer_event, read_lines

        if shutil.which("tesseract") is None:
            return Output(finish="error", error="the command tesseract is not installed")
        today = datetime.date.fromisoformat(item.reference["today"])  # also in the question
        return Output(text=json.dumps(flyer_event(read_lines(item.prompt.images[0], "eng"), item.language, today)))


@cache
def _drawn(number: int) -> Drawn:
    """Return a flyer of the held-out split.

    Raises:
        MissingLibraryError: a library that draws is not installed.
        FontMissingError: no installed font has the characters.
    """
    from openafm.data.drawing.corpus import draw_document
    from openafm.data.drawing.generators import generator_config

    generator = generator_config(_GENERATOR).build()
    return draw_document(generator, _GENERATOR, _LANGUAGE, "held_out", SEED, number)


def _compact(value: object) -> str:
    """Return a value without case and white space."""
    return "".join(str(value).split()).casefold()
