"""A linear classifier over hashed n-grams, in the manner of fastText: trained in seconds, deterministic, one file.

The probability of a class is the softmax of the mean of the rows of a text's n-grams. Training is AdaGrad, one document at a
time, in an order drawn from the seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_file
from openafm.data.filtering.features import FeaturesConfig, features_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = "openafm.text_classifier.1"
_HEADER = "classifier"
_SCALE = 10.0  # of the mean: n-grams of a document are many, and each of them decides little


class ClassifierFileError(OpenAFMError):
    """The file is not a classifier of this project, or is damaged."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """How a classifier is trained. Labels of a class with fewer documents weigh more, so that classes weigh the same."""

    epochs: int = 5
    learning_rate: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(self.epochs >= 1, f"epochs {self.epochs} is below 1")
        self.require(self.learning_rate > 0, f"learning_rate {self.learning_rate} is not above 0")


@dataclass(frozen=True)
class TextClassifier:
    """Rows of weights by n-gram and class. `details` holds what the maker of the file stores with it, as JSON values."""

    labels: tuple[str, ...]
    features: FeaturesConfig
    weights: NDArray[np.float32]  # (2^bits, labels)
    bias: NDArray[np.float32]
    details: dict[str, Any] = field(default_factory=dict)

    def probabilities(self, text: str) -> NDArray[np.float64]:
        """Return the probability of each label; the shares of the labels in training do not matter."""
        return _probabilities(self.weights, self.bias, features_of(text, self.features))

    def save(self, path: Path) -> str:
        """Write the file and return its SHA-256. Equal classifiers are equal bytes."""
        import numpy as np
        from safetensors.numpy import save

        header = {"format": FORMAT, "labels": self.labels, "features": to_dict(self.features), "details": self.details}
        data = save(
            {"weights": self.weights.astype(np.float16), "bias": self.bias},
            metadata={_HEADER: json.dumps(header, ensure_ascii=False, sort_keys=True)},  # the order of several varies
        )
        with atomic_file(path) as file:
            file.write(data)
        return hashlib.sha256(data).hexdigest()


def load_classifier(path: Path) -> TextClassifier:
    """Read a classifier.

    Raises:
        ClassifierFileError: the file is missing, damaged or of another kind.
    """
    import numpy as np
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(_HEADER, "{}"))
            if header.get("format") != FORMAT:
                raise ClassifierFileError(f"{path} is not a text classifier; make one with: openafm data train-filter")
            weights, bias = file.get_tensor("weights"), file.get_tensor("bias")
        features = from_dict(FeaturesConfig, header["features"])
        labels, details = tuple(header["labels"]), dict(header["details"])
    except FileNotFoundError as error:
        raise ClassifierFileError(f"{path} does not exist; make it with: openafm data train-filter") from error
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise ClassifierFileError(f"{path} is not a text classifier or is damaged: {error}") from error
    if weights.shape != (1 << features.bits, len(labels)) or bias.shape != (len(labels),) or len(labels) < 2:
        raise ClassifierFileError(f"{path} is damaged: weights of shape {weights.shape} for {len(labels)} labels")
    return TextClassifier(labels, features, weights.astype(np.float32), bias.astype(np.float32), details)


def train_classifier(
    texts: Sequence[str],
    targets: Sequence[int],
    labels: Sequence[str],
    features: FeaturesConfig,
    config: TrainingConfig,
) -> TextClassifier:
    """Return a classifier of `texts` with the indices of their labels. Equal inputs give equal weights."""
    import numpy as np

    weights = np.zeros((1 << features.bits, len(labels)), np.float32)
    squares = np.full_like(weights, 1e-6)
    bias = np.zeros(len(labels), np.float32)
    documents = [np.unique(features_of(text, features), return_counts=True) for text in texts]
    shares = np.bincount(targets, minlength=len(labels))
    importance = len(texts) / (len(labels) * np.maximum(1, shares))
    rng = np.random.Generator(np.random.PCG64(config.seed))
    for epoch in range(config.epochs):
        rate = config.learning_rate * (1 - epoch / config.epochs)
        for index in rng.permutation(len(documents)):
            rows, counts = documents[index]
            if not len(rows):
                continue
            values = (_SCALE / counts.sum() * counts).astype(np.float32)
            error = _softmax(bias + (values[:, None] * weights[rows]).sum(axis=0))  # not BLAS: equal on every machine
            error[targets[index]] -= 1
            error *= importance[targets[index]]
            gradient = values[:, None] * error.astype(np.float32)
            squares[rows] += gradient * gradient
            weights[rows] -= np.float32(rate) * gradient / np.sqrt(squares[rows])
    # The file holds half precision; the classifier in memory is the one that the file gives.
    return TextClassifier(tuple(labels), features, weights.astype(np.float16).astype(np.float32), bias)


def _probabilities(weights: NDArray[np.float32], bias: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    if not len(rows):
        return _softmax(bias)
    return _softmax(bias + weights[rows].mean(axis=0) * _SCALE)


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    import numpy as np

    exponentials = np.exp((scores - scores.max()).astype(np.float64))
    result: NDArray[np.float64] = exponentials / exponentials.sum()
    return result
