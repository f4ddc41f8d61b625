"""A guardrail model: features, one head per side, thresholds by locale; saved as a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from openafm.bundle import Bundle, open_bundle
from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder
from openafm.core.regular_files import read_document
from openafm.safety.classifier.examples import LabeledText, Side
from openafm.safety.classifier.features import JoinedFeatures, TextFeaturesConfig
from openafm.safety.classifier.head import ARRAYS, Head
from openafm.safety.guardrail import Allowed, Verdict, Violation

FILES = ("guardrail.json", "heads.safetensors")
_FORMAT = 2
_CHARACTERS, _OVERLAP = 600, 200  # long texts are scored in windows, so that one sentence is not diluted
Heads: TypeAlias = Mapping[Side, Head]


class GuardrailModelError(OpenAFMError):
    """A folder is not a guardrail model, or is for another bundle or other word classes."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The probability from which a text is blocked. `is_default` is True if the locale has too few texts to calibrate."""

    value: float
    n: int
    is_default: bool


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds by locale, and one for all others, calibrated on all locales together."""

    default: Threshold
    by_locale: Mapping[str, Threshold]

    def of(self, locale: str | None) -> Threshold:
        """Return the threshold of a locale, of its language, or the default."""
        if locale is None:
            return self.default
        return self.by_locale.get(locale) or self.by_locale.get(locale.partition("-")[0]) or self.default


@dataclass(frozen=True, kw_only=True)
class Score:
    """The most likely label of a text and its probability."""

    label: str
    probability: float


class ModelGuardrail:
    """Check texts with a guardrail model. Threads may share it.

    Streamed responses are released after their check, in windows. With hidden states among the features, a check costs one
    forward pass in torch.

    Args:
        features: the features that the heads are trained on.
        heads: the head of each side.
        thresholds: the thresholds of each side.
        locale: the locale of the texts; one without a threshold has the default, as `Violation.reason` states.
    """

    releases_after_check = True

    def __init__(
        self, features: JoinedFeatures, heads: Heads, thresholds: Mapping[Side, Thresholds], locale: str | None = None
    ) -> None:
        self._features, self._heads, self._thresholds, self.locale = features, heads, thresholds, locale

    @classmethod
    def open(cls, folder: str | Path, locale: str | None = None, bundle: str | Path | None = None) -> ModelGuardrail:
        """Return the guardrail in a folder.

        Args:
            locale: the locale of the texts.
            bundle: the name or folder of its bundle, if it has one; None: as recorded when it was trained.

        Raises:
            GuardrailModelError: the folder is damaged, or its features are of another bundle or other word classes.
            BundleError: the bundle cannot be read.
        """
        settings, arrays = _read(Path(folder))
        try:
            recorded = settings["bundle"]
            opened = None if recorded is None else open_bundle(bundle or recorded["path"])
            configs = from_dict(_Features, {"kinds": settings["features"]}).kinds
            features = JoinedFeatures([each.build(opened) for each in configs])
            if features.signatures != settings["signatures"]:
                raise GuardrailModelError(
                    f"{folder} was trained with {_other(opened, recorded)}; train it again with "
                    "`openafm safety train-guardrail`"
                )
            heads = {
                cast("Side", side): _head(arrays, side, settings["labels"], features) for side in settings["thresholds"]
            }
            thresholds = {cast("Side", side): _thresholds(each) for side, each in settings["thresholds"].items()}
            return cls(features, heads, thresholds, locale)
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise GuardrailModelError(f"{folder} is not a guardrail model: {error!r}") from error

    def with_locale(self, locale: str | None) -> ModelGuardrail:
        """Return a guardrail for another locale that shares the model."""
        return ModelGuardrail(self._features, self._heads, self._thresholds, locale)

    def check_input(self, text: str) -> Verdict:
        return self._check(text, "prompt")

    def check_output(self, window: str) -> Verdict:
        return self._check(window, "response")

    def blocked(self, texts: Sequence[LabeledText], scores: Sequence[float] | None = None) -> list[bool]:
        """Return whether each text is blocked on its side and in its locale; `scores` are those of `highest`, if known."""
        return [
            score >= self._thresholds[each.side].of(each.locale).value
            for each, score in zip(texts, self.highest(texts) if scores is None else scores, strict=True)
        ]

    def highest(self, texts: Sequence[LabeledText]) -> list[float]:
        """Return the highest probability of a label of each text. Computes many texts at once."""
        found = [0.0] * len(texts)
        for side in self._heads:
            indices = [index for index, each in enumerate(texts) if each.side == side]
            probabilities_NL = self._heads[side].probabilities(self._features([texts[i].text for i in indices], side))
            for index, probability in zip(indices, probabilities_NL.max(1, initial=0).tolist(), strict=True):
                found[index] = probability
        return found

    def score(self, text: str, side: Side = "prompt") -> Score:
        """Return the most likely label of a text."""
        head = self._heads[side]
        step = _CHARACTERS - _OVERLAP
        windows = [text[start : start + _CHARACTERS] for start in range(0, max(len(text) - _OVERLAP, 1), step)]
        probabilities_WL = head.probabilities(self._features(windows, side))
        window, label = np.unravel_index(int(probabilities_WL.argmax()), probabilities_WL.shape)
        return Score(label=head.labels[int(label)], probability=float(probabilities_WL[window, label]))

    def threshold(self, side: Side) -> Threshold:
        """Return the threshold for this guardrail's locale."""
        return self._thresholds[side].of(self.locale)

    def _check(self, text: str, side: Side) -> Verdict:
        if not text.strip():
            return Allowed()
        score, threshold = self.score(text, side), self.threshold(side)
        if score.probability < threshold.value:
            return Allowed()
        source = "the default threshold, this locale has none" if threshold.is_default else "the threshold of its locale"
        return Violation(
            category=score.label,
            reason=f"the {side} scores {score.probability:.2f}, {source} is {threshold.value:.2f}",
        )


