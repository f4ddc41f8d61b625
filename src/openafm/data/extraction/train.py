"""Train the block classifier: `python -m openafm.data.extraction.train --benchmark PATH --out blocks.npz`.

The shipped `blocks.npz` is what this command writes, in some minutes. The data are pages of generated sites
and, with `--benchmark`, the tuning half of the public article benchmark (GitHub scrapinghub/article-extraction-benchmark).
`tuning_ids.txt` lists its pages; the other half stays untouched. Equal arguments and library versions give equal bytes.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import gzip
import importlib.resources
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.data.extraction.blocks import NUM_BITS, PageBlocks, split_blocks
from openafm.data.extraction.classifier import BlockClassifier, save_classifier
from openafm.data.extraction.dom import parse, to_utf8
from openafm.data.extraction.features import NUM_NAME_FEATURES, PageArrays, block_features, context_features
from openafm.data.extraction.trees import TreeEnsemble, fit_trees
from openafm.data.sites import CMS_LAYOUTS, LAYOUTS, SiteConfig

_WORD = re.compile(r"\w+")
_FOLDS = 5
_SITE_WEIGHT = 0.25  # of a generated page; one of the benchmark weighs 1
_MIN_RUN = 3  # words that must align in a row to count


class TrainingDataError(OpenAFMError):
    """The folder is not a copy of the article benchmark, or its files are damaged."""


@dataclass(frozen=True, kw_only=True)
class LabeledPage:
    """A page with the share of each block's words that belong to the main content, and the words of each block."""

    blocks: PageBlocks
    arrays: PageArrays
    features: Any
    shares: Any
    num_words: Any
    weight: float = 1.0


@functools.cache
def tuning_ids() -> frozenset[str]:
    """Return the ids of the benchmark's pages that training may use: the half whose hash with a fixed seed was even."""
    text = importlib.resources.files("openafm.data.extraction").joinpath("tuning_ids.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def read_benchmark(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Return the payload and gold text of each page of the article benchmark by its id.

    Raises:
        TrainingDataError: the folder is not a copy of the benchmark.
    """
    try:
        truth = json.loads((folder / "ground-truth.json").read_text("utf-8"))
        return {
            name: (gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes()), str(entry["articleBody"]))
            for name, entry in sorted(truth.items())
        }
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise TrainingDataError(
            f"'{folder}' is not a copy of the article benchmark (ground-truth.json and html/): {error}"
        ) from error


def label_page(body: bytes, gold: str, weight: float = 1.0) -> LabeledPage | None:
    """Return a page with its blocks labeled by an alignment of their words with the gold text; None without blocks."""
    import numpy as np

    root = parse(to_utf8(body))
    blocks = split_blocks(root) if root is not None else None
    if blocks is None or not blocks.blocks:
        return None
    words = [_WORD.findall(block.text) for block in blocks.blocks]
    flat = [word for of_block in words for word in of_block]
    counts = np.array([len(of_block) for of_block in words])
    owner = np.repeat(np.arange(len(words)), counts)
    matched = np.zeros(len(flat))
    matcher = difflib.SequenceMatcher(None, flat, _WORD.findall(gold), autojunk=False)
    for start, _, length in matcher.get_matching_blocks():
        for position in range(start, start + length):
            if length >= _MIN_RUN or counts[owner[position]] <= length:
                matched[position] = 1
    shares = np.bincount(owner, weights=matched, minlength=len(words)) / np.maximum(counts, 1)
    arrays = PageArrays.of(blocks)
    return LabeledPage(
        blocks=blocks, arrays=arrays, features=block_features(arrays), shares=shares, num_words=counts, weight=weight
    )


def training_pages(benchmark: Path | None, num_site_pages: int) -> list[LabeledPage]:
    """Return the labeled pages of generated sites and of the benchmark's tuning half."""
    labeled = []
    for seed, layouts, num_pages in ((17, LAYOUTS, 2 * num_site_pages // 5), (18, CMS_LAYOUTS, 3 * num_site_pages // 5)):
        site = SiteConfig(seed=seed, num_pages=num_pages, layouts=layouts, script_share=0.0).build()
        labeled += [label_page(page.html, page.text, weight=_SITE_WEIGHT) for page in site.articles]
    if benchmark is not None:
        pages = read_benchmark(benchmark)
        labeled += [label_page(*pages[name]) for name in sorted(tuning_ids() & pages.keys())]
    return [page for page in labeled if page is not None]


def train_classifier(pages: Sequence[LabeledPage], num_trees: int = 80) -> BlockClassifier:
    """Return a classifier. The second stage is trained on scores that the first gives to pages it was not trained on."""
    import numpy as np

    fold_of = [index % _FOLDS for index in range(len(pages))]
    scores: list[Any] = [None] * len(pages)
    for fold in range(_FOLDS):
        local = _fit([page for page, of in zip(pages, fold_of, strict=True) if of != fold], None, num_trees)
        for index, page in enumerate(pages):
            if fold_of[index] == fold:
                scores[index] = local.probabilities(page.features)
    local = _fit(pages, None, num_trees)
    context = _fit(pages, [np.asarray(of_page, dtype=np.float32) for of_page in scores], num_trees)
    return BlockClassifier(local=local, context=context)


def _fit(pages: Sequence[LabeledPage], scores: Sequence[Any] | None, num_trees: int) -> TreeEnsemble:
    """Boosted trees on local features, or on context features if there are scores."""
    import numpy as np

    matrices = [
        page.features if scores is None else context_features(page.arrays, page.features, scores[index])
        for index, page in enumerate(pages)
    ]
    matrices += [_with_names_dropped(index, matrix) for index, matrix in enumerate(matrices)]
    weights = [page.weight * (page.num_words + 4) / (page.num_words[page.shares > 0.5].sum() + 200) for page in pages]
    labels = [page.shares > 0.5 for page in pages]
    return fit_trees(
        np.concatenate(matrices, axis=1), np.concatenate(labels * 2), np.concatenate(weights * 2), num_trees=num_trees
    )


def _with_names_dropped(index: int, features: Any) -> Any:
    """Features of a page in which half of the groups of names and tags never occur, as on sites with other names."""
    import numpy as np

    dropped = np.random.default_rng(index).random(NUM_BITS) < 0.5
    result = features.copy()
    result[-NUM_NAME_FEATURES:] *= ~np.tile(dropped, NUM_NAME_FEATURES // NUM_BITS)[:, None]
    return result


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(prog="python -m openafm.data.extraction.train", description=__doc__)
    parser.add_argument("--benchmark", type=Path, help="copy of the article benchmark; without it, generated pages alone")
    parser.add_argument("--site-pages", type=int, default=400, help="number of generated pages")
    parser.add_argument("--trees", type=int, default=80, help="trees of each stage")
    parser.add_argument("--out", type=Path, default=Path("blocks.npz"), help="file to write")
    arguments = parser.parse_args()
    pages = training_pages(arguments.benchmark, arguments.site_pages)
    save_classifier(arguments.out, train_classifier(pages, arguments.trees))
    print(f"{len(pages)} pages, {sum(len(page.shares) for page in pages)} blocks: {arguments.out}")


if __name__ == "__main__":
    main()
