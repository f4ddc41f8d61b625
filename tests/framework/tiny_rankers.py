"""Rankers of three kinds of requests and of cities, trained in seconds, and a bundle of random weights with them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tiny_bundles import write_native_bundle

from openafm.ranking.ranker import RankerConfig, write_ranker
from openafm.ranking.span_ranker import FieldName, SpanRankerConfig, write_span_ranker
from openafm.ranking.span_training import FilledText, SpanTrainingConfig, train_span_ranker
from openafm.ranking.training import ChoiceSet, RankedChoice, RankerTrainingConfig, train_ranker

TEXTS = {
    "set alarm": ("wake me at six", "ring at noon", "wake us early", "an alarm for nine"),
    "play music": ("play some jazz", "play a song", "turn the song up", "put a record on"),
    "weather": ("will it rain", "is it sunny today", "how cold will it get", "rain or sun tomorrow"),
}
TALK = ("hello there", "thank you so much", "good night my friend", "you are funny")


@functools.cache
def _trained() -> tuple[RankerConfig, dict[str, Any]]:
    choices = tuple(RankedChoice(names=(name,), texts=texts) for name, texts in TEXTS.items())
    config = RankerTrainingConfig(num_buckets=1 << 10, dim=16, num_steps=250, learning_rate=0.02, sets_per_step=2)
    return train_ranker(config, [ChoiceSet(choices=choices, weight=1.0, may_be_none=True, none_texts=TALK)])


@functools.cache
def _trained_on_spans() -> tuple[SpanRankerConfig, dict[str, Any]]:
    city, day = FieldName("city", "weather"), FieldName("day", "weather")
    patterns = ("rain in {city} on {day}", "is it cold in {city}", "on {day} in {city} please", "how is {city}")
    texts = [
        FilledText(
            text=pattern.format(city=place, day=date), fields=((city, place), (day, date if "{day}" in pattern else None))
        )
        for place in ("Oslo", "New York", "Rio de Janeiro", "Lima", "Bad Homburg", "Kyoto")
        for date in ("monday", "friday", "next sunday")
        for pattern in patterns
    ]
    config = SpanTrainingConfig(num_buckets=1 << 12, dim=16, num_steps=200, texts_per_step=12)
    return train_span_ranker(config, texts)


def add_span_ranker(bundle: Path) -> Path:
    """Write the ranker of cities and days into the folder of a bundle."""
    write_span_ranker(bundle / "spans", *_trained_on_spans())
    return bundle


def add_ranker(bundle: Path) -> Path:
    """Write the ranker into the folder of a bundle."""
    write_ranker(bundle / "ranker", *_trained())
    return bundle


def write_ranked_bundle(path: Path) -> Path:
    """Write a bundle whose weights are random, with the ranker."""
    return add_ranker(write_native_bundle(path).path)
