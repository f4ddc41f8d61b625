"""A ranker of three kinds of requests, trained in a second, and a bundle of random weights with it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tiny_bundles import write_native_bundle

from openafm.ranking.ranker import RankerConfig, write_ranker
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


def add_ranker(bundle: Path) -> Path:
    """Write the ranker into the folder of a bundle."""
    write_ranker(bundle / "ranker", *_trained())
    return bundle


def write_ranked_bundle(path: Path) -> Path:
    """Write a bundle whose weights are random, with the ranker."""
    return add_ranker(write_native_bundle(path).path)
