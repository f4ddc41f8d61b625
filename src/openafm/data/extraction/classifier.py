"""The learned block classifier: two stages of boosted trees."""

from __future__ import annotations

import functools
import importlib.resources
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.data.extraction.blocks import PageBlocks
from openafm.data.extraction.features import PageArrays, block_features, context_features
from openafm.data.extraction.trees import TreeEnsemble

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class BlockClassifier:
    """Score the blocks of a page: `local` sees a block and its surroundings, `context` also the scores around it."""

    local: TreeEnsemble
    context: TreeEnsemble

    def scores(self, page: PageBlocks) -> Matrix:
        """Return the probability of each block that it belongs to the main content."""
        import numpy as np

        if not page.blocks:
            return np.zeros(0, dtype=np.float32)
        arrays = PageArrays.of(page)
        features = block_features(arrays)
        return self.context.probabilities(context_features(arrays, features, self.local.probabilities(features)))


def save_classifier(path: Path, classifier: BlockClassifier) -> None:
    """Write a classifier as an npz file. Equal classifiers give equal bytes."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for name, trees in (("local", classifier.local), ("context", classifier.context)):
        arrays |= {f"{name}.{key}": np.asarray(getattr(trees, key)) for key in _FIELDS}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path.write_bytes(buffer.getvalue())


def load_classifier(path: Path) -> BlockClassifier:
    """Read a classifier that `save_classifier` wrote."""
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        local, context = (
            TreeEnsemble(
                **{key: arrays[f"{name}.{key}"] for key in ("features", "thresholds", "leaves")},
                bias=float(arrays[f"{name}.bias"]),
            )
            for name in ("local", "context")
        )
    return BlockClassifier(local=local, context=context)


@functools.cache
def shipped_classifier() -> BlockClassifier:
    """Return the classifier that comes with the package; `train.py` wrote it."""
    return load_classifier(Path(str(importlib.resources.files("openafm.data.extraction").joinpath("blocks.npz"))))


_FIELDS = ("features", "thresholds", "leaves", "bias")
