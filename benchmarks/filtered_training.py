"""Does filtered data train a better model? Held-out loss on clean text after equal training tokens, raw and filtered.

    python benchmarks/filtered_training.py [--quick] [--json]

The pages are those of a generated site with near duplicates. `raw` is all visible text of each page; `filtered` is what the
extraction and the filters of web.recipe keep; `deduplicated` is the whole recipe. The micro model trains on each with the
same tokenizer, budget and seeds. The held-out documents are the gold main texts of another site. Losses are means over the
seeds, in nats per token. A full run writes docs/benchmarks/filtered_training.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.cli.main import run
from openafm.core.executors import LocalConfig
from openafm.data.pipeline.runner import run_pipeline
from openafm.data.sites import Site, SiteConfig
from openafm.data.web.documents import Page
from openafm.data.web.permissions.opt_out import join_headers
from openafm.data.web.warc import Capture, capture_bytes
from openafm.data.web.warc_reader import read_pages
from openafm.recipes.pipelines.web import recipe

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "filtered_training.json"
LANGUAGES = ("en", "de", "fr", "es")
NUM_STAGES = {"filtered": 3, "deduplicated": None}
"""Stages of the recipe that make a variant."""


def main() -> None:
    options = benchmark_parser(__doc__, "one seed, few steps").parse_args()
    with tempfile.TemporaryDirectory(prefix="openafm-") as name:
        folder = Path(name)
        os.environ["OPENAFM_HOME"] = str(folder / "home")
        steps, seeds, num_pages = (4, 1, 200) if options.quick else (60, 3, 1_000)
        hand_in(measure(folder, steps, range(seeds), num_pages), REPORT, options)


def measure(folder: Path, steps: int, seeds: range, num_pages: int) -> dict[str, Any]:
    prepare(folder, num_pages)
    rows = {
        name: [held_out_loss(folder, name, steps, seed) for seed in seeds] for name in ("raw", "filtered", "deduplicated")
    }
    figures: dict[str, Any] = {f"loss_{name}": round(statistics.mean(losses), 4) for name, losses in rows.items()}
    figures |= {"steps": steps, "seeds": len(seeds), "pages": num_pages}
    return {"figures": figures, "losses": rows}


def prepare(folder: Path, num_pages: int) -> None:
    """Write the sources of each variant, the tokenizer and the held-out documents."""
    config = SiteConfig(seed=1, num_pages=num_pages, languages=LANGUAGES, duplicate_share=0.2, traps=False)
    warc = folder / "pages.warc.gz"
    warc.write_bytes(b"".join(capture_bytes(Capture(page=page)) for page in _pages(config.build())))
    _write_jsonl(folder / "raw.jsonl", _visible_texts(warc))
    for name, count in NUM_STAGES.items():
        pipeline = replace(recipe(), stages=recipe().stages[:count], executor=LocalConfig(num_workers=1))
        run_pipeline(pipeline, [warc], folder / name)
    clean = replace(config, seed=2, num_pages=100, duplicate_share=0.0).build()
    gold = ({"text": page.text, "language": page.language} for page in clean.pages.values() if page.text)
    _write_jsonl(folder / "held_out.jsonl", gold)
    _command(
        "tokenizer", "train", str(folder / "deduplicated"), "--vocab-size", "2048", "-o", str(folder / "tokenizer.json")
    )


def held_out_loss(folder: Path, variant: str, steps: int, seed: int) -> float:
    """Train the micro model and return its loss on the held-out documents."""
    source = folder / ("raw.jsonl" if variant == "raw" else variant)
    changes = {
        "trainer.budget": json.dumps({"type": "StepBudget", "num_steps": steps}),
        "trainer.seed": seed,
        "trainer.data.seed": seed,
        "trainer.data.rows_per_step": 4,
        "trainer.data.row_tokens": 256,
        "trainer.evaluation.num_batches": 32,
        "trainer.start": '{"type": "PlainStart"}',
    }
    output = _command(
        *("train", "on_device.pretrain", "--size", "micro", "--data", str(source), "--name", f"{variant}-{seed}", "--json"),
        *("--eval", str(folder / "held_out.jsonl"), "--tokenizer", str(folder / "tokenizer.json")),
        *("--output", str(folder / "runs" / f"{variant}-{seed}")),
        *(part for key, value in changes.items() for part in ("--set", f"{key}={value}")),
    )
    return float(json.loads(output.strip().splitlines()[-1])["held_out_loss"])


def _command(*arguments: str) -> str:
    """Run a command of openafm and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(arguments)
    if code:
        sys.exit(f"filtered_training: openafm {' '.join(arguments)} failed")
    return out.getvalue()


def _pages(site: Site) -> Iterator[Page]:
    for path, page in site.pages.items():
        headers = {"content-type": "text/html", **join_headers(page.headers.items())}
        yield Page(url=f"https://site.example{path}", body=page.html, headers=headers, status=page.status)


def _visible_texts(warc: Path) -> Iterator[dict[str, str]]:
    """Yield all visible text of each page that may be used for training, navigation and comments included."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    for page in read_pages(warc):
        if isinstance(page, Page) and not page.opt_out:
            yield {"text": extract_plain_text(bytes_to_str(page.body, detect_encoding(page.body)))}


def _write_jsonl(path: Path, rows: Iterator[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            if row["text"].strip():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