@dataclass(frozen=True, kw_only=True)
class _Features(Config):
    kinds: tuple[TextFeaturesConfig, ...]


def write_guardrail(
    folder: Path,
    configs: tuple[TextFeaturesConfig, ...],
    features: JoinedFeatures,
    bundle: Bundle | None,
    heads: Heads,
    thresholds: Mapping[Side, Thresholds],
    report: Mapping[str, Any],
) -> None:
    """Write a guardrail model as a folder, which must not exist or hold another one."""
    from safetensors.numpy import save_file

    arrays = {f"{side}.{name}": np.ascontiguousarray(getattr(head, name)) for side, head in heads.items() for name in ARRAYS}
    settings = {
        "format": _FORMAT,
        "bundle": None
        if bundle is None
        else {"name": bundle.name, "path": str(bundle.path.resolve()), "signature": bundle.signature},
        "features": to_dict(_Features(kinds=configs))["kinds"],
        "signatures": features.signatures,
        "labels": next(iter(heads.values())).labels,
        "thresholds": {
            side: {"default": vars(each.default), "by_locale": {name: vars(t) for name, t in each.by_locale.items()}}
            for side, each in thresholds.items()
        },
        "report": report,
    }
    with atomic_folder(folder) as written:
        save_file(arrays, written / FILES[1])
        text = json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
        (written / FILES[0]).write_text(text, encoding="utf-8")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        settings = json.loads(read_document(folder / FILES[0]))
        if not isinstance(settings, dict) or settings.get("format") != _FORMAT:
            raise GuardrailModelError(f"{folder / FILES[0]} is not a guardrail model of format {_FORMAT}")
        return settings, load(read_document(folder / FILES[1], max_bytes=None))
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise GuardrailModelError(f"{folder} is not a guardrail model: {error}") from error


def _other(opened: Bundle | None, recorded: Mapping[str, Any] | None) -> str:
    """Return what differs between a folder and what is here."""
    if opened is None or recorded is None or opened.signature == recorded["signature"]:
        return "the word classes of another version"
    return f"the bundle {recorded['name']} ({recorded['signature'][:8]}), not {opened.name} ({opened.signature[:8]})"


def _head(arrays: Mapping[str, Any], side: str, labels: list[str], features: JoinedFeatures) -> Head:
    head = Head(labels=tuple(labels), **{name: arrays[f"{side}.{name}"] for name in ARRAYS})
    num_features, num_hidden = len(features.is_dense_F), len(head.bias_H)
    shapes = [getattr(head, name).shape for name in ARRAYS]
    expected = [(num_features,), (num_features,), (num_features, num_hidden), (num_hidden,), (num_hidden, len(labels))]
    if shapes != [*expected, (len(labels),)]:
        raise GuardrailModelError(f"the head for each {side} has the shapes {shapes}; the folder is damaged")
    return head


def _thresholds(values: Mapping[str, Any]) -> Thresholds:
    return Thresholds(
        default=Threshold(**values["default"]),
        by_locale={locale: Threshold(**each) for locale, each in values["by_locale"].items()},
    )
