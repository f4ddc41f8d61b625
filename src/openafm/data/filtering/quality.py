"""The quality filter: a learned classifier per language, with a threshold calibrated to the share of documents to keep.

The classifier compares texts that a model should learn from with an ordinary sample of the web. No classifier comes with the
package: what is good text depends on the corpus, and a general one trained on generated texts would mislead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.data.filtering.base import DocumentFilter, FilterConfig, digests_of, dropped, with_metadata
from openafm.data.filtering.classifier import (
    ClassifierFileError,
    TextClassifier,
    TrainingConfig,
    load_classifier,
    train_classifier,
)
from openafm.data.filtering.features import FeaturesConfig
from openafm.data.web.documents import Dropped, WebDocument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCORE_KEY = "quality.score"
LABELS = ("negative", "positive")
KEEP_RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MIN_HELD_OUT = 5
"""Held-out documents of each label that a report needs at least."""


class TooFewDocumentsError(UsageError):
    """A label has too few documents to train and to measure."""


@dataclass(frozen=True, kw_only=True)
class QualityConfig(FilterConfig):
    """Drop documents whose quality score is below the threshold; documents in other languages pass.

    `file` comes from `openafm data train-filter`. The threshold is `threshold`, or the one at which `keep_rate` of the
    calibration documents are kept; without both, the keep rate of the file.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("low_quality",)

    file: str
    keep_rate: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        self.require(self.keep_rate is None or self.threshold is None, "keep_rate and threshold exclude each other; set one")
        self.require(self.keep_rate is None or 0 < self.keep_rate < 1, f"keep_rate {self.keep_rate} is not in (0, 1)")
        self.require(self.threshold is None or 0 <= self.threshold <= 1, f"threshold {self.threshold} is not in [0, 1]")

    def input_digests(self) -> tuple[str, ...]:
        return digests_of(self.file)

    def build(self) -> DocumentFilter:
        """Return the filter.

        Raises:
            ClassifierFileError: the file is missing, damaged, or no quality classifier.
        """
        classifier = load_classifier(Path(self.file))
        if classifier.labels != LABELS or not {"language", "keep_rate", "quantiles"} <= classifier.details.keys():
            raise ClassifierFileError(
                f"{self.file} has the labels {', '.join(classifier.labels)}; expected a quality filter"
            )
        return QualityFilter(self, classifier)


class QualityFilter(DocumentFilter):
    """See `QualityConfig`."""

    def __init__(self, config: QualityConfig, classifier: TextClassifier) -> None:
        details = classifier.details
        keep_rate = details["keep_rate"] if config.keep_rate is None else config.keep_rate
        self._classifier = classifier
        self._language = str(details["language"])
        self.threshold = threshold_of(details["quantiles"], keep_rate) if config.threshold is None else config.threshold

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        if self._language not in (document.language, document.language.partition("-")[0]):
            return document
        score = float(self._classifier.probabilities(document.text)[1])
        if score < self.threshold:
            return dropped(document, "low_quality", f"score {score:.3f}, the threshold is {self.threshold:.3f}")
        return with_metadata(document, {SCORE_KEY: f"{score:.4f}"})


@dataclass(frozen=True, kw_only=True)
class QualityTrainingConfig(Config):
    """How a quality classifier is trained, measured and calibrated. `held_out` is the share of documents to measure on."""

    language: str
    keep_rate: float = 0.5
    held_out: float = 0.2
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        self.require(bool(self.language), "language is empty")
        self.require(0 < self.keep_rate < 1, f"keep_rate {self.keep_rate} is not in (0, 1)")
        self.require(0 < self.held_out < 1, f"held_out {self.held_out} is not in (0, 1)")


@dataclass(frozen=True)
class OperatingPoint:
    """What a threshold keeps: the share of the calibration documents, and precision and recall on the held-out labels."""

    keep_rate: float
    threshold: float
    precision: float
    recall: float
    negatives_kept: float


@dataclass(frozen=True)
class QualityReport:
    """Numbers of documents and figures on the held-out ones. `auc` is the probability that a positive scores higher."""

    num_positive: int
    num_negative: int
    num_held_out: int
    num_duplicates: int
    auc: float
    chosen: OperatingPoint
    points: tuple[OperatingPoint, ...]


