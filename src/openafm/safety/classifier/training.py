"""Training and calibration of guardrail models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from openafm.bundle import Bundle
from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.safety.classifier.examples import LabeledText, Side, divided
from openafm.safety.classifier.features import TextFeatures
from openafm.safety.classifier.head import Head, fit_head
from openafm.safety.classifier.model import ModelGuardrail, Threshold, Thresholds, write_guardrail
from openafm.safety.classifier.rates import LEAST_TEXTS, Rate


class TooFewTextsError(UsageError):
    """There are not enough texts to train and calibrate a guardrail model."""


@dataclass(frozen=True, kw_only=True)
class GuardrailTrainingConfig(Config):
    """Train a guardrail model.

    Attributes:
        calibration_share: share of the groups (topics, authors) that thresholds are calibrated on.
        false_refusals: highest share of harmless calibration texts above the threshold.
        num_hashed: buckets for n-grams of characters; they help models of a few million parameters. 0: hidden states alone.
        decay: weight of the squared weights.
    """

    calibration_share: float = 0.3
    false_refusals: float = 0.02
    num_hashed: int = 4096
    decay: float = 1e-4

    def __post_init__(self) -> None:
        self.require(0 < self.calibration_share < 1, f"calibration_share must be in (0, 1), got {self.calibration_share}")
        self.require(0 <= self.false_refusals < 1, f"false_refusals must be in [0, 1), got {self.false_refusals}")
        self.require(self.num_hashed >= 0, f"num_hashed must be at least 0, got {self.num_hashed}")
        self.require(self.decay > 0, f"decay must be positive, got {self.decay}")


def train_guardrail(
    config: GuardrailTrainingConfig, bundle: Bundle, texts: Sequence[LabeledText], out: Path
) -> tuple[ModelGuardrail, dict[str, Any]]:
    """Train a guardrail model, write it to `out`, and return it with its report by side and locale.

    A side without texts has the head of the other side.

    Raises:
        TooFewTextsError: there are fewer than 50 harmful or harmless texts to train on, or none to calibrate on.
    """
    features = TextFeatures(bundle, config.num_hashed)
    labels = tuple(sorted({label for each in texts for label in each.labels}))
    heads: dict[Side, Head] = {}
    thresholds: dict[Side, Thresholds] = {}
    report: dict[str, Any] = {}
    for side in get_args(Side):
        of_side = [each for each in texts if each.side == side]
        if not of_side:
            continue
        training, calibration = divided(of_side, config.calibration_share)
        _check_counts(training, calibration, side)
        targets_NL = np.array([[label in each.labels for label in labels] for each in training], np.float32)
        num_dense = features.num_features - config.num_hashed
        heads[side] = fit_head(features([t.text for t in training], side), targets_NL, labels, num_dense, config.decay)
        scores = heads[side].probabilities(features([each.text for each in calibration], side)).max(1).tolist()
        thresholds[side] = _calibrated(calibration, scores, config.false_refusals)
        report[side] = _report(calibration, scores, thresholds[side])
    sides = list(heads)
    for side in get_args(Side):
        if side not in heads:
            heads[side], thresholds[side] = heads[sides[0]], thresholds[sides[0]]
    write_guardrail(out, bundle, heads, thresholds, config.num_hashed, report)
    return ModelGuardrail(features, heads, thresholds), report


def rates(blocked: Sequence[bool], texts: Sequence[LabeledText]) -> dict[str, dict[str, Rate]]:
    """Return recall and false refusals by locale, and of all locales together as `all`.

    Args:
        blocked: whether each of the texts was blocked.
    """
    found = {}
    for locale in [*sorted({each.locale for each in texts}), "all"]:
        chosen = [
            (each, is_blocked) for each, is_blocked in zip(texts, blocked, strict=True) if locale in (each.locale, "all")
        ]
        harmful = [is_blocked for each, is_blocked in chosen if each.labels]
        harmless = [is_blocked for each, is_blocked in chosen if not each.labels]
        found[locale] = {
            "recall": Rate(count=sum(harmful), n=len(harmful)),
            "false_refusals": Rate(count=sum(harmless), n=len(harmless)),
        }
    return found


def recall_at(
    false_refusals: float, scores: Sequence[float], texts: Sequence[LabeledText], *, by: str = "locale"
) -> dict[str, Rate]:
    """Return the recall at a fixed share of false refusals, by locale or by category, and of all texts as `all`.

    The threshold is the lowest with at most this share of these harmless texts at or above it, so it compares models, and is
    not what a threshold from other texts gives. Locales have thresholds of their own, categories the one of all texts.

    Args:
        scores: the score of each text, such as `ModelGuardrail.highest`.
        by: `locale` or `category`.
    """
    pairs = list(zip(texts, scores, strict=True))
    together = _threshold([score for each, score in pairs if not each.labels], false_refusals)

    def recall(chosen: Sequence[tuple[LabeledText, float]], threshold: float) -> Rate:
        found = [score >= threshold for each, score in chosen if each.labels]
        return Rate(count=sum(found), n=len(found))

    rates_by: dict[str, Rate] = {}
    if by == "category":
        for label in sorted({label for each in texts for label in each.labels}):
            rates_by[label] = recall([pair for pair in pairs if label in pair[0].labels], together)
    else:
        for locale in sorted({each.locale for each in texts}):
            chosen = [pair for pair in pairs if pair[0].locale == locale]
            harmless = [score for each, score in chosen if not each.labels]
            if harmless:
                rates_by[locale] = recall(chosen, _threshold(harmless, false_refusals))
    return rates_by | {"all": recall(pairs, together)}


def _check_counts(training: Sequence[LabeledText], calibration: Sequence[LabeledText], side: Side) -> None:
    num_harmful = sum(bool(each.labels) for each in training)
    if min(num_harmful, len(training) - num_harmful) < LEAST_TEXTS:
        raise TooFewTextsError(
            f"{num_harmful} harmful and {len(training) - num_harmful} harmless texts for each {side}; training needs "
            f"{LEAST_TEXTS} of both, in several groups"
        )
    if not any(not each.labels for each in calibration):
        raise TooFewTextsError(
            f"no harmless {side} is left to calibrate on; add texts of other groups, or raise calibration_share"
        )


def _calibrated(texts: Sequence[LabeledText], scores: Sequence[float], false_refusals: float) -> Thresholds:
    """Return the lowest thresholds with at most this share of harmless texts at or above them."""
    harmless: dict[str, list[float]] = defaultdict(list)
    for each, score in zip(texts, scores, strict=True):
        if not each.labels:
            harmless[each.locale].append(score)
    everything = [score for each in harmless.values() for score in each]
    return Thresholds(
        default=Threshold(value=_threshold(everything, false_refusals), n=len(everything), is_default=True),
        by_locale={
            locale: Threshold(value=_threshold(each, false_refusals), n=len(each), is_default=False)
            for locale, each in sorted(harmless.items())
            if len(each) >= LEAST_TEXTS
        },
    )


def _threshold(harmless_scores: Sequence[float], false_refusals: float) -> float:
    ascending = sorted(harmless_scores)
    num_above = int(false_refusals * len(ascending))
    highest_allowed = ascending[len(ascending) - 1 - num_above]
    return min(max(float(np.nextafter(np.float32(highest_allowed), np.float32(2))), 0.05), 1.0)


def _report(texts: Sequence[LabeledText], scores: Sequence[float], thresholds: Thresholds) -> dict[str, Any]:
    """Return the rates on the calibration texts by locale. Recall is held out; false refusals are fitted."""
    blocked = [score >= thresholds.of(each.locale).value for each, score in zip(texts, scores, strict=True)]
    return {
        locale: {
            "recall": found["recall"].to_dict(),
            "false_refusals": found["false_refusals"].to_dict(),
            "threshold": round(thresholds.of(locale).value, 4),
            "is_default_threshold": thresholds.of(locale).is_default,
        }
        for locale, found in rates(blocked, texts).items()
    }
