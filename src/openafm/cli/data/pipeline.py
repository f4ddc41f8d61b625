"""`openafm data run`, `report`, `try` and `mixture`: from web pages to the shares of a training mixture."""

from __future__ import annotations

import glob
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.data import mixture_stages
from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.data.pipeline.mixture_plan import Source
    from openafm.tokenizer.bpe import Tokenizer

PipelineArgument = Annotated[
    str, typer.Argument(help="A pipeline: web.recipe, or your own function that returns one: ./file.py:function.")
]


def run(
    recipe: PipelineArgument,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[INPUT]...", help="More input files.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="WARC files, or folders of them; may be a quoted pattern. May be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder; a run in it is resumed.")] = Path("corpus"),
    changes: SetOption = None,
    plugins: PluginsOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; default: one per core.")] = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    ray_address: Annotated[str, typer.Option(help="Address of a Ray cluster; default: one on this machine.")] = "",
    json: JsonOption = False,
) -> None:
    """Turn web pages into a corpus of Parquet files: extracted, filtered, deduplicated. Repeat the command to resume."""
    from openafm.core.executors import ExecutorConfig, LocalConfig, RayConfig
    from openafm.data.pipeline.runner import run_pipeline
    from openafm.recipes.pipelines.web import build_pipeline

    kinds: dict[str, ExecutorConfig] = {
        "local": LocalConfig(num_workers=workers or 0),
        "ray": RayConfig(address=ray_address, num_workers=workers or 0),
    }
    if executor not in kinds:
        raise UsageError(f"unknown executor '{executor}'; use {' or '.join(kinds)}")
    config = build_pipeline(recipe, parse_changes(changes))
    config = replace(
        config, executor=kinds[executor], plugins=tuple(dict.fromkeys((*config.plugins, *map(_absolute, plugins or ()))))
    )
    manifest = run_pipeline(config, [*_expanded(inputs or []), *(more or [])], out)
    for note in manifest.notes:
        print(note, file=sys.stderr)
    if json:
        print_json(
            {
                "path": str(out),
                "digest": manifest.digest,
                "documents_in": manifest.num_in,
                "documents_kept": manifest.num_kept,
                "stages": [
                    {"name": s.name, "in": s.num_in, "kept": s.num_kept, "dropped": s.dropped, "cpu_seconds": s.seconds}
                    for s in manifest.stages
                ],
            }
        )
        return
    rows = [
        (stage.name, stage.num_in, stage.num_kept, reason, count)
        for stage in manifest.stages
        for reason, count in (stage.dropped or {"-": 0}).items()
    ]
    print_table(("stage", "in", "kept", "dropped for", "documents"), rows)
    print_text(
        f"wrote {manifest.num_kept:,} of {counted(manifest.num_in, 'document')} to {out}; see: openafm data report {out}"
    )


