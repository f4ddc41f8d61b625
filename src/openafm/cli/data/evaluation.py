"""`openafm data evaluation-sets`: write the evaluation sets of drawn images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table, print_text


def evaluation_sets(
    names: Annotated[
        list[str], typer.Argument(metavar="SET...", help="flyers, charts, reading, spatial, hallucination, or all.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; each set gets a folder in it. A run in it is resumed.")],
    languages: Annotated[str, typer.Option(help="Language tags separated by commas, or all.")] = "all",
    count: Annotated[int, typer.Option(min=1, help="Documents of each generator of a set.")] = 320,
    seed: Annotated[int, typer.Option(help="Seed; results are reported on the default one.")] = 20250717,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; default: one per core.")] = None,
    json: JsonOption = False,
) -> None:
    """Write evaluation sets of drawn images: held-out images, questions as JSONL, and a card."""
    from openafm.core.executors import LocalConfig
    from openafm.data.drawing.evaluation import EVALUATION_SETS, write_evaluation_set
    from openafm.data.synthetic.languages import LANGUAGES

    chosen = LANGUAGES if languages == "all" else tuple(dict.fromkeys(filter(None, languages.split(","))))
    rows = []
    for name in EVALUATION_SETS if names == ["all"] else dict.fromkeys(names):
        folder = out / name
        manifest = write_evaluation_set(
            name, folder, count=count, languages=chosen, seed=seed, executor=LocalConfig(num_workers=workers or 0)
        )
        dropped = sum(manifest.dropped.values())
        rows.append({"set": name, "documents": manifest.num_documents, "images": manifest.num_images, "dropped": dropped})
    if json:
        print_json({"path": str(out), "sets": rows})
        return
    print_table(("set", "documents", "images", "dropped"), [tuple(row.values()) for row in rows])
    print_text(f"each set has a card: {out}/*/card.md")
