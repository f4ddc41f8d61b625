"""The model that comes with the package, from nothing: four recipes, scores, card, bundle.

    python -m openafm.recipes.ship    # hours on two cores; killed at any point, the same command goes on
    python -m openafm.recipes.ship --from-bundles SFT QAT RECOVERED --runs PRETRAIN SFT QAT RECOVERY

The second form trains nothing: it takes bundles that `openafm train` made, and their run folders for the card.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openafm.bundle import Bundle, RecoveryAdapter, open_bundle, write_bundle
from openafm.bundle.describe import describe_bundle, stored_bits
from openafm.bundle.store import SHIPPED_HOME, SHIPPED_NAME
from openafm.core.config import from_dict, to_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import data_home, write_json
from openafm.core.progress import progress
from openafm.evaluation import held_out
from openafm.evaluation.held_out import HeldOutScores, TaskScore
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.recipes.card import describe_corpus
from openafm.recipes.config import RunConfig, build_run
from openafm.recipes.run import prepare_run, run_recipe
from openafm.recipes.shipped_card import ModelScores, ShippedResults, Stage, shipped_card

SIZE = "nano"
STAGES = ("on_device.pretrain", "on_device.sft", "on_device.qat", "on_device.recovery_adapter")
MAX_BYTES = 6_000_000
NUM_EXAMPLES = 100  # of each task; on one core three models then take about half an hour


class ShippedSizeError(OpenAFMError):
    """The bundle is larger than what the package may carry."""


class ShippedPartsError(UsageError):
    """Bundles or run folders that are not the stages of one model."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the stages left: the model before compression, after it, with its adapter, and their run folders in order."""

    uncompressed: Bundle
    compressed: Bundle
    recovered: Bundle | None
    runs: tuple[Path, ...]

    def __post_init__(self) -> None:
        if self.uncompressed.config != self.compressed.config:
            raise ShippedPartsError(f"{self.compressed.path} is not what {self.uncompressed.path} was compressed to")
        if not self.compressed.numerics.is_compressed:
            raise ShippedPartsError(f"{self.compressed.path} is not compressed; give the bundle of on_device.qat")
        if self.recovered is None:
            return
        if self.recovered.recovery_adapter is None:
            raise ShippedPartsError(f"{self.recovered.path} carries no adapter; leave it out with --without-adapter")
        if self.recovered.signature != self.compressed.signature:
            raise ShippedPartsError(
                f"{self.recovered.path} carries an adapter for {self.recovered.signature}, and {self.compressed.path} is "
                f"{self.compressed.signature}; train one for it or leave it out with --without-adapter"
            )

    @property
    def best(self) -> Bundle:
        """The one that ships."""
        return self.recovered or self.compressed


def train_all(with_adapter: bool) -> Trained:
    """Carry out the stages, each from the bundle before it; what stands from an earlier call is reused.

    Raises:
        Whatever `run_recipe` raises.
    """
    bundles: list[Bundle] = []
    runs: list[Path] = []
    for recipe in STAGES if with_adapter else STAGES[:-1]:
        stage = recipe.removeprefix("on_device.")
        config = prepare_run(recipe, SIZE, start=str(bundles[-1].path) if bundles else None)
        runs.append(data_home() / "runs" / "ship" / stage)
        bundles.append(open_bundle(run_recipe(config, runs[-1], f"{SIZE}-{stage}").bundle))
    _, uncompressed, compressed, *recovered = bundles
    return Trained(
        uncompressed=uncompressed,
        compressed=compressed,
        recovered=recovered[0] if recovered else None,
        runs=tuple(runs),
    )


def open_trained(bundles: Sequence[str], runs: Sequence[Path], with_adapter: bool) -> Trained:
    """The stages from bundles that are trained already: before compression, after it and, with an adapter, that one.

    Raises:
        ShippedPartsError: too few or too many, or they do not belong together.
        BundleNotFoundError, BundleError: one of them cannot be opened.
    """
    expected = 3 if with_adapter else 2
    if len(bundles) != expected or len(runs) != expected + 1:
        raise ShippedPartsError(
            f"expected {expected} bundles (SFT QAT{' RECOVERED' * with_adapter}) and the {expected + 1} run folders of all "
            f"stages with --runs, got {len(bundles)} and {len(runs)}"
        )
    uncompressed, compressed, *recovered = map(open_bundle, bundles)
    return Trained(
        uncompressed=uncompressed,
        compressed=compressed,
        recovered=recovered[0] if recovered else None,
        runs=tuple(runs),
    )


