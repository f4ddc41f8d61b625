"""Training and calibration of guardrail models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from openafm.bundle import Bundle
from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.safety.classifier.examples import LabeledText, Side, folds
from openafm.safety.classifier.features import (
    CharacterNgramsConfig,
    JoinedFeatures,
    TextFeaturesConfig,
    WordClassesConfig,
)
from openafm.safety.classifier.head import Head, fit_head
from openafm.safety.classifier.model import ModelGuardrail, Threshold, Thresholds, write_guardrail
from openafm.safety.classifier.rates import LEAST_TEXTS, Rate


class TooFewTextsError(UsageError):
    """There are not enough texts to train and calibrate a guardrail model."""


@dataclass(frozen=True, kw_only=True)
class GuardrailTrainingConfig(Config):
    """Train a guardrail model.

    Attributes:
        features: what is computed from a text. With `HiddenStatesConfig` a bundle is needed, and checks run in torch.
        num_folds: parts of the groups (topics, authors). Each is scored by a head that was trained on the others; thresholds
            are calibrated on these scores.
        false_refusals: highest share of harmless texts above the threshold.
        decay: weight of the squared weights.
    """

    features: tuple[TextFeaturesConfig, ...] = (WordClassesConfig(), CharacterNgramsConfig())
    num_folds: int = 4
    false_refusals: float = 0.05
    decay: float = 1e-5

    def __post_init__(self) -> None:
        self.require(bool(self.features), "features must name at least one kind, such as WordClassesConfig")
        self.require(self.num_folds >= 2, f"num_folds must be at least 2, got {self.num_folds}")
        self.require(0 <= self.false_refusals < 1, f"false_refusals must be in [0, 1), got {self.false_refusals}")
        self.require(self.decay > 0, f"decay must be positive, got {self.decay}")


def train_guardrail(
    config: GuardrailTrainingConfig, bundle: Bundle | None, texts: Sequence[LabeledText], out: Path
) -> tuple[ModelGuardrail, dict[str, Any]]:
    """Train a guardrail model, write it to `out`, and return it with its report by side and locale.

    A side without texts has the head of the other side.

    Raises:
        TooFewTextsError: there are fewer than 50 harmful or harmless texts to train on, or too few groups of them.
    """
    features = JoinedFeatures([each.build(bundle) for each in config.features])
    labels = tuple(sorted({label for each in texts for label in each.labels}))
    heads: dict[Side, Head] = {}
    thresholds: dict[Side, Thresholds] = {}
    report: dict[str, Any] = {}
    for side in get_args(Side):
        of_side = [each for each in texts if each.side == side]
        if not of_side:
            continue
        heads[side], scores = _trained(config, features, of_side, labels)
        thresholds[side] = _calibrated(of_side, scores, config.false_refusals)
        report[side] = _report(of_side, scores, thresholds[side])
    sides = list(heads)
    for side in get_args(Side):
        if side not in heads:
            heads[side], thresholds[side] = heads[sides[0]], thresholds[sides[0]]
    write_guardrail(out, config.features, features, bundle, heads, thresholds, report)
    return ModelGuardrail(features, heads, thresholds), report


def _trained(
    config: GuardrailTrainingConfig, features: JoinedFeatures, texts: Sequence[LabeledText], labels: tuple[str, ...]
) -> tuple[Head, list[float]]:
    """Return the head of one side, and the score of each text by a head that was trained without its group."""
    fold_N = np.array(folds(texts, config.num_folds))
    _check_counts(texts, fold_N)
    targets_NL = np.array([[label in each.labels for label in labels] for each in texts], np.float32)
    features_NF = features([each.text for each in texts], texts[0].side)
    scores_N = np.zeros(len(texts), np.float32)
    for fold in sorted(set(fold_N.tolist())):
        is_held = fold_N == fold
        head = fit_head(features_NF[~is_held], targets_NL[~is_held], labels, features.is_dense_F, config.decay)
        scores_N[is_held] = head.probabilities(features_NF[is_held]).max(1)
    return fit_head(features_NF, targets_NL, labels, features.is_dense_F, config.decay), scores_N.tolist()


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


def _check_counts(texts: Sequence[LabeledText], fold_N: npt.NDArray[np.int64]) -> None:
    num_harmful = sum(bool(each.labels) for each in texts)
    if min(num_harmful, len(texts) - num_harmful) < LEAST_TEXTS:
        raise TooFewTextsError(
            f"{num_harmful} harmful and {len(texts) - num_harmful} harmless texts for each {texts[0].side}; training needs "
            f"{LEAST_TEXTS} of both, in several groups"
        )
    if len(set(fold_N.tolist())) < 2:
        raise TooFewTextsError(f"the texts for each {texts[0].side} are of one group; add texts of other groups")


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
    """Return the rates by locale, of heads trained without the group of a text. False refusals are fitted."""
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
