"""The web pipeline from WARC to deduplicated Parquet: documents per CPU second, beside datatrove with the same filters.

    python benchmarks/web_pipeline.py [--data FOLDER] [--peer PYTHON] [--quick] [--json]

Both read one WARC file and extract main texts, keep sixteen languages (py3langid on the same characters), drop texts below
200 letters, mask e-mail and IP addresses, and remove near duplicates by MinHash. FOLDER has pages as .html or .html.gz;
without it the pages are those of a generated site, which are short. Every fifth page is added again with a changed sentence.
PYTHON is that of an environment with datatrove[io,processing], py3langid, spacy and lxml_html_clean; without it there is no
`ratio`. CPU seconds count all processes, imports included. `uncounted` are pages that are neither kept nor dropped with a
reason. A full run writes docs/benchmarks/web_pipeline.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.core.config import dump
from openafm.core.executors import LocalConfig
from openafm.data.deduplication import MinHashConfig
from openafm.data.filtering import LanguageConfig, LengthConfig, PrivacyConfig
from openafm.data.pipeline.config import (
    DeduplicationStageConfig,
    ExtractionStageConfig,
    PipelineConfig,
)
from openafm.data.sites import SiteConfig
from openafm.data.web.documents import Page
from openafm.data.web.warc import Capture, capture_bytes
from openafm.recipes.pipelines.web import recipe

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "web_pipeline.json"
PEER = Path(__file__).parent / "webpipeline" / "datatrove_pipeline.py"
SEED = 7
FETCHED_AT = "2026-01-01T00:00:00Z"
RUN = """
import json, sys
from pathlib import Path
from openafm.core.config import from_dict
from openafm.core.registry import load_plugins
load_plugins(json.loads(sys.argv[4]))
from openafm.data.pipeline.config import PipelineConfig
from openafm.data.pipeline.runner import run_pipeline
manifest = run_pipeline(from_dict(PipelineConfig, json.loads(sys.argv[1])), [Path(sys.argv[2])], Path(sys.argv[3]))
dropped = sum(sum(stage.dropped.values()) for stage in manifest.stages)
print(json.dumps({"read": manifest.num_in, "kept": manifest.num_kept, "dropped": dropped}))
"""


def main() -> None:
    parser = benchmark_parser(__doc__, "fewer pages")
    parser.add_argument("--data", type=Path, help="folder of pages")
    parser.add_argument("--peer", type=Path, help="Python of an environment with datatrove")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openafm-") as folder:
        hand_in(measure(Path(folder), options), REPORT, options)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    warc, num_pages, num_bytes = write_warc(folder, options)
    ours = measured([sys.executable, "-c", RUN, dump(pipeline()), str(warc), str(folder / "corpus"), json.dumps(MODULES)])
    figures = {
        "docs_per_core_s": round(num_pages / ours["cpu_s"], 1),
        "mb_per_core_s": round(num_bytes / 1e6 / ours["cpu_s"], 1),
        "uncounted": num_pages - ours["kept"] - ours["dropped"],
        "kept": ours["kept"],
        "pages": num_pages,
        "mb": round(num_bytes / 1e6, 1),
    }
    if options.peer is not None:
        peer = measured([str(options.peer), str(PEER), str(warc.parent), str(folder / "peer")])
        figures |= {
            "docs_per_core_s_datatrove": round(num_pages / peer["cpu_s"], 1),
            "ratio": round(peer["cpu_s"] / ours["cpu_s"], 2),
            "uncounted_datatrove": num_pages - peer["kept"] - peer["dropped"],
            "kept_datatrove": peer["kept"],
        }
    return {"figures": figures}


def pipeline() -> PipelineConfig:
    """The recipe's extraction and the filters that the peer has too, both in one stage as the peer has them."""
    extract = recipe().stages[0]
    assert isinstance(extract, ExtractionStageConfig)
    filters = (LanguageConfig(), LengthConfig(), PrivacyConfig(mask=("email", "ip")))
    return PipelineConfig(
        stages=(replace(extract, filters=filters), DeduplicationStageConfig(deduplication=MinHashConfig())),
        executor=LocalConfig(num_workers=1),
    )


MODULES = ["openafm.recipes.pipelines.web", "openafm.data.deduplication", "openafm.data.filtering"]


def write_warc(folder: Path, options: argparse.Namespace) -> tuple[Path, int, int]:
    """Write the pages and the near duplicates; return the file, and the number and bytes of the pages."""
    path = folder / "warc" / "pages.warc.gz"
    path.parent.mkdir()
    num_pages = num_bytes = 0
    with path.open("wb") as file:
        for page in pages(options):
            file.write(capture_bytes(Capture(page=page)))
            num_pages += 1
            num_bytes += len(page.body)
    return path, num_pages, num_bytes


def pages(options: argparse.Namespace) -> Iterator[Page]:
    for index, (url, body, content_type) in enumerate(_originals(options)):
        yield _page(url, body, content_type)
        if index % 5 == 0:
            yield _page(f"{url}?copy", body.replace(b"</p>", b" One changed sentence.</p>", 1), content_type)


def _page(url: str, body: bytes, content_type: str) -> Page:
    return Page(url=url, body=body, headers={"content-type": content_type}, fetched_at=FETCHED_AT)


def _originals(options: argparse.Namespace) -> Iterator[tuple[str, bytes, str]]:
    if options.data is None:
        site = SiteConfig(seed=SEED, num_pages=150 if options.quick else 1_500, script_share=0.0, opt_out_share=0.0).build()
        for path, page in site.pages.items():
            yield f"https://site.example{path}", page.html, page.headers.get("content-type", "text/html")
        return
    files = sorted(file for file in options.data.rglob("*") if file.name.endswith((".html", ".html.gz")))
    for index, file in enumerate(files[:600] if options.quick else files):
        body = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        yield f"https://page{index}.example/", body, "text/html"


def measured(command: list[str]) -> dict[str, Any]:
    """Run a command that prints a JSON object last; return it with the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"web_pipeline: {command[0]} failed:\n{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "cpu_s": cpu_s}


if __name__ == "__main__":
    main()
