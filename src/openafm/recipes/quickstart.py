"""Train `on_device.micro`, compress it to 2 bits, score it and extract an event with it, in minutes."""

from __future__ import annotations

import asyncio
import datetime
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import openafm as fm
from openafm.bundle import BundleError, BundleNotFoundError, open_bundle, write_bundle
from openafm.bundle.describe import describe_bundle
from openafm.core.config import ConfigError, dump
from openafm.core.files import data_home, write_json
from openafm.core.progress import progress
from openafm.data.synthetic import event_instructions
from openafm.evaluation.events import (
    MAX_TOKENS,
    EventExample,
    EventScores,
    Extractor,
    constant_extractor,
    held_out_events,
    model_extractor,
    regex_extractor,
    score,
)
from openafm.recipes.config import RunConfig
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import RunResult, run_recipe
from openafm.recipes.sources.mixtures import ENGLISH

BUNDLE_NAME = "micro"
STAGES = ("pretrain", "sft", "qat")
NUM_HELD_OUT = 160
SENTENCE = "Dinner with Maria tomorrow at 7 pm at Luigi's, don't be late!"


@fm.generable
class Event:
    """The extracted event; README and built-in corpus use the same type."""

    title: str
    date: datetime.date | None
    time: str | None = fm.guide(regex=r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]$")
    location: str | None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Held-out event extraction of the compressed model, the uncompressed one, and the baselines."""

    trained: EventScores
    uncompressed: EventScores
    untrained: EventScores
    regex: EventScores
    constant: EventScores


@dataclass(frozen=True, kw_only=True)
class BundleSize:
    """Storage of a bundle: bits per weight with everything counted, bytes of weights, KV cache bytes per token."""

    bits_per_weight: float
    weight_bytes: int
    kv_bytes_per_token: int


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """The event that the model extracted from a sentence, and the speed."""

    sentence: str
    event: dict[str, Any]
    tokens_per_second: float
    ttft_ms: float


@dataclass(frozen=True, kw_only=True)
class QuickstartResult:
    """The outputs and figures of the quickstart. `size_before` is that of the model before compression."""

    bundle: Path
    run: RunResult
    size_before: BundleSize
    size: BundleSize
    train_seconds: float
    loss_first: float
    scores: Scores
    use: Demonstration
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under stable names, with their details."""
        scores = self.scores
        return {
            "bundle": str(self.bundle),
            "event": self.use.event,
            "tokens_per_second": self.use.tokens_per_second,
            "ttft_ms": self.use.ttft_ms,
            "train_seconds": self.train_seconds,
            "loss_first": self.loss_first,
            "loss_last": self.run.loss_last,
            "held_out_exact_match": scores.trained.exact_match,
            "uncompressed_exact_match": scores.uncompressed.exact_match,
            "untrained_exact_match": scores.untrained.exact_match,
            "regex_exact_match": scores.regex.exact_match,
            "constant_exact_match": scores.constant.exact_match,
            "held_out": {name: extractor.to_dict() for name, extractor in vars(scores).items()},
            "size": asdict(self.size),
            "size_before": asdict(self.size_before),
            "files": [str(file) for file in self.files],
        }


def quickstart(report: Callable[[str], None], sentence: str = SENTENCE) -> QuickstartResult:
    """Train, compress, score and use the micro model. Finished stages of an earlier call are reused.

    `report` receives progress lines.
    """
    home = data_home() / "runs" / "quickstart"
    pretrain = prepare_run("on_device.pretrain", "micro")
    report(f"1. pre-training on the built-in corpus ({home / 'pretrain'})")
    base = _run_once(pretrain, home / "pretrain", f"{BUNDLE_NAME}-pretrained", "", report)
    sft = prepare_run("on_device.sft", "micro", start=base.bundle)
    report(f"2. fine-tuning on the answers ({home / 'sft'})")
    tuned = _run_once(sft, home / "sft", f"{BUNDLE_NAME}-uncompressed", base.signature, report)
    qat = prepare_run("on_device.qat", "micro", start=tuned.bundle)
    report(f"3. quantization-aware training to 2 bits ({home / 'qat'})")
    run = _run_once(qat, home / "qat", BUNDLE_NAME, tuned.signature, report)
    curve = _draw(home, report)
    report("4. scoring on held-out English messages, whose frames, names, places and titles are not in the training data")
    scores = _cached_scores(run, tuned, pretrain, home / "scores.json")
    report("5. extracting an event")
    bundle = Path(run.bundle)
    use = use_model(bundle, sentence, report)
    return QuickstartResult(
        bundle=bundle,
        run=run,
        size_before=_size(Path(tuned.bundle)),
        size=_size(bundle),
        train_seconds=base.train_seconds + tuned.train_seconds + run.train_seconds,
        loss_first=base.loss_first or 0.0,
        scores=scores,
        use=use,
        files=(
            *(Path(stage.bundle) for stage in (run, tuned, base)),
            *(home / stage for stage in STAGES),
            *curve,
            home / "scores.json",
        ),
    )


