"""py3langid's model, memory-mapped and evaluated by array operations; the probabilities are those of py3langid.

The package has its arrays as one compressed file, which takes 0.7 s and 70 MB of memory to read. They are stored once in
`$OPENAFM_HOME/cache` without compression, and every process maps the same pages.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder, data_home
from openafm.core.libraries import needed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LAYOUT = 1  # of the stored files
_ARRAYS = ("weights", "priors", "next_states", "rows", "features")


@dataclass(frozen=True)
class SeedModel:
    """Naive Bayes over the byte n-grams that an Aho-Corasick automaton finds.

    State s goes to `next_states[rows[s] + byte]`; `features[s]` is the n-gram that ends there, or -1. `depth` is the length
    of the longest n-gram: a state depends on the last `depth` bytes only, so that all places are computed at once.
    """

    codes: tuple[str, ...]
    depth: int
    weights: NDArray[Any]  # (n-grams, codes)
    priors: NDArray[Any]
    next_states: NDArray[Any]
    rows: NDArray[Any]
    features: NDArray[Any]

    def ranking(self, text: str) -> list[tuple[str, float]]:
        """Return codes and probabilities, the most probable first, without codes below one in a million."""
        import numpy as np

        data = unicodedata.normalize("NFC", text.lower() if text.isupper() else text).encode("utf-8", "surrogatepass")
        scores = self._scores(np.frombuffer(data, np.uint8))
        scores *= 1.0 / math.sqrt(len(data) or 1)
        np.exp(scores - scores.max(), out=scores)
        scores /= scores.sum()
        for first, second in self._aliases:
            scores[first] += scores[second]
            scores[second] = 0.0
        order = np.argsort(-scores, kind="stable")[: int((scores >= 1e-6).sum())]
        return [(self.codes[place], probability) for place, probability in zip(order, scores[order].tolist(), strict=True)]

    def _scores(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        import numpy as np

        states = np.zeros(len(data), np.int64)
        for offset in range(min(self.depth, len(data)) - 1, -1, -1):
            states[offset:] = self.next_states[self.rows[states[offset:]] + data[: len(data) - offset]]
        found = self.features[states]
        ngrams, firsts, counts = np.unique(found[found >= 0], return_index=True, return_counts=True)
        if not len(ngrams):
            return np.zeros(len(self.codes), np.float32)
        order = np.argsort(firsts)  # sums of floats depend on the order, and py3langid adds in the order of the text
        logs: NDArray[Any] = np.log1p(counts[order].astype(np.float32))
        return np.asarray(logs @ self.weights[ngrams[order]] + self.priors)

    @functools.cached_property
    def _aliases(self) -> list[tuple[int, int]]:
        """The places of codes that occur twice."""
        return [(self.codes.index(code), place) for place, code in enumerate(self.codes) if code in self.codes[:place]]


@functools.cache
def seed_model() -> SeedModel:
    """Return the model.

    Raises:
        MissingLibraryError: py3langid is not installed.
    """
    from importlib.metadata import version

    with needed("the language filter", "py3langid", "data"):
        import py3langid
    folder = data_home() / "cache" / f"py3langid-{version('py3langid')}-{_LAYOUT}"
    with contextlib.suppress(OSError, ValueError):
        return _stored(folder)
    model = _read_package(Path(py3langid.__file__).parent / "data" / "model.npz.xz")
    with contextlib.suppress(OSError, OpenAFMError):  # a folder that cannot be written: the model stays in memory
        _store(model, folder)
        return _stored(folder)
    return model


def _read_package(path: Path) -> SeedModel:
    import io
    import lzma

    import numpy as np

    with lzma.open(path) as file, np.load(io.BytesIO(file.read()), allow_pickle=False) as data:
        rows = data["nextmove_row"].astype(np.int64) << 8
        next_states = data["nextmove"]
        return SeedModel(
            codes=tuple(data["classes"].tolist()),
            depth=_depth(next_states, rows),
            weights=data["ptc"].astype(np.float32),  # half precision would be converted for each text
            priors=data["pc"],
            next_states=next_states,
            rows=rows,
            features=data["out_feat"],
        )


def _depth(next_states: NDArray[Any], rows: NDArray[Any]) -> int:
    """Return the depth of the automaton: the largest distance of a state from the first one."""
    import numpy as np

    is_known = np.zeros(len(rows), bool)
    is_known[0] = True
    frontier, depth = np.zeros(1, np.int64), 0
    while len(frontier):
        reached = np.zeros(len(rows), bool)
        for start in np.unique(rows[frontier]).tolist():
            reached[next_states[start : start + 256]] = True
        frontier = np.flatnonzero(reached & ~is_known)
        is_known |= reached
        depth += bool(len(frontier))
    return depth


def _store(model: SeedModel, folder: Path) -> None:
    import numpy as np

    with atomic_folder(folder) as temporary:
        for name in _ARRAYS:
            np.save(temporary / f"{name}.npy", getattr(model, name))
        (temporary / "model.json").write_text(json.dumps({"codes": model.codes, "depth": model.depth}))


def _stored(folder: Path) -> SeedModel:
    import numpy as np

    values = json.loads((folder / "model.json").read_text())
    # As plain arrays: each operation on a memmap costs a microsecond more.
    arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in _ARRAYS}
    return SeedModel(codes=tuple(values["codes"]), depth=values["depth"], **arrays)
