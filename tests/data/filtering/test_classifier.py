"""Features, the linear classifier, its file, and the quality filter."""

import random
from pathlib import Path

import numpy as np
import pytest

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.data.filtering import FilterConfig, QualityConfig
from openafm.data.filtering.classifier import (
    ClassifierFileError,
    TextClassifier,
    TrainingConfig,
    load_classifier,
    train_classifier,
)
from openafm.data.filtering.features import FeaturesConfig, features_of
from openafm.data.filtering.quality import (
    SCORE_KEY,
    QualityTrainingConfig,
    TooFewDocumentsError,
    threshold_of,
    train_quality,
)
from openafm.data.web.documents import Dropped, WebDocument

_FEATURES = FeaturesConfig(bits=14)
_GOOD = [
    "river",
    "house",
    "garden",
    "winter",
    "story",
    "because",
    "people",
    "often",
    "walk",
    "along",
    "water",
    "talk",
    "day",
]
_BAD = ["buy", "cheap", "click", "sale", "offer", "best", "price", "shop", "now", "free", "shipping", "discount", "win"]


def _texts(words: list[str], count: int, seed: int, noise: float = 0.2) -> list[str]:
    rng = random.Random(seed)
    pools = [words, _GOOD + _BAD]
    return [" ".join(rng.choice(pools[rng.random() < noise]) for _ in range(40)) for _ in range(count)]


def _train(noise: float = 0.2, **values: object):
    config = QualityTrainingConfig(**({"language": "en", "features": _FEATURES} | values))
    return train_quality(_texts(_GOOD, 150, 1, noise), _texts(_BAD, 150, 2, noise), config)


def _document(text: str, language: str = "en") -> WebDocument:
    return WebDocument(id="1", url="https://example.org/", text=text, language=language)


def test_equal_words_have_equal_features_wherever_they_are() -> None:
    config = FeaturesConfig(word_orders=(1,))
    first, second, third = features_of("River house RIVER", config)
    assert first == third != second
    assert features_of("  a garden, river", config)[-1] == first


def test_features_of_words_pairs_and_characters() -> None:
    assert len(features_of("one two three", FeaturesConfig(word_orders=(1, 2)))) == 5
    assert len(features_of("one, two!", FeaturesConfig(word_orders=(1,)))) == 4  # marks are words
    assert len(features_of("河边的房子", FeaturesConfig(word_orders=(1,)))) == 5  # one word a character
    assert len(features_of("강가의 집", FeaturesConfig(word_orders=(1,)))) == 2
    assert len(features_of("abcd", FeaturesConfig(word_orders=(), character_orders=(2, 3)))) == 5
    same = FeaturesConfig(word_orders=(1,))
    assert list(features_of("1998", same)) == list(features_of("2024", same))
    assert len(features_of("", FeaturesConfig(character_orders=(3,)))) == 0
    assert features_of("x " * 50_000, FeaturesConfig(word_orders=(1,), max_characters=1000)).size == 500


def test_long_texts_hash_like_short_ones() -> None:
    config = FeaturesConfig(word_orders=(1,), max_characters=100_000)
    assert features_of("a b " * 12_000 + "river", config)[-1] == features_of("river", config)[0]


def test_training_is_deterministic_and_learns(tmp_path: Path) -> None:
    (classifier, report), (again, _) = _train(), _train()
    assert report.auc > 0.95
    assert report.num_held_out > 30
    assert classifier.save(tmp_path / "a") == again.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    other, _ = _train(training=TrainingConfig(seed=1))
    assert other.save(tmp_path / "c") != classifier.save(tmp_path / "a")


def test_thresholds_keep_the_configured_share() -> None:
    classifier, report = _train(noise=0.5, keep_rate=0.3)
    quantiles = classifier.details["quantiles"]
    fresh = [classifier.probabilities(text)[1] for text in [*_texts(_GOOD, 100, 8, 0.5), *_texts(_BAD, 100, 9, 0.5)]]
    assert np.mean(np.array(fresh) >= threshold_of(quantiles, 0.3)) == pytest.approx(0.3, abs=0.12)
    recalls = [point.recall for point in report.points]
    assert recalls == sorted(recalls)
    assert report.chosen.keep_rate == 0.3
    assert report.chosen.precision > 0.9