def train_quality(
    positive: Iterable[str],
    negative: Iterable[str],
    config: QualityTrainingConfig,
    calibration: Iterable[str] | None = None,
) -> tuple[TextClassifier, QualityReport]:
    """Return a classifier and its report.

    Equal texts count once; those with both labels are left out. Which documents are held out depends on their text alone.
    Thresholds are calibrated on `calibration`, an ordinary sample of what will be filtered, or on the held-out documents.

    Raises:
        TooFewDocumentsError: fewer than `MIN_HELD_OUT` documents of a label are held out, or none is left to train on.
    """
    import numpy as np

    given = (list(negative), list(positive))
    sets = [dict.fromkeys(text for text in texts if text.strip()) for texts in given]
    both = sets[0].keys() & sets[1].keys()
    labelled = [(text, target) for target, texts in enumerate(sets) for text in texts if text not in both]
    train = [(text, target) for text, target in labelled if not _is_held_out(text, config.held_out)]
    held_out = [(text, target) for text, target in labelled if _is_held_out(text, config.held_out)]
    for target, label in enumerate(LABELS):
        counts = [sum(each == target for _, each in part) for part in (train, held_out)]
        if counts[0] < 1 or counts[1] < MIN_HELD_OUT:
            raise TooFewDocumentsError(
                f"{label}: {counts[0]} documents to train on and {counts[1]} held out; pass at least "
                f"{round(MIN_HELD_OUT / config.held_out * 2)} different documents, or change the held-out share "
                f"{config.held_out}"
            )
    classifier = train_classifier(
        [text for text, _ in train], [target for _, target in train], LABELS, config.features, config.training
    )
    scores = _scores(classifier, [text for text, _ in held_out])
    is_positive = np.array([target == 1 for _, target in held_out])
    calibrated = scores if calibration is None else _scores(classifier, list(calibration))
    if not len(calibrated):
        raise TooFewDocumentsError("no documents to calibrate on; pass some, or calibrate on the held-out documents")
    quantiles = [round(float(value), 6) for value in np.quantile(calibrated, np.linspace(0, 1, 101))]
    chosen, *points = (_point(quantiles, rate, scores, is_positive) for rate in (config.keep_rate, *KEEP_RATES))
    report = QualityReport(
        num_positive=int(sum(target for _, target in labelled)),
        num_negative=sum(target == 0 for _, target in labelled),
        num_held_out=len(held_out),
        num_duplicates=sum(map(len, given)) - len(labelled),
        auc=_auc(scores, is_positive),
        chosen=chosen,
        points=tuple(points),
    )
    details = {"language": config.language, "keep_rate": config.keep_rate, "quantiles": quantiles, "auc": report.auc}
    return replace(classifier, details=details), report


def threshold_of(quantiles: Sequence[float], keep_rate: float) -> float:
    """Return the score that a share of `keep_rate` of the calibration documents reaches."""
    import numpy as np

    return float(np.interp(1 - keep_rate, np.linspace(0, 1, len(quantiles)), quantiles))


def _is_held_out(text: str, share: float) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8]) < share * (1 << 64)


def _scores(classifier: TextClassifier, texts: Sequence[str]) -> NDArray[np.float64]:
    import numpy as np

    return np.array([classifier.probabilities(text)[1] for text in texts])


def _point(
    quantiles: Sequence[float], keep_rate: float, scores: NDArray[np.float64], is_positive: NDArray[np.bool_]
) -> OperatingPoint:
    threshold = threshold_of(quantiles, keep_rate)
    is_kept = scores >= threshold
    num_right = int((is_kept & is_positive).sum())
    return OperatingPoint(
        keep_rate=keep_rate,
        threshold=threshold,
        precision=num_right / max(1, int(is_kept.sum())),
        recall=num_right / int(is_positive.sum()),
        negatives_kept=float(is_kept[~is_positive].mean()),
    )


def _auc(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve from ranks; ties count half."""
    import numpy as np

    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    num_positive, num_negative = int(is_positive.sum()), int((~is_positive).sum())
    return float((ranks[is_positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
