"""A small extractor, filter and deduplication for tests of the pipeline, and pages that break their extractor."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openafm.data.deduplication.base import Deduplication, DeduplicationConfig
from openafm.data.extraction.base import PageExtractor, PageExtractorConfig
from openafm.data.filtering.base import DocumentFilter, FilterConfig
from openafm.data.web.documents import Dropped, Media, Page, WebDocument


class TagsExtractor(PageExtractor):
    def extract(self, page: Page) -> WebDocument | Dropped:
        body = page.body
        if b"HANG" in body:
            while True:
                pass
        if b"SEGFAULT" in body:
            os.kill(os.getpid(), signal.SIGSEGV)
        if b"ALLOCATE" in body:
            bytearray(4 << 30)
        if b"RECURSE" in body:
            json.loads("[" * 200_000)
        text = re.sub(r"<[^>]*>", "", body.decode("utf-8", "replace")).strip()
        if not text:
            return Dropped(reason="empty", url=page.url)
        if b"SURROGATE" in body:
            text += "\ud800"
        return WebDocument(
            id=hashlib.sha256(page.url.encode()).hexdigest()[:16],
            url=page.url,
            text=text,
            language="de" if "der" in text else "en",
            media=(Media(url="https://a.example/i.png", alt="Bild", offset=2),),
            metadata={"status": str(page.status)},
            extractor="tags",
            opt_out=page.opt_out,
        )


@dataclass(frozen=True, kw_only=True)
class TagsConfig(PageExtractorConfig):
    REASONS = ("empty",)

    def build(self) -> PageExtractor:
        return TagsExtractor()


class LengthFilter(DocumentFilter):
    def __init__(self, min_characters: int) -> None:
        self._min_characters = min_characters

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        if len(document.text) < self._min_characters:
            return Dropped(reason="too_short", detail=str(len(document.text)))
        return replace(document, text=document.text.upper())


@dataclass(frozen=True, kw_only=True)
class MinLengthConfig(FilterConfig):
    REASONS = ("too_short",)
    min_characters: int = 5

    def build(self) -> DocumentFilter:
        return LengthFilter(self.min_characters)


class EqualTexts(Deduplication):
    """Keeps the first document of each text."""

    def signatures(self, documents: Iterable[WebDocument]) -> Any:
        import pyarrow as pa

        rows = [{"id": document.id, "text": document.text} for document in documents]
        return pa.Table.from_pylist(rows, schema=pa.schema([("id", pa.string()), ("text", pa.string())]))

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        seen: set[str] = set()
        copies: list[dict[str, int]] = []
        for shard, path in enumerate(signatures):
            for position, row in enumerate(pq.read_table(path).to_pylist()):
                if row["text"] in seen:
                    copies.append({"shard": shard, "position": position})
                seen.add(row["text"])
        schema = pa.schema([("shard", pa.int64()), ("position", pa.int64())])
        pq.write_table(pa.Table.from_pylist(copies, schema=schema), out)

    def read_decisions(self, path: Path, shard: int) -> Any:
        import pyarrow.parquet as pq

        return {row["position"] for row in pq.read_table(path).to_pylist() if row["shard"] == shard}

    def apply(self, document: WebDocument, position: int, decisions: Any) -> WebDocument | Dropped:
        return Dropped(reason="duplicate") if position in decisions else document


@dataclass(frozen=True, kw_only=True)
class EqualTextsConfig(DeduplicationConfig):
    REASONS = ("duplicate",)

    def build(self) -> Deduplication:
        return EqualTexts()


def _simulate_full_disk() -> None:
    """Let every write above a size fail with ENOSPC, in workers whose parent sets the variable."""
    limit = int(os.environ.get("SIMPLE_KINDS_FILE_LIMIT", "0"))
    if limit:
        import errno

        from openafm.data.pipeline import results

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        results.document_row = full


_simulate_full_disk()
