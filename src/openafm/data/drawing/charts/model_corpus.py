"""Corpora of charts whose plotting code a model writes. An interrupted call continues after the shards that exist."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from openafm.core.files import check_written
from openafm.core.folder_lock import folder_lock
from openafm.data.drawing.base import Split
from openafm.data.drawing.charts.model import ChartCodeError, CodeWriter, draw_model_chart
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.corpus import image_document
from openafm.data.drawing.fonts import FontMissingError
from openafm.data.images.manifest import MANIFEST, PATTERNS, Manifest
from openafm.data.images.shard_writer import ShardItem, finish_corpus, finished_shard, write_image_shard
from openafm.data.pipeline.store import key_of
from openafm.data.synthetic.languages import LANGUAGES
from openafm.data.web.documents import Dropped

NAME = "model_charts"
_SHARD = 20


def draw_model_charts(
    write: CodeWriter,
    folder: Path,
    *,
    model: str,
    count: int,
    languages: Sequence[str] = LANGUAGES,
    seed: int = 0,
    split: Split = "train",
) -> Manifest:
    """Draw a corpus of charts with code of a model, and return its manifest. `model` is stored in it.

    Code that fails is dropped with the reason `chart_code`, a language without a font with `font_missing`.

    Raises:
        SandboxMissingError: there is no sandbox on this machine.
        ForeignFilesError: the folder has files of something else.
    """
    config = {"kind": NAME, "model": model, "count": count, "languages": list(languages), "seed": seed, "split": split}
    if folder.exists():
        check_written(folder, (*PATTERNS, f".{MANIFEST}.*", ".[0-9]*"))
    with folder_lock(folder):
        summaries = []
        for shard, first in enumerate(range(0, count, _SHARD)):
            numbers = range(first, min(first + _SHARD, count))
            key = key_of(model, list(languages), seed, split, numbers.start, numbers.stop)
            found = finished_shard(folder, shard, key)
            summaries.append(
                found or write_image_shard(folder, shard, _charts(write, numbers, languages, seed, split), key=key)
            )
        return finish_corpus(folder, config, summaries)


def _charts(write: CodeWriter, numbers: range, languages: Sequence[str], seed: int, split: Split) -> Iterator[ShardItem]:
    for number in numbers:
        language = languages[number % len(languages)]
        where = f"{NAME} {number} in {language}"
        try:
            drawn = draw_model_chart(write, random.Random(f"{seed}:{split}:{NAME}:{number}"), language, split)
        except (ChartCodeError, DrawingFailedError) as error:
            yield Dropped(reason="chart_code", detail=f"{where}: {error}")
        except FontMissingError as error:
            yield Dropped(reason="font_missing", detail=f"{where}: {error}")
        else:
            yield image_document(drawn, NAME, split)
