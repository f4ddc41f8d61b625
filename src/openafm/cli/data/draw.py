"""`openafm data draw`: draw images with exact truth into an image corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, counted, print_json, print_table, print_text
from openafm.core.errors import UsageError


def draw(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the image corpus; a run in it is resumed.")],
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND]...", help="What to draw: charts, tables, documents, flyers, ..., or all."),
    ] = None,
    languages: Annotated[str, typer.Option(help="Language tags separated by commas, or all.")] = "all",
    count: Annotated[int, typer.Option(min=1, help="Documents of each kind.")] = 1000,
    seed: Annotated[int, typer.Option(help="Another seed draws other documents.")] = 0,
    split: Annotated[str, typer.Option(help="train or held_out: designs, fonts and words of the splits differ.")] = "train",
    pdf: Annotated[
        list[Path] | None, typer.Option("--pdf", exists=True, help="PDF files or folders of them; adds their pages.")
    ] = None,
    pages: Annotated[
        list[Path] | None, typer.Option("--pages", exists=True, help="HTML or WARC files, or folders; tables to draw too.")
    ] = None,
    renderer: Annotated[str, typer.Option(help="What lays tables out: pillow, or chromium (docs/data.md).")] = "pillow",
    check: Annotated[
        bool, typer.Option("--check", help="Verify the truth of each drawing; drop those with errors.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; default: one per core.")] = None,
    executor: Annotated[str, typer.Option(help="local or ray.")] = "local",
    ray_address: Annotated[str, typer.Option(help="Address of a Ray cluster; default: one on this machine.")] = "",
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Draw images whose texts, boxes, questions and answers are known. Repeat the command to resume it."""
    from openafm.core.executors import ExecutorConfig, LocalConfig, RayConfig
    from openafm.data.drawing.corpus import DrawingConfig, draw_corpus
    from openafm.data.drawing.generators import generator_config, generator_names
    from openafm.data.drawing.tables import TablesConfig
    from openafm.data.pipeline.inputs import find_inputs
    from openafm.data.synthetic.languages import LANGUAGES

    executors: dict[str, ExecutorConfig] = {
        "local": LocalConfig(num_workers=workers or 0),
        "ray": RayConfig(address=ray_address, num_workers=workers or 0),
    }
    if executor not in executors:
        raise UsageError(f"unknown executor '{executor}'; use {' or '.join(executors)}")
    if split not in ("train", "held_out"):
        raise UsageError(f"unknown split '{split}'; use train or held_out")
    names = generator_names() if kinds == ["all"] else tuple(dict.fromkeys(kinds or ()))
    if pages and "tables" not in names:
        raise UsageError("--pages needs the kind tables: openafm data draw tables --pages FOLDER")
    html = tuple(map(str, find_inputs(pages, (".html", ".htm", ".warc", ".warc.gz"))) if pages else ())
    chosen = LANGUAGES if languages == "all" else tuple(dict.fromkeys(filter(None, languages.split(","))))
    config = DrawingConfig(
        generators=tuple(
            TablesConfig(pages=html, renderer=renderer) if name == "tables" else generator_config(name) for name in names
        ),
        pdfs=tuple(map(str, find_inputs(pdf, (".pdf",))) if pdf else ()),
        languages=chosen,
        count=count,
        seed=seed,
        split="train" if split == "train" else "held_out",
        check=check,
    )
    manifest = draw_corpus(config, out, executors[executor])
    if json:
        print_json(
            {
                "path": str(out),
                "digest": manifest.digest,
                "documents": manifest.num_documents,
                "images": manifest.num_images,
                "kinds": manifest.kinds,
                "languages": manifest.languages,
                "dropped": manifest.dropped,
            }
        )
        return
    rows = list(manifest.kinds.items())
    rows += [(f"dropped: {reason}", number) for reason, number in manifest.dropped.items()]
    print_table(("", "documents"), rows)
    print_text(f"wrote {counted(manifest.num_documents, 'document')} to {out}; see: openafm data report {out}")
