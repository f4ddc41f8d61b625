"""The peer of web_pipeline.py in datatrove; run by the Python of an environment with datatrove.

PYTHON datatrove_pipeline.py WARC_FOLDER OUT
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import ParquetReader, WarcReader
from datatrove.pipeline.writers import ParquetWriter

LANGUAGES = ["en", "da", "nl", "fr", "de", "it", "no", "nb", "pt", "es", "sv", "tr", "zh", "ja", "ko", "vi"]
MIN_LETTERS = 200


def has_language(document: Any) -> bool:
    """Keep the sixteen languages, by py3langid on as many characters as openafm reads."""
    import py3langid

    language, _ = py3langid.classify(re.sub(r"[#*_|>\d-]+", " ", document.text[:1200]))
    document.metadata["language"] = language
    return language in LANGUAGES


def is_long(document: Any) -> bool:
    least = 60 if document.metadata["language"] in ("zh", "ja", "ko") else MIN_LETTERS
    return sum(map(str.isalnum, document.text)) >= least


def main(warc: str, out: Path) -> None:
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    # Built one by one: the extractor forks processes, which hang if a word tokenizer was loaded before.
    stages: list[Callable[[], list[Any]]] = [
        lambda: [
            WarcReader(warc, glob_pattern="*.warc.gz"),
            Trafilatura(favour_precision=True, timeout=120),
            LambdaFilter(has_language),
            LambdaFilter(is_long),
            PIIFormatter(),
            ParquetWriter(str(out / "filtered")),
        ],
        lambda: [ParquetReader(str(out / "filtered")), MinhashDedupSignature(str(out / "signatures"), config=config)],
        lambda: [MinhashDedupBuckets(str(out / "signatures"), str(out / "buckets"), config=config)],
        lambda: [MinhashDedupCluster(str(out / "buckets"), str(out / "removed"), config=config)],
        lambda: [
            ParquetReader(str(out / "filtered")),
            MinhashDedupFilter(str(out / "removed")),
            ParquetWriter(str(out / "documents")),
        ],
    ]
    dropped = kept = read = 0
    for index, stage in enumerate(stages):
        tasks = config.num_buckets if index == 2 else 1
        stats = LocalPipelineExecutor(stage(), tasks=tasks, workers=1, logging_dir=str(out / f"log{index}")).run()
        for step in stats.stats:
            counts = {name: int(value.total) for name, value in step.stats.items()}
            dropped += sum(count for name, count in counts.items() if name.startswith("dropped"))
            if index == 0 and "WARC" in step.name.upper():
                read = counts.get("documents", 0)
            if index == 4 and "writer" in step.name.lower():
                kept = counts.get("total", 0)
    print(json.dumps({"read": read, "kept": kept, "dropped": dropped}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
