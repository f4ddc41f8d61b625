"""Labels of blocks, the trees as arrays, and the file of a classifier."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from openafm.data.extraction.classifier import load_classifier, save_classifier, shipped_classifier
from openafm.data.extraction.train import (
    TrainingDataError,
    label_page,
    read_benchmark,
    train_classifier,
    training_pages,
    tuning_ids,
)
from openafm.data.extraction.trees import TreeEnsemble, fit_trees

GOLD = "The first sentence of the text is here, and it is long.\n\nThe second one follows it directly."
HTML = (
    "<body><div>Home | News | Contact</div><p>The first sentence of the text is here, and it is long.</p>"
    "<p>Advertisement</p><p>The second one follows it directly.</p><div>Another text that is not part of it.</div></body>"
)


def test_blocks_are_labeled_by_the_gold_text() -> None:
    page = label_page(HTML.encode(), GOLD)
    assert page is not None
    assert [bool(share > 0.5) for share in page.shares] == [False, True, False, True, False]
    assert list(page.num_words) == [3, 12, 1, 6, 8]


def test_a_page_without_blocks_has_no_labels() -> None:
    assert label_page(b"<html></html>", GOLD) is None


def test_trees_are_evaluated_as_their_questions_say() -> None:
    trees = TreeEnsemble(
        features=np.array([[1, 0], [0, 1]], dtype=np.int32),
        thresholds=np.array([[2.5, 0], [8, 9]], dtype=np.float32),
        leaves=np.array([[0, -1, 3, 5], [0.5, 1, 0.25, 2]], dtype=np.float32),
        bias=0.5,
    )
    found = trees.probabilities(np.array([[9, 9, 8, -1], [2, 3, 3, 1]], dtype=np.float32))
    logits = np.array([0.5 - 1 + 0.25, 0.5 + 5 + 0.25, 0.5 + 3 + 0.25, 0.5 + 0 + 0.5])
    assert found == pytest.approx(1 / (1 + np.exp(-logits)))


def test_trees_learn_what_one_feature_alone_does_not_tell() -> None:
    rng = np.random.default_rng(3)
    features = rng.integers(0, 2, (6, 4000)).astype(np.float32)
    labels = (features[1] != features[4]) | (features[2] > 0)
    trees = fit_trees(features, labels, np.ones(4000), num_trees=12, depth=3, feature_share=1.0, learning_rate=0.5)
    assert ((trees.probabilities(features) > 0.5) == labels).mean() > 0.99
    again = fit_trees(features, labels, np.ones(4000), num_trees=12, depth=3, feature_share=1.0, learning_rate=0.5)
    assert np.array_equal(trees.leaves, again.leaves)


def test_weights_decide_between_labels_that_contradict() -> None:
    features = np.zeros((1, 100), dtype=np.float32)
    features[0, :50] = 1
    labels = np.arange(100) % 2 == 0
    trees = fit_trees(features, labels, np.where(labels, 3.0, 1.0), num_trees=5, depth=1, feature_share=1.0)
    assert (trees.probabilities(features) > 0.5).all()


def test_a_classifier_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_classifier(tmp_path / "a.npz", shipped_classifier())
    save_classifier(tmp_path / "b.npz", load_classifier(tmp_path / "a.npz"))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_the_benchmark_is_read_and_a_wrong_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="article benchmark"):
        read_benchmark(tmp_path)
    (tmp_path / "html").mkdir()
    (tmp_path / "html" / "a.html.gz").write_bytes(gzip.compress(HTML.encode()))
    (tmp_path / "ground-truth.json").write_text(json.dumps({"a": {"articleBody": GOLD, "url": "https://example.org"}}))
    assert read_benchmark(tmp_path) == {"a": (HTML.encode(), GOLD)}


def test_half_of_the_benchmark_is_listed_for_training() -> None:
    assert len(tuning_ids()) == 99
    assert all(len(name) == 64 for name in tuning_ids())


@pytest.mark.slow
def test_training_is_deterministic_and_learns_generated_pages(tmp_path: Path) -> None:
    pages = training_pages(None, 48)
    for name in ("a.npz", "b.npz"):
        save_classifier(tmp_path / name, train_classifier(pages, num_trees=10))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    classifier = load_classifier(tmp_path / "a.npz")
    right = [(classifier.scores(page.blocks) > 0.5) == (page.shares > 0.5) for page in pages]
    assert np.concatenate(right).mean() > 0.95