def ship(trained: Trained, out: Path, results_file: Path, num_examples: int = NUM_EXAMPLES) -> ShippedResults:
    """Score the models and write the bundle with its card at `out` and the results as JSON.

    Raises:
        ShippedSizeError: more than `MAX_BYTES` in all; nothing was written.
        ShippedPartsError: a run folder is not one of the stages'.
        BundleError: `out` holds something else.
    """
    for bundle in (trained.uncompressed, trained.best):
        bundle.verify()
    with tempfile.TemporaryDirectory() as folder:
        draft = write_like(trained.best, Path(folder) / out.name)
        files = file_sizes(draft.path)
        check_size(files)
        results = ShippedResults(
            description=describe_bundle(draft),
            uncompressed_bits_per_weight=stored_bits(trained.uncompressed).total,
            embedding_bytes=sum(t.data.nbytes for n, t in draft.stored_tensors.items() if n.split(".")[0] == "embedding"),
            files=files,
            stages=tuple(read_stage(run) for run in trained.runs),
            num_examples=num_examples,
            scores=score_models(trained, num_examples),
        )
    card = shipped_card(results)
    check_size(files | {"card.md": len(card.encode())})
    write_like(trained.best, out, card)
    write_json(results_file, results.to_dict())
    return results


def write_like(bundle: Bundle, path: Path, card: str = "") -> Bundle:
    """The same bundle again at `path`, as compact as this version writes it, with this card."""
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
    """Bytes of every file below a bundle's folder, the largest first, the card left out."""
    files = {file.relative_to(folder).as_posix(): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    files.pop("card.md", None)
    return dict(sorted(files.items(), key=lambda item: -item[1]))


def check_size(files: Mapping[str, int]) -> None:
    """Refuse what the package may not carry.

    Raises:
        ShippedSizeError: the message names the largest files.
    """
    total = sum(files.values())
    if total > MAX_BYTES:
        largest = ", ".join(f"{name} {size:,}" for name, size in sorted(files.items(), key=lambda item: -item[1])[:3])
        raise ShippedSizeError(
            f"the bundle has {total:,} bytes, the package carries {MAX_BYTES:,} at most; largest: {largest}; give the "
            "adapter a lower rank, leave it out with --without-adapter or train a smaller vocabulary"
        )


def score_models(trained: Trained, num_examples: int) -> ModelScores:
    """Held-out scores of the models. Those of the same model and as many examples are kept in runs/ship/scores.json of the
    data home and not measured again."""
    return ModelScores(
        shipped=_scores_once("the model that ships", trained.best, num_examples),
        without_adapter=_scores_once("it without its adapter", trained.compressed, num_examples),
        uncompressed=_scores_once("the uncompressed model", trained.uncompressed, num_examples),
    )


def read_stage(run: Path) -> Stage:
    """What a run folder tells of a stage.

    Raises:
        ShippedPartsError: it holds no run of a recipe.
    """
    from openafm.training.checkpoints.checkpoint import CheckpointError, checkpoint_paths, open_checkpoint
    from openafm.training.observability.metrics import read_metrics

    try:
        config = from_dict(RunConfig, json.loads((run / "run.json").read_text(encoding="utf-8")))
        record = open_checkpoint(checkpoint_paths(run / "checkpoints")[0]).record
    except (OSError, ValueError, IndexError, CheckpointError) as error:
        raise ShippedPartsError(f"{run} is not the folder of a run with a checkpoint: {error}") from error
    lines = read_metrics(run)
    losses = [line["loss"] for line in lines if "loss" in line][-10:]
    held_out_losses = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    sources = {source.name for source in config.trainer.data.sources}
    return Stage(
        recipe=config.recipe,
        size=SIZE,
        steps=record.step,
        tokens=record.num_tokens,
        seconds=record.seconds,
        loss=sum(losses) / len(losses) if losses else None,
        held_out_loss=held_out_losses[-1] if held_out_losses else None,
        data=tuple(describe_corpus(corpus) for corpus in config.corpora if corpus.name in sources),
        changes=changes_from_recipe(config),
    )


def changes_from_recipe(config: RunConfig) -> dict[str, str]:
    """What differs from the recipe as it stands, as `--set` takes it: dotted keys to JSON."""
    recipe = build_run(config.recipe, SIZE)
    if config.trainer.from_bundle is not None:  # these come with the bundle
        trainer = replace(
            recipe.trainer,
            from_bundle=config.trainer.from_bundle,
            from_identity=config.trainer.from_identity,
            model=config.trainer.model,
        )
        recipe = replace(recipe, tokenizer=None, trainer=trainer)
    return {key: json.dumps(value, ensure_ascii=False) for key, value in _differences("", to_dict(config), to_dict(recipe))}


def _differences(key: str, found: Any, expected: Any) -> Iterator[tuple[str, Any]]:
    """The smallest parts that differ and can be set: values, or whole configs of another type."""
    if found == expected:
        return
    are_alike = isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys()
    if are_alike and found.get("type") == expected.get("type"):
        for name in found:
            yield from _differences(f"{key}.{name}" if key else name, found[name], expected[name])
    else:
        yield key, found


def _scores_once(title: str, bundle: Bundle, num_examples: int) -> HeldOutScores:
    file = data_home() / "runs" / "ship" / "scores.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    key = " ".join((bundle.identity, str(num_examples), *held_out.TASKS))
    if key not in known:
        with progress(f"scoring {title}", num_examples * len(held_out.TASKS)) as bar:
            model = SystemLanguageModel(bundle=bundle.path)
            known[key] = asdict(held_out.held_out_scores(model, num_examples=num_examples, on_each=bar.update))
        write_json(file, known)
    return HeldOutScores(tasks={name: TaskScore(**score) for name, score in known[key]["tasks"].items()})


def main(arguments: Sequence[str]) -> int:
    """The command line; an exit code as those of `openafm`."""
    # As in cli/main.py, before torch is imported: threads that spin while they wait stand in each other's way.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = argparse.ArgumentParser(prog="python -m openafm.recipes.ship", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="Folder of the bundle; by default the one in the package of this checkout.")
    parser.add_argument("--results", type=Path, help="JSON of all figures; by default docs/benchmarks/, or OUT.json.")
    parser.add_argument("--from-bundles", nargs="+", metavar="BUNDLE", help="Train nothing: SFT QAT [RECOVERED].")
    parser.add_argument("--runs", nargs="+", type=Path, default=[], help="Run folders of --from-bundles, PRETRAIN first.")
    parser.add_argument("--without-adapter", action="store_true", help="Ship the compressed model alone.")
    parser.add_argument("--examples", type=int, default=NUM_EXAMPLES, help="Held-out examples of each task.")
    options = parser.parse_args(arguments)
    try:
        out, results_file = _places(options.out, options.results)
        with_adapter = not options.without_adapter
        if options.from_bundles:
            trained = open_trained(options.from_bundles, options.runs, with_adapter)
        else:
            trained = train_all(with_adapter)
        ship(trained, out, results_file, options.examples)
    except OpenAFMError as error:
        print(f"openafm: {error}", file=sys.stderr)
        return error.exit_code
    _say_what_was_written(out, results_file)
    return 0


def _places(out: Path | None, results: Path | None) -> tuple[Path, Path]:
    """Where bundle and results go. The package is only written to where it is a checkout of the source."""
    if out is not None:
        return out, results or out.with_name(f"{out.name}.json")
    checkout = SHIPPED_HOME.parents[2]
    if not (checkout / "pyproject.toml").is_file():
        raise UsageError(f"{SHIPPED_HOME} is not part of a source checkout; say with --out where the bundle goes")
    return SHIPPED_HOME / SHIPPED_NAME, results or checkout / "docs" / "benchmarks" / f"shipped_{SHIPPED_NAME}.json"


def _say_what_was_written(out: Path, results_file: Path) -> None:
    files = file_sizes(out) | {"card.md": (out / "card.md").stat().st_size}
    for name, size in files.items():
        print(f"{size:>12,}  {name}")
    print(f"{sum(files.values()):>12,}  bytes in all, {MAX_BYTES:,} at most\nwritten: {out}, {results_file}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
