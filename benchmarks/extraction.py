"""Extraction of main content: F1 and documents per core second on public gold texts, with peers beside it.

    python benchmarks/extraction.py --data ZYTE [--data990 TRAFILATURA_TESTS] [--quick] [--json]

ZYTE is a copy of GitHub scrapinghub/article-extraction-benchmark. The shipped classifier was tuned on the half of its pages
that `openafm/data/extraction/tuning_ids.txt` lists; figures are of the other half. F1 is that of the benchmark: shingles
of four words, precision and recall averaged over pages. TRAFILATURA_TESTS is the folder `tests` of GitHub adbar/trafilatura:
990 pages with wanted and unwanted segments. Nothing was trained on them, but errors on them were looked at and a few
thresholds compared (docs/benchmarks.md). All write plain lines without comments and links.
They extract each page in turn, so that the ratios of their rates hold on a busy host.
Peers are measured where they are installed. Exit code 3 without the data. A full run writes docs/benchmarks/extraction.json.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.data.extraction import ExtractionConfig
from openafm.data.extraction.train import read_benchmark, tuning_ids
from openafm.data.web.documents import Page, WebDocument

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "extraction.json"
NO_DATA = 3
LINKS = b"<html><body>" + b"<p><a href='/'>Home</a></p>" * 20 + b"</body></html>"
WORD = re.compile(r"\w+")
Extract = Callable[[bytes], str]


def main() -> None:
    parser = benchmark_parser(__doc__, "every sixth page")
    parser.add_argument("--data", type=Path, help="copy of the article benchmark")
    parser.add_argument("--data990", type=Path, help="folder tests of trafilatura")
    options = parser.parse_args()
    if options.data is None or not (options.data / "ground-truth.json").is_file():
        print("extraction: no article benchmark; pass a copy of it with --data", file=sys.stderr)
        sys.exit(NO_DATA)
    hand_in(measure(options.data, options.data990, step=6 if options.quick else 1), REPORT, options)


def measure(data: Path, data990: Path | None, step: int) -> dict[str, Any]:
    pages = read_benchmark(data)
    held_out = [name for name in pages if name not in tuning_ids()][::step]
    segments = read_segments(data990, step) if data990 is not None else {}
    figures: dict[str, Any] = {"pages": len(held_out), "pages_990": len(segments)}
    for name, run in timed(extractors(), {page: pages[page][0] for page in held_out}).items():
        suffix = "" if name == "openafm" else f"_{name}"
        scores = shingle_scores({page: (pages[page][1], run.texts[page]) for page in held_out})
        figures |= {f"{key}{suffix}": round(value, 4) for key, value in scores.items()}
        figures[f"docs_per_core_s{suffix}"] = round(len(held_out) / run.seconds, 1)
    if segments:
        for name, run in timed(extractors(), {page: entry["body"] for page, entry in segments.items()}).items():
            suffix = "" if name == "openafm" else f"_{name}"
            figures[f"f1_990{suffix}"] = round(segment_f1(segments, run.texts), 4)
            figures[f"docs_per_core_s_990{suffix}"] = round(len(segments) / run.seconds, 1)
    return {"figures": figures}


def extractors() -> dict[str, Extract]:
    """The extractors by name: the shipped cascade, its classifier alone, and the peers."""
    cascade = ExtractionConfig(structure=False, links=False, min_chars=1).build()
    alone = ExtractionConfig(structure=False, links=False, min_chars=1, fallback_below=0.0).build()

    def by(extractor: Any) -> Extract:
        def run(body: bytes) -> str:
            document = extractor.extract(Page(url="", body=body))
            return document.text if isinstance(document, WebDocument) else ""

        return run

    return {"openafm": by(cascade), "classifier": by(alone), "trafilatura": _trafilatura, "resiliparse": _resiliparse}


def _trafilatura(body: bytes) -> str:
    import trafilatura

    return trafilatura.extract(body, include_comments=False, favor_precision=True) or ""


def _resiliparse(body: bytes) -> str:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import detect_encoding
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse_from_bytes(body, detect_encoding(body))
    return str(extract_plain_text(tree, main_content=True, alt_texts=False, list_bullets=False, comments=False))


@dataclass
class Run:
    """The texts of one extractor, and its CPU seconds."""

    texts: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def timed(extractors: Mapping[str, Extract], bodies: Mapping[str, bytes]) -> dict[str, Run]:
    """What each extractor returns for each page. All of them extract a page before the next one, each time in another order.

    So other processes slow all of them down alike. Two extractions before load what is loaded once; the second is of a page
    of links, for which the cascade asks trafilatura.
    """
    for extract in extractors.values():
        for body in (*list(bodies.values())[:1], LINKS):
            extract(body)
    runs = {name: Run() for name in extractors}
    order = list(extractors)
    for name, body in bodies.items():
        for extractor in order:
            start = time.process_time()
            runs[extractor].texts[name] = extractors[extractor](body)
            runs[extractor].seconds += time.process_time() - start
        order.append(order.pop(0))
    return runs


def shingle_scores(pairs: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    """Precision and recall of four-word shingles, averaged over pages, and their F1. Pages are (gold, found)."""
    precisions, recalls = [], []
    for gold, found in pairs.values():
        wanted, given = _shingles(gold), _shingles(found)
        common = sum((wanted & given).values())
        if given:
            precisions.append(common / given.total())
        if wanted:
            recalls.append(common / wanted.total())
    precision, recall = (sum(values) / max(len(values), 1) for values in (precisions, recalls))
    return {"f1": 2 * precision * recall / max(precision + recall, 1e-9), "precision": precision, "recall": recall}


def _shingles(text: str) -> Counter[tuple[str, ...]]:
    words = WORD.findall(text)
    return Counter(tuple(words[start : start + 4]) for start in range(max(1, len(words) - 3)) if words)


def read_segments(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """The payload, wanted and unwanted segments of each page of the 990-page set."""
    entries = json.loads((folder / "evaldata.json").read_text(encoding="utf-8"))
    result = {}
    for url in sorted(entries)[::step]:
        paths = (folder / part / entries[url]["file"] for part in ("cache", "eval"))
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            result[url] = {"body": path.read_bytes(), "with": entries[url]["with"], "without": entries[url]["without"]}
    return result


def segment_f1(segments: Mapping[str, dict[str, Any]], texts: Mapping[str, str]) -> float:
    """F1 over all segments: wanted ones in the text are hits, unwanted ones false alarms. White space is normalized."""
    hits = alarms = wanted = 0
    for name, entry in segments.items():
        text = " ".join(texts[name].split())
        hits += sum(" ".join(segment.split()) in text for segment in entry["with"])
        alarms += sum(" ".join(segment.split()) in text for segment in entry["without"])
        wanted += len(entry["with"])
    return 2 * hits / max(hits + alarms + wanted, 1)


if __name__ == "__main__":
    main()
