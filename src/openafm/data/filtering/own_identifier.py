"""A language identifier of your own: the linear classifier over characters and words, trained on texts of each language."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from openafm.core.config import Config
from openafm.data.filtering.base import digests_of
from openafm.data.filtering.classifier import (
    ClassifierFileError,
    TextClassifier,
    TrainingConfig,
    load_classifier,
    train_classifier,
)
from openafm.data.filtering.features import FeaturesConfig
from openafm.data.filtering.language import IdentifierConfig, LanguageIdentifier
from openafm.data.filtering.quality import TooFewDocumentsError

_KIND = "language_identifier"
_MIN_PIECES = 10
_PIECE = 150  # characters; documents are divided, so that short texts are identified as well as long ones


@dataclass(frozen=True, kw_only=True)
class OwnIdentifierConfig(IdentifierConfig):
    """Identify languages with a file of `train_identifier`. It does not recognize that a language is another one."""

    file: str

    def input_digests(self) -> tuple[str, ...]:
        return digests_of(self.file)

    def build(self) -> LanguageIdentifier:
        """Return the identifier.

        Raises:
            ClassifierFileError: the file is missing, damaged, or no identifier.
        """
        classifier = load_classifier(Path(self.file))
        if classifier.details.get("kind") != _KIND:
            raise ClassifierFileError(f"{self.file} is a classifier of {', '.join(classifier.labels)}, not of languages")
        return OwnIdentifier(classifier)


class OwnIdentifier(LanguageIdentifier):
    """See `OwnIdentifierConfig`."""

    def __init__(self, classifier: TextClassifier) -> None:
        self._classifier = classifier

    def probabilities(self, text: str) -> Mapping[str, float]:
        if not any(map(str.isalpha, text)):
            return {}
        probabilities = self._classifier.probabilities(text)
        return dict(zip(self._classifier.labels, map(float, probabilities), strict=True))


@dataclass(frozen=True, kw_only=True)
class IdentifierTrainingConfig(Config):
    """How an identifier is trained. `max_pieces` bounds the pieces of 150 characters of each language."""

    features: FeaturesConfig = field(
        default_factory=lambda: FeaturesConfig(bits=16, word_orders=(1,), character_orders=(2, 3, 4))
    )
    training: TrainingConfig = field(default_factory=TrainingConfig)
    max_pieces: int = 1000
    held_out: float = 0.1

    def __post_init__(self) -> None:
        self.require(self.max_pieces >= 10, f"max_pieces {self.max_pieces} is below 10")
        self.require(0 < self.held_out < 1, f"held_out {self.held_out} is not in (0, 1)")


@dataclass(frozen=True)
class IdentifierReport:
    """Pieces of text by language, and the accuracy on those held out; `confusions` counts (language, taken for)."""

    num_pieces: dict[str, int]
    num_held_out: int
    accuracy: dict[str, float]
    confusions: dict[str, int]


def train_identifier(
    texts: Iterable[tuple[str, str]], config: IdentifierTrainingConfig
) -> tuple[TextClassifier, IdentifierReport]:
    """Return an identifier trained on (language, text) pairs, and its report.

    Pieces with the smallest hashes are taken and held out, so that the choice does not depend on the order of the texts.

    Raises:
        TooFewDocumentsError: fewer than two languages, or fewer than ten pieces of one.
    """
    pieces: dict[str, dict[bytes, str]] = {}
    for language, text in texts:
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE].strip()
            if piece:
                digest = hashlib.sha256(piece.encode("utf-8", "replace")).digest()
                pieces.setdefault(_canonical(language), {})[digest] = piece
    few = [language for language, found in pieces.items() if not language or len(found) < _MIN_PIECES]
    if few or len(pieces) < 2:
        counts = ", ".join(f"{language or '(no language)'}: {len(found)}" for language, found in sorted(pieces.items()))
        raise TooFewDocumentsError(
            f"pieces of {_PIECE} characters by language are {counts or 'none'}; expected two languages or more, "
            f"{_MIN_PIECES} pieces of each. Name files or folders by their language tags"
        )
    labels = sorted(pieces)
    train: list[tuple[str, int]] = []
    held_out: list[tuple[str, int]] = []
    for target, language in enumerate(labels):
        chosen = [pieces[language][digest] for digest in sorted(pieces[language])[: config.max_pieces]]
        border = max(1, round(config.held_out * len(chosen)))
        held_out += [(piece, target) for piece in chosen[:border]]
        train += [(piece, target) for piece in chosen[border:]]
    classifier = train_classifier(
        [text for text, _ in train], [target for _, target in train], labels, config.features, config.training
    )
    found = [(labels[target], labels[int(classifier.probabilities(text).argmax())]) for text, target in held_out]
    totals, right = Counter(label for label, _ in found), Counter(label for label, other in found if label == other)
    report = IdentifierReport(
        num_pieces={language: min(config.max_pieces, len(pieces[language])) for language in labels},
        num_held_out=len(found),
        accuracy={language: right[language] / totals[language] for language in labels},
        confusions=dict(Counter(f"{label} as {other}" for label, other in found if label != other)),
    )
    return replace(classifier, details={"kind": _KIND}), report


def _canonical(tag: str) -> str:
    """Return a language tag in its usual case: zh-Hans, pt-BR. Names of files may be in lower case."""
    first, *others = tag.split("-")
    return "-".join([first.lower(), *(part.title() if len(part) == 4 else part.upper() for part in others)])
