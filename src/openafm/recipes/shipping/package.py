"""Score the trained stages and write the bundle that comes with openafm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openafm.adapters.package import open_adapter
from openafm.bundle import Bundle, RecoveryAdapter, open_bundle, write_bundle
from openafm.bundle.describe import describe_bundle, stored_bits
from openafm.bundle.files import PARTS
from openafm.core.errors import OpenAFMError
from openafm.core.files import data_home, write_json
from openafm.core.progress import progress
from openafm.evaluation import held_out
from openafm.evaluation.fresh.figures import FreshFigure, fresh_cases, fresh_figures
from openafm.evaluation.fresh.samples import FreshSample, fresh_samples
from openafm.evaluation.fresh.scores import model_answer
from openafm.evaluation.held_out import HeldOutScores, TaskScore
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.recipes.shipping.card import SAMPLED, ModelScores, ShippedResults, shipped_card
from openafm.recipes.shipping.stages import TrainedStages, read_stage

MAX_BYTES = 12_000_000
NUM_EXAMPLES = 100
"""Examples of each task; three models then take about half an hour on one core."""


class ShippedSizeError(OpenAFMError):
    """The bundle exceeds the size limit of the package."""


def ship(
    trained: TrainedStages, out: Path, results_file: Path, num_examples: int = NUM_EXAMPLES, natural: Path | None = None
) -> ShippedResults:
    """Score the models, write the bundle with its card to `out` and the results as JSON.

    `natural` is the folder of requests that people wrote; without it they are not scored.

    The reader of pages and the rankers of the bundle at `out` stay, and are used on sets by other authors.

    Raises:
        ShippedSizeError: the bundle exceeds `MAX_BYTES`; nothing was written.
        UsageError: a run folder is not that of a stage.
        BundleError: `out` holds something else than a bundle.
    """
    for bundle in (trained.uncompressed, trained.best):
        bundle.verify()
    with tempfile.TemporaryDirectory() as folder:
        draft = write_like(trained.best, Path(folder) / out.name)
        files = file_sizes(draft.path)
        for part in PARTS:
            if (out / part).is_dir():
                # An adapter of the reader may belong to the former weights; answers to texts do not need it.
                shutil.copytree(out / part, draft.path / part, ignore=shutil.ignore_patterns("*.fmadapter"))
        whole = open_bundle(draft.path)
        parts = {f"parts of {out.name}": sum(file_sizes(whole.path).values()) - sum(files.values())}
        check_size(files | parts)
        results = ShippedResults(
            description=describe_bundle(draft),
            uncompressed_bits_per_weight=stored_bits(trained.uncompressed).total,
            embedding_bytes=sum(t.data.nbytes for n, t in draft.stored_tensors.items() if n.split(".")[0] == "embedding"),
            files=files,
            former=trained.former,
            stages=tuple(read_stage(run) for run in trained.runs),
            num_examples=num_examples,
            scores=score_models(trained, num_examples),
            fresh=score_fresh(whole, natural),
            samples=tuple(sample_fresh(whole, natural)),
        )
    card = shipped_card(results)
    check_size(files | parts | {"card.md": len(card.encode())})
    with kept_parts(out):
        write_like(trained.best, out, card)
    write_json(results_file, results.to_dict())
    return results


@contextlib.contextmanager
def kept_parts(out: Path) -> Iterator[None]:
    """Keep reader and ranker of the bundle at `out` while it is replaced, and the reader's adapter if the weights stay."""
    found = [file for part in PARTS for file in (out / part).rglob("*") if file.is_file()]
    files = {file.relative_to(out): file.read_bytes() for file in found}
    try:
        yield
    finally:
        for name, data in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
    adapter = open_bundle(out).pages_adapter
    if adapter is not None and open_adapter(adapter).base_signature != open_bundle(out).signature:
        shutil.rmtree(adapter)
        print(f"removed {adapter}: it belongs to other weights; train it again (recipes/shipping/pages.py)", file=sys.stderr)