def test_thresholds_are_calibrated_on_the_given_documents() -> None:
    config = QualityTrainingConfig(language="en", features=_FEATURES)
    good, bad = _texts(_GOOD, 150, 1), _texts(_BAD, 150, 2)
    _, on_held_out = train_quality(good, bad, config)
    _, on_bad = train_quality(good, bad, config, calibration=_texts(_BAD, 50, 3))
    assert on_bad.chosen.threshold < on_held_out.chosen.threshold
    with pytest.raises(TooFewDocumentsError, match="calibrate"):
        train_quality(good, bad, config, calibration=[])


def test_repeated_and_contradicting_documents_are_left_out() -> None:
    good, bad = _texts(_GOOD, 150, 1), _texts(_BAD, 150, 2)
    config = QualityTrainingConfig(language="en", features=_FEATURES)
    _, report = train_quality([*good, *good, "", bad[0]], bad, config)
    assert (report.num_positive, report.num_negative, report.num_duplicates) == (150, 149, 153)


def test_the_filter_keeps_good_documents_of_its_language_only(tmp_path: Path) -> None:
    file = tmp_path / "en.filter"
    classifier, _ = _train(keep_rate=0.5)
    digest = classifier.save(file)
    assert QualityConfig(file=str(file)).input_digests() == (digest,)
    chain = QualityConfig(file=str(file)).build()
    good, bad = _texts(_GOOD, 1, 5)[0], _texts(_BAD, 1, 5)[0]
    kept = chain.apply(_document(good))
    assert isinstance(kept, WebDocument)
    assert float(kept.metadata[SCORE_KEY]) > 0.5
    found = chain.apply(_document(bad))
    assert isinstance(found, Dropped)
    assert found.reason == "low_quality"
    other = _document(bad, "de")
    assert chain.apply(other) is other
    assert isinstance(chain.apply(_document(bad, "en-GB")), Dropped)
    assert isinstance(QualityConfig(file=str(file), threshold=0.0).build().apply(_document(bad)), WebDocument)
    lenient, strict = (QualityConfig(file=str(file), keep_rate=rate).build() for rate in (0.9, 0.1))
    assert lenient.threshold < chain.threshold < strict.threshold


def test_too_few_documents_are_an_error() -> None:
    with pytest.raises(TooFewDocumentsError, match=r"positive: .* different documents"):
        train_quality(_texts(_GOOD, 6, 1), _texts(_BAD, 100, 2), QualityTrainingConfig(language="en", features=_FEATURES))


def test_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ClassifierFileError, match="does not exist"):
        load_classifier(tmp_path / "none")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"\x00" * 100)
    with pytest.raises(ClassifierFileError, match="damaged"):
        load_classifier(damaged)
    languages = train_classifier(["ein haus", "a house"], [0, 1], ("de", "en"), _FEATURES, TrainingConfig())
    languages.save(tmp_path / "languages")
    with pytest.raises(ClassifierFileError, match="labels de, en"):
        QualityConfig(file=str(tmp_path / "languages")).build()
    whole = (tmp_path / "languages").read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ClassifierFileError, match="damaged"):
        load_classifier(damaged)


def test_files_give_the_same_probabilities(tmp_path: Path) -> None:
    classifier, _ = _train()
    classifier.save(tmp_path / "file")
    loaded = load_classifier(tmp_path / "file")
    assert isinstance(loaded, TextClassifier)
    assert loaded.details == classifier.details
    for text in ("river story", "", "click now"):
        assert (loaded.probabilities(text) == classifier.probabilities(text)).all()


def test_config_values_are_checked() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        QualityConfig(file="x", keep_rate=0.5, threshold=0.5)
    config = QualityConfig(file="x", keep_rate=0.5)
    assert from_dict(FilterConfig, {"type": "QualityConfig", **to_dict(config)}) == config
    assert config.input_digests() == ()  # a missing file is an error of build()
