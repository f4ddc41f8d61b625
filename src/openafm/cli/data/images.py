"""`openafm data images`: image-text pairs and interleaved documents from crawled pages."""

from __future__ import annotations

import glob
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.options import PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError


def images(
    inputs: Annotated[list[str], typer.Argument(metavar="WARC...", help="WARC files, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the image corpus; a run in it is resumed.")],
    recipe: Annotated[
        str, typer.Option(help="The pipeline, or your own function that returns one: ./file.py:function.")
    ] = "images.recipe",
    overrides: Annotated[
        Path | None, typer.Option(help="TOML file of publishers whose images are dropped (docs/images.md).")
    ] = None,
    ocr: Annotated[
        bool, typer.Option("--ocr", help="Drop images full of text, and texts that only repeat it; needs tesseract.")
    ] = False,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; default: one per core.")] = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    ray_address: Annotated[str, typer.Option(help="Address of a Ray cluster; default: one on this machine.")] = "",
    json: JsonOption = False,
) -> None:
    """Make image-text pairs and interleaved documents from crawled pages. Repeat the command to resume.

    Crawl with `openafm data crawl URL --out crawl --set images=true`, so that the WARC files have the images.
    """
    from openafm.core.config import override
    from openafm.core.executors import ExecutorConfig, LocalConfig, RayConfig
    from openafm.data.pairs.filters import OverridesConfig
    from openafm.data.pairs.ocr import OcrConfig
    from openafm.data.pairs.runner import run_pairs
    from openafm.recipes.pipelines.images import build_image_pipeline

    kinds: dict[str, ExecutorConfig] = {
        "local": LocalConfig(num_workers=workers or 0),
        "ray": RayConfig(address=ray_address, num_workers=workers or 0),
    }
    if executor not in kinds:
        raise UsageError(f"unknown executor '{executor}'; use {' or '.join(kinds)}")
    config = override(build_image_pipeline(recipe), parse_changes(changes))
    listed = (OverridesConfig(file=str(overrides.resolve())),) if overrides is not None else ()
    config = replace(config, pair_filters=(*listed, *config.pair_filters, *([OcrConfig()] if ocr else [])))
    more = (str(Path(each).resolve()) if each.endswith(".py") else each for each in plugins or ())
    config = replace(config, executor=kinds[executor], plugins=tuple(dict.fromkeys((*config.plugins, *more))))
    paths = [Path(path) for each in inputs for path in (sorted(glob.glob(each, recursive=True)) or [each])]  # noqa: PTH207
    manifest = run_pairs(config, paths, out)
    counts = manifest.config["counts"]
    if not counts["images"]["in"]:
        print("warning: the WARC files have no images; crawl with --set images=true", file=sys.stderr)
    if json:
        print_json({"path": str(out), "digest": manifest.digest, "kinds": manifest.kinds, "counts": counts})
        return
    rows = [
        (name, unit["in"], unit["kept"], reason, count)
        for name, unit in counts.items()
        for reason, count in (unit["dropped"] or {"-": 0}).items()
    ]
    print_table(("of", "in", "kept", "dropped for", "number"), rows)
    kept = ", ".join(f"{count:,} {kind}" for kind, count in manifest.kinds.items()) or "nothing"
    print_text(f"wrote {kept}, {counted(manifest.num_images, 'image')} to {out}; see: openafm data report {out}")