def write_like(bundle: Bundle, path: Path, card: str = "") -> Bundle:
    """Write the same bundle to `path` in the current file format, with this card."""
    adapter = bundle.recovery_adapter
    return write_bundle(
        path,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=bundle.tensors(),
        numerics=bundle.numerics,
        recovery=None if adapter is None else RecoveryAdapter(config=adapter.config, weights=adapter.weights()),
        card=card,
    )


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every file of a bundle except its card, the largest first."""
    files = {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    files.pop("card.md", None)
    return dict(sorted(files.items(), key=lambda item: -item[1]))


def check_size(files: Mapping[str, int]) -> None:
    """Check that the files fit into the package.

    Raises:
        ShippedSizeError: they exceed `MAX_BYTES`; the message names the largest.
    """
    total = sum(files.values())
    if total > MAX_BYTES:
        largest = ", ".join(f"{name} {size:,}" for name, size in sorted(files.items(), key=lambda item: -item[1])[:3])
        raise ShippedSizeError(
            f"the bundle has {total:,} bytes, the package carries {MAX_BYTES:,} at most; largest: {largest}; lower the "
            "adapter's rank, leave it out with --without-adapter or train a smaller vocabulary"
        )


def score_models(trained: TrainedStages, num_examples: int) -> ModelScores:
    """Return held-out scores of the models. Scores are cached in runs/ship/scores.json by model and examples."""
    examples = _digest([(name, task.examples(num_examples, None)) for name, task in held_out.TASKS.items()])

    def scores(title: str, bundle: Bundle) -> HeldOutScores:
        return _cached_scores(title, bundle, num_examples, examples)

    return ModelScores(
        shipped=scores("the shipped model", trained.best),
        without_adapter=scores("the shipped model without its adapter", trained.compressed),
        uncompressed=scores("the uncompressed model", trained.uncompressed),
    )


def score_fresh(bundle: Bundle, natural: Path | None) -> dict[str, FreshFigure]:
    """Return scores on sets whose authors did not see the training frames. Scores are cached as above."""
    cases = fresh_cases(natural)
    scores = _Scores(f"{bundle.identity} {bundle.parts_digest} fresh {_digest(cases)}")
    if (known := scores.known()) is None:
        with progress("scoring the shipped model on sets by other authors", len(cases)) as bar:
            found = fresh_figures(SystemLanguageModel(bundle=bundle.path), cases, bar.update)
        known = scores.store({name: asdict(figure) for name, figure in found.items()})
    return {name: FreshFigure(**figure) for name, figure in known.items()}


def sample_fresh(bundle: Bundle, natural: Path | None) -> list[FreshSample]:
    """Return right and wrong answers on the same sets."""
    return fresh_samples(fresh_cases(natural), SAMPLED, model_answer(SystemLanguageModel(bundle=bundle.path)))


def _cached_scores(title: str, bundle: Bundle, num_examples: int, examples: str) -> HeldOutScores:
    """Return the scores of a bundle; `examples` is the digest of the examples."""
    scores = _Scores(f"{bundle.identity} {examples}")
    if (known := scores.known()) is None:
        with progress(f"scoring {title}", num_examples * len(held_out.TASKS)) as bar:
            model = SystemLanguageModel(bundle=bundle.path)
            known = scores.store(asdict(held_out.held_out_scores(model, num_examples=num_examples, on_each=bar.update)))
    tasks = {name: TaskScore(**score | {"values": tuple(score.get("values", ()))}) for name, score in known["tasks"].items()}
    return HeldOutScores(tasks=tasks)


def _digest(examples: Sequence[object]) -> str:
    """Return a digest of examples, which changes with the sets that models are scored on."""
    return hashlib.sha256(repr(examples).encode()).hexdigest()[:16]


class _Scores:
    """An entry of the file of known scores."""

    def __init__(self, key: str) -> None:
        self._key, self._file = key, data_home() / "runs" / "ship" / "scores.json"

    def known(self) -> dict[str, Any] | None:
        return self._read().get(self._key)

    def store(self, scores: dict[str, Any]) -> dict[str, Any]:
        write_json(self._file, self._read() | {self._key: scores})
        return scores

    def _read(self) -> dict[str, dict[str, Any]]:
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.is_file() else {}
