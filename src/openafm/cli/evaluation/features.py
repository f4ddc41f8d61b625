"""`openafm evaluate features`, `tools` and `card`: our own held-out sets, and results as a model card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.evaluation.runs import adapter_identity, print_results, run_and_report
from openafm.cli.model_options import BaseUrlOption, KeyVariableOption, ModelOption, open_model
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.evaluation.features.base import FeatureConfig
    from openafm.evaluation.harness.answerer import Answerer

TOOLS = ("tool_call", "tools")

OutOption = Annotated[Path | None, typer.Option(help="Folder for results, samples and the report.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Items of each task and language.")]
AdapterOption = Annotated[str | None, typer.Option(help="Adapter: the name of an installed one, or a path.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Concurrent requests.")]
BaselineOption = Annotated[str | None, typer.Option(help="Evaluate a baseline instead of a model: constant or pattern.")]


def features(
    out: OutOption = None,
    model: ModelOption = None,
    tasks: Annotated[
        str | None, typer.Option(help="Features, separated by commas; default: all that the model can do.")
    ] = None,
    baseline: BaselineOption = None,
    limit: LimitOption = None,
    base_url: BaseUrlOption = None,
    api_key_variable: KeyVariableOption = None,
    adapter: AdapterOption = None,
    threads: ThreadsOption = 16,
    json: JsonOption = False,
) -> None:
    """Evaluate features on our own sets: events, flyers, extraction, labels, summaries, rewriting, languages, long contexts.

    Without --out: list the features.
    """
    from openafm.evaluation.tasks.catalog import FEATURES, NEEDS_VISION

    if out is None:
        if tasks is not None or model is not None or baseline is not None:
            raise UsageError("features needs --out, a folder for results; without options it lists the features")
        _list_features(json)
        return
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    unknown = [name for name in names if name not in FEATURES]
    if unknown:
        raise UsageError(f"unknown feature '{unknown[0]}'; known: {', '.join(FEATURES)}")
    if baseline is not None:
        chosen = {name: FEATURES[name]() for name in names or FEATURES}
        _run(_baseline(baseline, chosen, out), chosen, out, limit, 1, json=json)
        return
    answerer, can_see = _answerer(model, base_url, api_key_variable, adapter)
    blind = [name for name in names if name in NEEDS_VISION and not can_see]
    if blind:  # before any image is drawn
        raise UsageError(f"{answerer.name} does not support images; '{blind[0]}' needs a bundle with a vision encoder")
    if not names:
        names = [name for name in FEATURES if name not in TOOLS and (can_see or name not in NEEDS_VISION)]
        if not can_see and not json:
            print_text(f"{answerer.name} sees no images; left out: {', '.join(NEEDS_VISION)}")
    _run(answerer, {name: FEATURES[name]() for name in names}, out, limit, threads, json=json)


def tools(
    out: Annotated[Path, typer.Option(help="Folder for results, samples and the report.")],
    model: ModelOption = None,
    baseline: BaselineOption = None,
    limit: LimitOption = None,
    base_url: BaseUrlOption = None,
    api_key_variable: KeyVariableOption = None,
    adapter: AdapterOption = None,
    threads: ThreadsOption = 16,
    json: JsonOption = False,
) -> None:
    """Evaluate tool use on our own sets: single calls in sixteen languages, and a stateful phone with milestones."""
    from openafm.evaluation.tasks.catalog import FEATURES

    chosen = {name: FEATURES[name]() for name in TOOLS}
    if baseline is not None:
        _run(_baseline(baseline, chosen, out), chosen, out, limit, 1, json=json)
        return
    answerer, _ = _answerer(model, base_url, api_key_variable, adapter)
    _run(answerer, chosen, out, limit, threads, json=json)


def card(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs of one model.")],
    fill: Annotated[
        str | None, typer.Option(metavar="BUNDLE", help="Write the results into the model card of this bundle.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print the results of runs as the evaluation part of a model card, in Markdown, or write them into a bundle's card."""
    from openafm.evaluation.harness.card import card_text, fill_card
    from openafm.evaluation.harness.results import open_run

    opened = [open_run(path) for path in runs]
    text = card_text(opened)
    path = None
    if fill is not None:
        from openafm.bundle import open_bundle

        bundle = open_bundle(fill)
        fill_card(bundle, opened)
        path = str(bundle.path / "card.md")
    if json:
        print_json({"model": opened[0].model, "card": text, "written": path})
    else:
        print_text(text if path is None else f"results of {counted(len(opened), 'run')}: {path}")


def _list_features(json: bool) -> None:
    from openafm.evaluation.tasks.catalog import FEATURES, NEEDS_VISION

    rows = [(name, task.METRIC, name in NEEDS_VISION, task.about) for name, task in ((n, f()) for n, f in FEATURES.items())]
    if json:
        print_json([dict(zip(("feature", "metric", "needs_vision", "about"), row, strict=True)) for row in rows])
    else:
        print_table(
            ("feature", "metric", "sees images", "set"), [(*row[:2], "yes" if row[2] else "no", row[3]) for row in rows]
        )


def _baseline(name: str, tasks: dict[str, FeatureConfig], out: Path) -> Answerer:
    from openafm.evaluation.features.base import baseline_answerer

    return baseline_answerer(name, tasks, out)


def _answerer(
    model: str | None, base_url: str | None, api_key_variable: str | None, adapter: str | None
) -> tuple[Answerer, bool]:
    """Return what answers, and whether it sees images."""
    from openafm.evaluation.harness.answerer import ModelAnswerer
    from openafm.framework.backends.language_model import Capability

    described = open_model(model, base_url, api_key_variable, adapter)
    answerer = ModelAnswerer(described, identity=adapter_identity(adapter, described))
    return answerer, Capability.VISION in described.capabilities


def _run(
    answerer: Answerer, tasks: dict[str, FeatureConfig], out: Path, limit: int | None, threads: int, *, json: bool
) -> None:
    from openafm.evaluation.harness.runner import RunOptions

    results = run_and_report(answerer, dict(tasks), out, out, None, RunOptions(limit=limit, threads=threads))
    if json:
        print_json(
            {"model": answerer.name, "out": str(out), "tasks": {name: each.to_dict() for name, each in results.items()}}
        )
    else:
        print_results(results, out)
