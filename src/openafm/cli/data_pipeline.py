"""`openafm data run`, `report`, `try` and `mixture`: from web pages to the shares of a training mixture."""

from __future__ import annotations

import glob
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table, print_text
from openafm.core.errors import UsageError

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
    from openafm.core.config import override
    from openafm.core.executors import ExecutorConfig, LocalConfig, RayConfig
    from openafm.data.pipeline.runner import run_pipeline
    from openafm.recipes.web import build_pipeline

    kinds: dict[str, ExecutorConfig] = {
        "local": LocalConfig(num_workers=workers or 0),
        "ray": RayConfig(address=ray_address, num_workers=workers or 0),
    }
    if executor not in kinds:
        raise UsageError(f"unknown executor '{executor}'; use {' or '.join(kinds)}")
    config = override(build_pipeline(recipe), parse_changes(changes))
    config = replace(
        config, executor=kinds[executor], plugins=tuple(dict.fromkeys((*config.plugins, *map(_absolute, plugins or ()))))
    )
    manifest = run_pipeline(config, [*_expanded(inputs or []), *(more or [])], out)
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
    print_text(f"wrote {manifest.num_kept:,} of {manifest.num_in:,} documents to {out}; see: openafm data report {out}")


def report(
    corpus: Annotated[Path, typer.Argument(help="Folder that `openafm data run` wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML page; default: report.html in the corpus.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what a corpus keeps and what was dropped, why, by language, domain and length; write an HTML page with plots."""
    from openafm.data.pipeline.report import corpus_report, write_html

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
    print_text(f"wrote {path}")


def try_page(
    place: Annotated[str, typer.Argument(metavar="URL_OR_FILE", help="A URL, an HTML file, or a WARC file.")],
    recipe: Annotated[str, typer.Option(help="The pipeline.")] = "web.recipe",
    url: Annotated[str, typer.Option(help="URL of the page: of an HTML file, or the one to take from a WARC file.")] = "",
    changes: SetOption = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Take one page through every step of a pipeline and show each step's result."""
    from openafm.core.config import override
    from openafm.data.pipeline.trial import open_page, try_steps
    from openafm.recipes.web import build_pipeline

    config = override(build_pipeline(recipe), parse_changes(changes))
    results = list(try_steps(config, open_page(place, url)))
    if json:
        print_json([asdict(result) for result in results])
        return
    for result in results:
        print_text(f"{result.stage} / {result.step}: {result.outcome} ({1000 * result.seconds:.1f} ms)")
        for line in result.changes:
            print_text(f"    {line}")


def _expanded(patterns: list[str]) -> list[Path]:
    """Return the paths of quoted patterns; a pattern without a match stays, and is reported as missing."""
    return [Path(found) for pattern in patterns for found in (sorted(glob.glob(pattern, recursive=True)) or [pattern])]  # noqa: PTH207


def _absolute(plugin: str) -> str:
    """Return a plugin under a name that worker processes find from any folder."""
    return str(Path(plugin).resolve()) if plugin.endswith(".py") else plugin