def report(
    corpus: Annotated[Path, typer.Argument(exists=True, help="Folder that `openafm data run` wrote, or an image corpus.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML page; default: report.html in the corpus.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what a corpus keeps and what was dropped, why, by language, domain and length; write an HTML page with plots.

    Of an image corpus the page shows images with their texts and boxes, and dropped images with reasons.
    """
    from openafm.data.images.shards import is_image_corpus
    from openafm.data.pipeline.report import corpus_report, write_html

    if is_image_corpus(corpus):
        _report_images(corpus, out or corpus / "report.html", json)
        return

    found = corpus_report(corpus)
    if json:
        print_json(asdict(found))
        return
    path = out or corpus / "report.html"
    write_html(found, path)
    print_table(
        ("stage", "in", "kept", "dropped"),
        [(stage.name, stage.num_in, stage.num_kept, stage.num_in - stage.num_kept) for stage in found.stages],
    )
    print_table(
        ("language", "documents", "characters"),
        [(name, count, found.characters_by_language[name]) for name, count in found.languages.items()],
    )
    if found.agreement is not None:
        print_text(
            f"model and classifier agree on {found.agreement:.1%} of the characters of pages that the model extracted"
        )
    print_text(f"wrote {path}")


def _report_images(corpus: Path, out: Path, json: bool) -> None:
    from openafm.data.images.report import image_corpus_report, write_contact_sheets

    if json:
        print_json(asdict(image_corpus_report(corpus)))
        return
    found = write_contact_sheets(corpus, out)
    print_table(("kind", "documents"), list(found.kinds.items()))
    if found.dropped:
        print_table(("reason", "dropped"), list(found.dropped.items()))
    print_text(f"wrote {out}")


def try_page(
    place: Annotated[str, typer.Argument(metavar="URL_OR_FILE", help="A URL, an HTML file, or a WARC file.")],
    recipe: Annotated[str, typer.Option(help="The pipeline.")] = "web.recipe",
    url: Annotated[str, typer.Option(help="URL of the page: of an HTML file, or the one to take from a WARC file.")] = "",
    private: Annotated[
        bool, typer.Option("--allow-private-addresses", help="Fetch from this machine and the local network too.")
    ] = False,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Take one page through every step of a pipeline and show each step's result."""
    from openafm.data.pipeline.trial import open_page, try_steps
    from openafm.recipes.pipelines.web import build_pipeline

    config = build_pipeline(recipe, parse_changes(changes))
    results = list(try_steps(config, open_page(place, url, allow_private_addresses=private)))
    if json:
        print_json([asdict(result) for result in results])
        return
    for result in results:
        print_text(f"{result.stage} / {result.step}: {result.outcome} ({1000 * result.seconds:.1f} ms)")
        for line in result.changes:
            print_text(f"    {line}")


def mixture(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH[=WEIGHT]...",
            help="Corpora, folders of documents, or token shards; default weight: tokens. With --stage: PART=PATH.",
        ),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(help="Mixture of the report: multimodal_adaptation or vision_sft; without sources, print its parts."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a description for `openafm train --data`.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to train on; default: one epoch of all sources.")] = 0,
    temperature: Annotated[float, typer.Option(help="Temperature over the languages of a source; 1 keeps them.")] = 3.0,
    max_epochs: Annotated[float, typer.Option(help="Most repetitions of any language of a source; 0: no cap.")] = 4.0,
    multilingual: Annotated[
        float | None,
        typer.Option(help="Share of languages other than English; report: 0.08, 0.30 in continued pre-training."),
    ] = None,
    domains: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            metavar="DOMAIN=FACTOR",
            help="Multiply the weight of a web domain of the corpora; with --out, their documents are copied by domain.",
        ),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(exists=True, help="Tokenizer to count with; default: estimate.")] = None,
    json: JsonOption = False,
) -> None:
    """Print tokens, epochs and shares per source and language of a training mixture, before anything is trained."""
    from openafm.data.mixtures import count_source
    from openafm.data.pipeline.mixture_plan import MixtureConfig, plan_mixture, write_description
    from openafm.tokenizer.bpe import Tokenizer

    if not sources:
        if stage is None:
            raise UsageError("a mixture needs sources, as PATH or PATH=WEIGHT, or a --stage of the report")
        mixture_stages.print_stage(stage, json)
        return
    config = MixtureConfig(tokens=tokens, temperature=temperature, max_epochs=max_epochs, multilingual=multilingual)
    counter = None if tokenizer is None else Tokenizer.load(tokenizer)
    factors = _factors(domains or [])
    if stage is not None:
        counted = mixture_stages.stage_sources(stage, sources, counter)
    else:
        counted = [count_source(name, path, counter, weight) for name, (path, weight) in _weighted(sources).items()]
    if factors:
        counted = [part for source in counted for part in _by_domain(source, factors, out, counter)]
    plan = plan_mixture(counted, config)
    if out is not None:
        write_description(plan, counted, out)
    if json:
        print_json({**asdict(plan), "multilingual": plan.multilingual})
        return
    rows = [
        (
            cell.source,
            cell.language,
            cell.tokens,
            round(plan.tokens * cell.share),
            f"{cell.share:.2%}",
            round(cell.epochs, 2),
        )
        for cell in plan.cells
    ]
    print_table(("source", "language", "tokens", "trained on", "share", "epochs"), rows)
    for source in counted:
        note = ", tokens estimated" if source.is_estimated else ""
        print_text(f"{source.name}: {plan.share_of(source.name):.2%} of the mixture{note}")
    print_text(f"{plan.tokens:,} tokens, {plan.multilingual:.1%} in languages other than English")
    if plan.tokens < plan.wanted_tokens:
        print_text(f"{plan.wanted_tokens:,} tokens were asked for; every source reaches {max_epochs:g} epochs before")
    if out is not None:
        print_text(f"wrote {out}; train with: openafm train on_device.pretrain --data {out}")


def _factors(arguments: list[str]) -> dict[str, float]:
    """Return the factors of DOMAIN=FACTOR arguments.

    Raises:
        UsageError: a factor is not a number of 0 or more.
    """
    factors = {}
    for argument in arguments:
        domain, _, number = argument.rpartition("=")
        try:
            factor = float(number) if domain else -1.0
        except ValueError:
            factor = -1.0
        if not 0 <= factor < float("inf"):
            raise UsageError(f"--domain {argument} is not DOMAIN=FACTOR with a factor of 0 or more, such as example.org=3")
        factors[domain.lower()] = factor
    return factors


def _by_domain(source: Source, factors: dict[str, float], out: Path | None, tokenizer: Tokenizer | None) -> list[Source]:
    """Return the parts of a source by domain. The parts are kept beside the description, if there is one."""
    from openafm.data.pipeline.domain_weights import split_by_domain, weighted_by_domain
    from openafm.data.pipeline.mixture_plan import count_tokens

    with tempfile.TemporaryDirectory(prefix="openafm-") as temporary:
        folder = Path(temporary) if out is None else out.with_suffix(".domains")
        parts = split_by_domain(Path(source.path), list(factors), folder / source.name)
        counted = {name: count_tokens(name, path, tokenizer) for name, path in parts.items()}
        return weighted_by_domain(source, counted, factors)


def _weighted(arguments: list[str]) -> dict[str, tuple[Path, float | None]]:
    """Return path and weight of PATH=WEIGHT arguments by unique names.

    Raises:
        UsageError: a path does not exist, or a weight is not a positive number.
    """
    found: dict[str, tuple[Path, float | None]] = {}
    for argument in arguments:
        text, equals, number = argument.rpartition("=")
        path = Path(text if equals else argument)
        if not path.exists():
            raise UsageError(f"{path} does not exist; pass PATH or PATH=WEIGHT")
        try:
            weight = float(number) if equals else None
        except ValueError:
            weight = 0.0
        if weight is not None and not 0 < weight < float("inf"):
            raise UsageError(f"the weight in {argument} is not a number above 0")
        stem = path.resolve().name.partition(".")[0] or "source"
        name = next(each for each in (stem, *(f"{stem}-{i}" for i in range(2, 1000))) if each not in found)
        found[name] = (path, weight)
    return found


def _expanded(patterns: list[str]) -> list[Path]:
    """Return the paths of quoted patterns; a pattern without a match stays, and is reported as missing."""
    return [Path(found) for pattern in patterns for found in (sorted(glob.glob(pattern, recursive=True)) or [pattern])]  # noqa: PTH207


def _absolute(plugin: str) -> str:
    """Return a plugin under a name that worker processes find from any folder."""
    return str(Path(plugin).resolve()) if plugin.endswith(".py") else plugin
