"""The ranker: training on small sets, its probabilities against plain arithmetic, its files, and damage."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from openafm.ranking.features import words_of
from openafm.ranking.ranker import Ranker, RankerConfig, open_ranker, write_ranker
from openafm.ranking.table import RankerError, quantized
from openafm.ranking.training import ChoiceSet, RankedChoice, RankerTrainingConfig, train_ranker

KINDS = ("alarm", "music", "weather")
TEXTS = {
    "alarm": ("wake me at six", "ring at noon", "wake us early", "set it for nine"),
    "music": ("play some jazz", "play a song", "turn the song up", "put a record on"),
    "weather": ("will it rain", "is it sunny today", "how cold will it get", "rain or sun tomorrow"),
}
TALK = ("hello there", "thank you so much", "good night my friend", "you are funny")
SMALL = RankerTrainingConfig(num_buckets=1 << 10, dim=16, num_steps=250, learning_rate=0.02, sets_per_step=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    choices = tuple(RankedChoice(names=(name,), texts=TEXTS[name]) for name in KINDS)
    found = train_ranker(SMALL, [ChoiceSet(choices=choices, weight=1.0, may_be_none=True, none_texts=TALK)])
    folder = tmp_path_factory.mktemp("ranker")
    write_ranker(folder, *found)
    return folder


def test_a_ranker_learns_its_choices(folder):
    ranker = open_ranker(folder)
    for name, texts in TEXTS.items():
        for text in texts:
            for order in (KINDS, KINDS[::-1]):
                assert order[int(ranker.log_probabilities(text, order).argmax())] == name
    assert KINDS[int(ranker.log_probabilities("please play the song again", KINDS).argmax())] == "music"


def test_none_is_likelier_where_no_choice_fits(folder):
    ranker = open_ranker(folder)
    with_music = [ranker.log_probabilities(text, KINDS, may_be_none=True)[-1] for text in TEXTS["music"]]
    without = [ranker.log_probabilities(text, ("alarm", "weather"), may_be_none=True)[-1] for text in TEXTS["music"]]
    talk = [ranker.log_probabilities(text, KINDS, may_be_none=True)[-1] for text in TALK]
    assert max(with_music) < math.log(0.5) < min(talk)
    assert np.mean(without) > np.mean(with_music) + 1


def test_probabilities_are_those_of_the_stored_numbers(folder):
    """Against the formula, one feature after the other."""
    ranker, config = open_ranker(folder), open_ranker(folder).config
    from safetensors.numpy import load_file

    stored = load_file(folder / "ranker.safetensors")

    def embedding(feature: int) -> np.ndarray:
        codes = [half for byte in stored["codes"][feature] for half in (int(byte) & 15, int(byte) >> 4)]
        return (np.array(codes) - 8) * float(stored["scales"][feature])

    def total(text: str) -> np.ndarray:
        return sum(np.mean([embedding(each) for each in word], axis=0) for word in words_of(text, config.num_buckets))

    def cosine(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    text = total("play a song for me")
    scores = [cosine(text, total(name) @ stored["choice"].astype(float)) for name in KINDS]
    scores.append(float(text @ stored["none"].astype(float) / np.linalg.norm(text)) + config.none_bias)
    weights = np.exp(config.scale * np.array(scores))
    found = ranker.log_probabilities("play a song for me", KINDS, may_be_none=True)
    assert np.exp(found) == pytest.approx(weights / weights.sum(), rel=1e-4)


def test_training_is_deterministic_and_needs_no_order_of_choices():
    choices = tuple(RankedChoice(names=(name,), texts=TEXTS[name]) for name in KINDS)
    short = RankerTrainingConfig(num_buckets=64, dim=8, num_steps=3)
    one, other = (train_ranker(short, [ChoiceSet(choices=choices, weight=1.0)]) for _ in range(2))
    assert one[0] == other[0]
    assert all((one[1][name] == other[1][name]).all() for name in one[1])


def test_texts_without_words_say_nothing(folder):
    assert np.exp(open_ranker(folder).log_probabilities("...", KINDS)) == pytest.approx([1 / 3] * 3)
    assert np.isfinite(open_ranker(folder).log_probabilities("play", ("", "music"), may_be_none=True)).all()


def test_codes_are_near_the_table():
    table = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    table[7] = 0
    codes, scales = quantized(table)
    halves = np.stack([codes & 15, codes >> 4], -1).reshape(50, 8).astype(np.float32) - 8
    assert np.abs(halves * scales[:, None].astype(np.float32) - table).max() <= scales.max() / 2 * 1.02
    assert (halves[7] == 0).all()


@pytest.mark.parametrize("damage", ["weights", "config", "digest", "missing", "not_json", "negative"])
def test_damaged_files_are_named(damage, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "ranker")
    config = json.loads((copy / "ranker.json").read_text())
    match damage:
        case "weights":
            (copy / "ranker.safetensors").write_bytes((copy / "ranker.safetensors").read_bytes()[:-1])
        case "config":
            config["dim"] = 32
        case "digest":
            config["digest"] = "0" * 64
        case "negative":
            config["scale"] = -1.0
    (copy / "ranker.json").write_text("{" if damage == "not_json" else json.dumps(config))
    if damage == "missing":
        (copy / "ranker.safetensors").unlink()
    with pytest.raises(RankerError, match="ranker"):
        open_ranker(copy)


def test_weights_that_do_not_fit_are_refused():
    config = RankerConfig(num_buckets=4, dim=2, scale=1.0, none_bias=0.0)
    weights = {
        "codes": np.zeros((4, 1), np.uint8),
        "scales": np.ones(4, np.float16),
        "choice": np.eye(2, dtype=np.float16),
        "none": np.zeros(2, np.float16),
    }
    Ranker(config, weights)
    with pytest.raises(RankerError, match="none"):
        Ranker(config, weights | {"none": np.zeros(3, np.float16)})
    with pytest.raises(RankerError, match="finite"):
        Ranker(config, weights | {"scales": np.full(4, np.nan, np.float16)})
