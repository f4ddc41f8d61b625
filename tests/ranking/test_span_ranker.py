"""The span ranker: training on small texts, numpy against torch, its files, and texts that it does not search."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.ranking.span_features import MOST_WORDS, places_of, words_of
from openafm.ranking.span_ranker import MOST_LENGTH, FieldName, open_span_ranker, write_span_ranker
from openafm.ranking.span_training import (
    FilledText,
    SpanEncoder,
    SpanTrainingConfig,
    _example,
    _right,
    train_span_ranker,
)
from openafm.ranking.table import RankerError

CITY, DAY = FieldName("city", "weather"), FieldName("day", "weather")
CITIES = ("Oslo", "New York", "Rio de Janeiro", "Lima", "Bad Tölz", "Kyoto")
DAYS = ("monday", "friday", "next sunday")
TEXTS = [
    FilledText(text=pattern.format(city=city, day=day), fields=((CITY, city), (DAY, day if "{day}" in pattern else None)))
    for city in CITIES
    for day in DAYS
    for pattern in ("weather in {city} on {day}", "what is it like in {city}", "on {day} in {city} please")
]
SMALL = SpanTrainingConfig(num_buckets=1 << 12, dim=16, num_steps=150, texts_per_step=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    write_span_ranker(folder, *train_span_ranker(SMALL, TEXTS))
    return folder


def test_values_are_found_where_texts_of_training_have_them(folder):
    ranker = open_span_ranker(folder)
    for text in TEXTS:
        city, day = ranker.find(text.text, [CITY, DAY])
        assert max(city.spans, key=lambda span: city.spans[span]) == text.fields[0][1]
        assert city.absent < 0.2
        assert (day.absent > 0.5) == (text.fields[1][1] is None)
    (city,) = ranker.find("what is it like in Santiago on friday", [CITY])
    assert max(city.spans, key=lambda span: city.spans[span]) == "Santiago"


def test_probabilities_add_up(folder):
    for text in TEXTS[:5]:
        for found in open_span_ranker(folder).find(text.text, [CITY, DAY]):
            total = found.absent + found.other + sum(found.spans.values())
            assert 0.97 < total <= 1.0001


def test_numpy_scores_are_those_of_torch():
    """On stored numbers: the encoder gets the table in 4 bits and the matrices in fp16, and drops nothing."""
    torch.manual_seed(3)
    encoder = SpanEncoder(256, 8, dropped_features=0.0)
    with torch.no_grad():
        for weight in encoder.dense.values():
            weight.add_(torch.randn_like(weight) * 0.2)
        encoder.table.weight.mul_(20)
    config, weights = encoder.exported()
    halves = np.stack([weights["codes"] & 15, weights["codes"] >> 4], -1).reshape(256, 8).astype(np.float32) - 8
    with torch.no_grad():
        encoder.table.weight.copy_(torch.from_numpy(halves * weights["scales"][:, None].astype(np.float32)))
        for name, weight in encoder.dense.items():
            weight.copy_(torch.from_numpy(weights[name].astype(np.float32)))
        texts = [
            TEXTS[0],
            FilledText(text="on monday in Oslo, or in Lima, whatever you like", fields=((CITY, None), (DAY, None))),
        ]
        scores = encoder.scores([_example(text, 256) for text in texts]).softmax(1).numpy()
    from openafm.ranking.span_ranker import SpanRanker

    ranker = SpanRanker(config, weights)
    found = [each for text in texts for each in ranker.find(text.text, [CITY, DAY])]
    for row, each, text in zip(scores, found, [text.text for text in texts for _ in range(2)], strict=True):
        assert (each.absent, each.other) == pytest.approx((row[0], row[1]), rel=1e-3)
        words = words_of(text)
        by_text: dict[str, float] = {}
        for index in range(len(words) * MOST_LENGTH):
            first, length = divmod(index, MOST_LENGTH)
            if first + length < len(words):
                span = text[words[first].start : words[first + length].end]
                by_text[span] = by_text.get(span, 0.0) + float(row[2 + index])
        best = max(by_text, key=lambda span: by_text[span])
        assert each.spans[best] == pytest.approx(by_text[best], rel=1e-3)


def test_the_right_spans_of_a_value():
    text = "from Lima to Lima, now"
    words = words_of(text)
    assert [word.text for word in words] == ["from", "Lima", "to", "Lima", ",", "now"]
    assert _right(text, words, "lima.") == (2 + MOST_LENGTH, 2 + 3 * MOST_LENGTH)
    assert _right(text, words, "Lima to Lima") == (2 + MOST_LENGTH + 2,)
    assert _right(text, words, None) == (0,)
    assert _right(text, words, "Cuzco") == _right(text, words, "im") == _right(text, words, "") == (1,)


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_words_are_places_of_the_text(text):
    words = words_of(text)
    assert all(text[word.start : word.end] == word.text for word in words)
    assert "".join(word.text for word in words) == "".join(text.split())
    places = places_of(words, 64)
    assert len(places.starts) == len(places.ends) == len(places.insides) == len(words)


def test_long_and_empty_texts_are_not_searched(folder):
    ranker = open_span_ranker(folder)
    assert ranker.find("", [CITY]) is None
    assert ranker.find("weather", []) is None
    assert ranker.find("in Oslo " * MOST_WORDS, [CITY]) is None
    (one,) = ranker.find("Oslo", [CITY])
    assert list(one.spans) == ["Oslo"]


@pytest.mark.parametrize("damage", ["weights", "dim", "missing"])
def test_damaged_files_are_named(damage, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "spans")
    if damage == "weights":
        (copy / "spans.safetensors").write_bytes((copy / "spans.safetensors").read_bytes()[:-2])
    elif damage == "missing":
        (copy / "spans.json").unlink()
    else:
        config = json.loads((copy / "spans.json").read_text())
        (copy / "spans.json").write_text(json.dumps(config | {"dim": 18}))
    with pytest.raises(RankerError, match="spans"):
        open_span_ranker(copy)
