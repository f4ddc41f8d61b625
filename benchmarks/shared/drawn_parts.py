"""Draw and check a part of the documents of one kind; worker processes import this module."""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import dataclass, field

from openafm.data.drawing.base import Generator, Split
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.corpus import draw_document
from openafm.data.drawing.fonts import FontMissingError
from openafm.data.drawing.generators import generator_config
from openafm.data.synthetic.languages import LANGUAGES

SEED = 11
HELD_OUT_PART = 5  # one document in this many is of the held-out split


@dataclass(frozen=True)
class Part:
    """Documents of a kind by number."""

    kind: str
    first: int
    last: int


@dataclass
class PartResult:
    """What a part gave: core seconds of drawing and of checks, errors by text, drops by reason."""

    kind: str
    samples: int = 0
    images: int = 0
    wrong: int = 0
    drawing_s: float = 0.0
    checking_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def draw_part(part: Part) -> PartResult:
    """Draw and check a part. The first document is drawn twice: the time counts without the loading of fonts."""
    generator, result = _generator(part.kind), PartResult(part.kind)
    _draw(generator, part.kind, part.first, PartResult(part.kind))
    for number in range(part.first, part.last):
        _draw(generator, part.kind, number, result)
    return result


def _draw(generator: Generator, kind: str, number: int, result: PartResult) -> None:
    language = LANGUAGES[number % len(LANGUAGES)]
    split: Split = "held_out" if number % HELD_OUT_PART == 0 else "train"
    started = time.process_time()
    try:
        drawn = draw_document(generator, kind, language, split, SEED, number)
    except (FontMissingError, DrawingFailedError) as error:
        result.dropped[type(error).__name__] += 1
        return
    result.drawing_s += time.process_time() - started
    started = time.process_time()
    found = generator.check(drawn)
    result.checking_s += time.process_time() - started
    result.samples += 1
    result.images += len(drawn.images)
    result.wrong += bool(found)
    result.errors += [f"{kind} {number} ({language}, {split}): {error}" for error in found]


@functools.cache
def _generator(kind: str) -> Generator:
    return generator_config(kind).build()
