"""Deduplication of shards that are lists of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from openafm.data.deduplication.base import Deduplication, DeduplicationConfig
from openafm.data.web.documents import Dropped, WebDocument

Outcomes = list[list[WebDocument | Dropped]]
Run = Callable[[DeduplicationConfig, Sequence[Sequence[WebDocument]]], Outcomes]


def write_signatures(method: Deduplication, shards: Sequence[Sequence[WebDocument]], folder: Path) -> list[Path]:
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index}.parquet" for index in range(len(shards))]
    for shard, path in zip(shards, paths, strict=True):
        pq.write_table(method.signatures(shard), path)
    return paths


def deduplicate(config: DeduplicationConfig, shards: Sequence[Sequence[WebDocument]], folder: Path) -> Outcomes:
    """Return the outcome of each document, by shard."""
    method = config.build()
    paths, out = write_signatures(method, shards, folder), folder / "decisions.parquet"
    method.decide(paths, out)
    assert sorted(folder.iterdir()) == sorted([*paths, out])  # no working files are left
    outcomes: Outcomes = []
    for index, shard in enumerate(shards):
        decisions = method.read_decisions(out, index)
        outcomes.append([method.apply(each, position, decisions) for position, each in enumerate(shard)])
    dropped = [each for shard in outcomes for each in shard if isinstance(each, Dropped)]
    assert {each.reason for each in dropped} <= set(config.REASONS)
    return outcomes


def kept(outcomes: Outcomes) -> list[WebDocument]:
    """Return the documents that are kept, in order."""
    return [each for shard in outcomes for each in shard if isinstance(each, WebDocument)]


def kept_ids(outcomes: Outcomes) -> list[str]:
    """Return the identifiers of the documents that are kept, in order."""
    return [each.id for each in kept(outcomes)]


def document(name: str, text: str, url: str = "", quality: float | None = None) -> WebDocument:
    """Return a document with a URL of its own, unless one is given."""
    metadata = {} if quality is None else {"quality.score": str(quality)}
    return WebDocument(id=name, url=url or f"https://a.example/{name}", text=text, metadata=metadata)
