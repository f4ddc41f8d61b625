"""Image-text pairs from WARC files: pairs per CPU second, beside a plain loop with the same steps.

    python benchmarks/image_pipeline.py [--quick] [--json]

A generated site with drawn pictures is written as one WARC file. openafm runs `images.recipe` without interleaved documents
in one worker. The peer (`imagepipeline/peer_loop.py`) does in one loop what img2dataset-like programs do: links and alt
texts by resiliparse, py3langid, decoding by Pillow, limits of size and aspect, the same rules for alt texts, imagehash, tar
files by webdataset. It holds all images in memory, cannot be resumed, and keeps no reasons. CPU seconds count all processes,
imports included. `pairs_per_core_s` is images of pages (kept or dropped) per CPU second; `uncounted` are those that are
neither. `identical` is True if 1, 2 and, in a full run, 4 workers and Ray write equal bytes. A full run writes
docs/benchmarks/image_pipeline.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.core.executors import ExecutorConfig, LocalConfig, RayConfig
from openafm.data.pairs.runner import run_pairs
from openafm.data.web.documents import Page
from openafm.data.web.permissions.opt_out import training_opt_out
from openafm.data.web.warc import Capture, capture_bytes
from openafm.recipes.pipelines.images import recipe

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "image_pipeline.json"
PEER = Path(__file__).parent / "imagepipeline" / "peer_loop.py"
SEED = 5
FETCHED_AT = "2026-01-01T00:00:00+00:00"


def main() -> None:
    parser = benchmark_parser(__doc__, "fewer pages")
    parser.add_argument("--run", nargs=2, type=Path, metavar=("WARC", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(*options.run, LocalConfig(num_workers=1))))
        return
    with tempfile.TemporaryDirectory(prefix="openafm-") as folder:
        hand_in(measure(Path(folder), quick=options.quick), REPORT, options)


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    warc = write_warc(folder / "site.warc.gz", num_pages=80 if quick else 400)
    ours = measured([sys.executable, __file__, "--run", str(warc), str(folder / "pairs")])
    pairs = ours["counts"]["pairs"]
    figures: dict[str, Any] = {
        "pairs_per_core_s": round(pairs["in"] / ours["cpu_s"], 1),
        "uncounted": sum(each["in"] - each["kept"] - sum(each["dropped"].values()) for each in ours["counts"].values()),
        "pairs": pairs["in"],
        "kept": pairs["kept"],
        "mb": round(warc.stat().st_size / 1e6, 1),
    }
    executors: list[ExecutorConfig] = [LocalConfig(num_workers=2)]
    if not quick:
        executors.append(LocalConfig(num_workers=4))
        executors += [RayConfig(num_workers=2)] if importlib.util.find_spec("ray") else []
    digests = [run(warc, folder / f"{index}", executor)["digest"] for index, executor in enumerate(executors)]
    figures["identical"] = set(digests) == {ours["digest"]}
    figures["executors"] = 1 + len(digests)
    if importlib.util.find_spec("webdataset") and importlib.util.find_spec("imagehash"):
        peer = measured([sys.executable, str(PEER), str(warc), str(folder / "peer")])
        figures |= {
            "pairs_per_core_s_peer": round(peer["in"] / peer["cpu_s"], 1),
            "ratio": round(pairs["in"] * peer["cpu_s"] / peer["in"] / ours["cpu_s"], 2),
            "kept_peer": peer["kept"],
        }
    return {"figures": figures}


def run(warc: Path, out: Path, executor: ExecutorConfig) -> dict[str, Any]:
    """Make the pairs of a WARC file; return the counts and the digest of the corpus."""
    manifest = run_pairs(replace(recipe(), interleaved=None, shard_mb=8, executor=executor), [warc], out)
    return {"counts": manifest.config["counts"], "digest": manifest.digest}


def write_warc(path: Path, num_pages: int) -> Path:
    """Write the pages and pictures of a generated site."""
    from openafm.data.sites import SiteConfig  # not in the process that is measured

    site = SiteConfig(
        seed=SEED, num_pages=num_pages, pictures=True, traps=False, script_share=0.0, charset_share=0.0
    ).build()
    with path.open("wb") as file:
        for name, page in site.pages.items():
            file.write(_capture(name, page.html, dict(page.headers)))
        for name, asset in site.assets.items():
            if name.startswith("/pictures/"):
                file.write(_capture(name, asset.body, {"content-type": asset.content_type, **asset.headers}))
    return path


def _capture(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    is_image = headers["content-type"].startswith("image/")
    url = f"https://site.example{path}"
    opt_out = training_opt_out(url, headers, b"" if is_image else body, is_image=is_image)
    return capture_bytes(Capture(page=Page(url=url, body=body, headers=headers, fetched_at=FETCHED_AT, opt_out=opt_out)))


def measured(command: list[str]) -> dict[str, Any]:
    """Run a command that prints a JSON object last; return it with the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"image_pipeline: {command[1]} failed:\n{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "cpu_s": cpu_s}


if __name__ == "__main__":
    main()
