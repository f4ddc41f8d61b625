"""From nothing to a model in use, in minutes: train `on_device.micro`, compress it to 2 bits, score it, extract an event."""

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
    MOST_TOKENS,
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
from openafm.recipes.on_device import MICRO_LANGUAGES
from openafm.recipes.run import RunResult, prepare_run, run_recipe

BUNDLE_NAME = "micro"
STAGES = ("pretrain", "sft", "qat")
NUM_HELD_OUT = 160
SENTENCE = "Dinner with Maria on Friday at 7 pm at Luigi's, don't be late!"


@fm.generable
class Event:
    """The typed value that the quickstart extracts; the README and the built-in corpus use the same."""

    title: str
    date: datetime.date | None
    time: str | None = fm.guide(regex=r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]$")
    location: str | None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Held-out event extraction of the compressed model beside what it was made from and what needs no training."""

    trained: EventScores
    uncompressed: EventScores
    untrained: EventScores
    regex: EventScores
    constant: EventScores


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a bundle takes: bits per weight with everything counted, bytes of weights, bytes of keys and values a token."""

    bits_per_weight: float
    weight_bytes: int
    kv_bytes_per_token: int


@dataclass(frozen=True, kw_only=True)
class Use:
    """One real use of the model: the event of a sentence, and how fast it came."""

    sentence: str
    event: dict[str, Any]
    tokens_per_second: float
    ttft_ms: float


@dataclass(frozen=True, kw_only=True)
class QuickstartResult:
    """Everything that the quickstart found out and wrote. `size_before` is that of the model before compression."""

    bundle: Path
    run: RunResult
    size_before: Size
    size: Size
    train_seconds: float
    loss_first: float
    scores: Scores
    use: Use
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures under the names that programs rely on, and the detail behind them."""
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


def quickstart(say: Callable[[str], None], sentence: str = SENTENCE) -> QuickstartResult:
    """Train, compress, score and use the micro model; what stands from an earlier call is reused.

    `say` takes the lines meant for a person.
    """
    home = data_home() / "runs" / "quickstart"
    pretrain = prepare_run("on_device.pretrain", "micro")
    say(f"1. pre-training on the built-in corpus ({home / 'pretrain'})")
    base = _run_once(pretrain, home / "pretrain", f"{BUNDLE_NAME}-pretrained", "", say)
    sft = prepare_run("on_device.sft", "micro", start=base.bundle)
    say(f"2. fine-tuning on the answers ({home / 'sft'})")
    tuned = _run_once(sft, home / "sft", f"{BUNDLE_NAME}-uncompressed", base.signature, say)
    qat = prepare_run("on_device.qat", "micro", start=tuned.bundle)
    say(f"3. the same with 2-bit weights simulated, then packed ({home / 'qat'})")
    run = _run_once(qat, home / "qat", BUNDLE_NAME, tuned.signature, say)
    curve = _draw(home, say)
    say("4. scoring on held-out messages: other sentence frames, names, places and titles than in training")
    scores = _scores_once(run, tuned, pretrain, home / "scores.json")
    say("5. using it")
    bundle = Path(run.bundle)
    use = use_model(bundle, sentence, say)
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


def use_model(bundle: Path, sentence: str, say: Callable[[str], None]) -> Use:
    """Extract the typed event of a sentence, saying each snapshot as it grows."""
    session = fm.LanguageModelSession(event_instructions(datetime.date.today()), fm.SystemLanguageModel(bundle=bundle))

    options = fm.GenerationOptions(maximum_response_tokens=MOST_TOKENS)

    async def extract() -> str:
        shown = ""
        try:
            async for snapshot in session.stream_response(sentence, generating=Event, options=options):
                if snapshot.raw_content.to_json() != shown:
                    shown = snapshot.raw_content.to_json()
                    say(f"   {shown}")
        except fm.DecodingFailureError as error:
            say(f"   {error}")
        return shown

    say(f'   "{sentence}"')
    event = asyncio.run(extract())
    return Use(
        sentence=sentence,
        event=json.loads(event),
        tokens_per_second=session.usage.tokens_per_second,
        ttft_ms=session.usage.ttft_ms,
    )


def _run_once(config: RunConfig, folder: Path, name: str, start: str, say: Callable[[str], None]) -> RunResult:
    """Carry out a run unless the same one, from a bundle of the signature `start`, is finished and its bundle stands."""
    record = folder / "result.json"
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))
        if (known["config"], known.get("start")) == (dump(config), start) and _bundle_stands(known["result"]):
            say(f"   reused {known['result']['bundle']}")
            return RunResult(**known["result"])
        say(f"   {folder} holds an earlier run that differs; it is removed")
        shutil.rmtree(folder)
    result = run_recipe(config, folder, name)
    write_json(record, {"config": dump(config), "start": start, "result": result.to_dict()})
    return result


def _bundle_stands(result: dict[str, Any]) -> bool:
    try:
        bundle = open_bundle(result["bundle"])
        bundle.verify()
    except (BundleError, BundleNotFoundError, ConfigError):
        return False
    return bool(bundle.signature == result["signature"])


def _size(bundle: Path) -> Size:
    described = describe_bundle(open_bundle(bundle))
    return Size(
        bits_per_weight=described.bits_per_weight,
        weight_bytes=round(described.bits_per_weight * described.parameters / 8),
        kv_bytes_per_token=described.kv_bytes_per_token,
    )


def _scores_once(run: RunResult, uncompressed: RunResult, config: RunConfig, file: Path) -> Scores:
    """Score the extractors, unless the scores of this very bundle stand in `file`; `config` made the untrained weights."""
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["signature"] == run.signature:
            return Scores(**{name: EventScores(**scores) for name, scores in known["scores"].items()})
    examples = held_out_events(NUM_HELD_OUT, languages=MICRO_LANGUAGES)
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
    """The same model with the weights it started from."""
    trained = open_bundle(run.bundle)
    model = trained.config.build(config.trainer.seed)
    config.trainer.start.apply(model, config.trainer.seed)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    write_bundle(path, config=trained.config, tokenizer=trained.tokenizer, template=trained.template, tensors=weights)
    return fm.SystemLanguageModel(bundle=path)


def _draw(home: Path, say: Callable[[str], None]) -> tuple[Path, ...]:
    """The loss curve in the terminal, and as a picture where matplotlib is installed."""
    from openafm.training.observability.curves import CurveError, plot_losses, terminal_curve
    from openafm.training.observability.metrics import read_metrics

    losses = [line["loss"] for stage in STAGES for line in read_metrics(home / stage) if "loss" in line]
    say(terminal_curve(losses))
    try:
        return tuple(plot_losses(home / stage) for stage in STAGES)
    except CurveError as error:
        say(f"   no picture of the curve: {error}")
        return ()