def use_model(bundle: Path, sentence: str, report: Callable[[str], None]) -> Demonstration:
    """Extract the event of a sentence and report each partial value."""
    session = fm.LanguageModelSession(event_instructions(datetime.date.today()), fm.SystemLanguageModel(bundle=bundle))

    options = fm.GenerationOptions(maximum_response_tokens=MAX_TOKENS)

    async def extract() -> str:
        shown = ""
        try:
            async for snapshot in session.stream_response(sentence, generating=Event, options=options):
                if snapshot.raw_content.to_json() != shown:
                    shown = snapshot.raw_content.to_json()
                    report(f"   {shown}")
        except fm.DecodingFailureError as error:
            report(f"   {error}")
        return shown

    report(f'   "{sentence}"')
    event = asyncio.run(extract())
    return Demonstration(
        sentence=sentence,
        event=json.loads(event),
        tokens_per_second=session.usage.tokens_per_second,
        ttft_ms=session.usage.ttft_ms,
    )


def _run_once(config: RunConfig, folder: Path, name: str, start: str, report: Callable[[str], None]) -> RunResult:
    """Run a stage, unless the same run from a bundle of signature `start` has finished and its bundle is undamaged."""
    record = folder / "result.json"
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))
        if (known["config"], known.get("start")) == (dump(config), start) and _is_undamaged(known["result"]):
            report(f"   reused {known['result']['bundle']}")
            return RunResult(**known["result"])
        report(f"   removing {folder}: it holds another run")
        shutil.rmtree(folder)
    result = run_recipe(config, folder, name)
    write_json(record, {"config": dump(config), "start": start, "result": result.to_dict()})
    return result


def _is_undamaged(result: dict[str, Any]) -> bool:
    try:
        bundle = open_bundle(result["bundle"])
        bundle.verify()
    except (BundleError, BundleNotFoundError, ConfigError):
        return False
    return bool(bundle.signature == result["signature"])


def _size(bundle: Path) -> BundleSize:
    described = describe_bundle(open_bundle(bundle))
    return BundleSize(
        bits_per_weight=described.bits_per_weight,
        weight_bytes=round(described.bits_per_weight * described.parameters / 8),
        kv_bytes_per_token=described.kv_bytes_per_token,
    )


def _cached_scores(run: RunResult, uncompressed: RunResult, config: RunConfig, file: Path) -> Scores:
    """Score the extractors, unless `file` holds the scores of this bundle. `config` initializes the untrained weights."""
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["signature"] == run.signature:
            return Scores(**{name: EventScores(**scores) for name, scores in known["scores"].items()})
    examples = held_out_events(NUM_HELD_OUT, languages=ENGLISH)
    with tempfile.TemporaryDirectory() as folder:
        untrained = _untrained(uncompressed, config, Path(folder) / "untrained")
        scores = Scores(
            trained=_score("compressed model", model_extractor(fm.SystemLanguageModel(bundle=run.bundle)), examples),
            uncompressed=_score(
                "model before compression", model_extractor(fm.SystemLanguageModel(bundle=uncompressed.bundle)), examples
            ),
            untrained=_score("untrained model", model_extractor(untrained), examples),
            regex=_score("regular expressions", regex_extractor, examples),
            constant=_score("constant answer", constant_extractor, examples),
        )
    write_json(file, {"signature": run.signature, "scores": asdict(scores)})
    return scores


def _score(name: str, extract: Extractor, examples: list[EventExample]) -> EventScores:
    with progress(f"   scoring the {name}", len(examples)) as bar:
        return score(extract, examples, bar.update)


def _untrained(run: RunResult, config: RunConfig, path: Path) -> fm.SystemLanguageModel:
    """Return the same model with its initial weights."""
    trained = open_bundle(run.bundle)
    model = trained.config.build(config.trainer.seed)
    config.trainer.start.apply(model, config.trainer.seed)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    write_bundle(path, config=trained.config, tokenizer=trained.tokenizer, template=trained.template, tensors=weights)
    return fm.SystemLanguageModel(bundle=path)


def _draw(home: Path, report: Callable[[str], None]) -> tuple[Path, ...]:
    """Draw the loss curve in the terminal, and as a picture if matplotlib is installed."""
    from openafm.training.observability.curves import CurveError, plot_losses, terminal_curve
    from openafm.training.observability.metrics import read_metrics

    losses = [line["loss"] for stage in STAGES for line in read_metrics(home / stage) if "loss" in line]
    report(terminal_curve(losses))
    try:
        return tuple(plot_losses(home / stage) for stage in STAGES)
    except CurveError as error:
        report(f"   no picture of the curve: {error}")
        return ()
