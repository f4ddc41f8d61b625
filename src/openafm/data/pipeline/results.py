"""The result of a shard: writes kept documents, drops, and what pages say about training, and counts them."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from openafm.core.config import to_dict
from openafm.core.files import atomic_file, write_json
from openafm.core.libraries import pyarrow
from openafm.data.pipeline.opt_outs import FactsWriter
from openafm.data.pipeline.parquet import RowWriter, document_row, document_schema, drop_schema
from openafm.data.pipeline.steps import Item
from openafm.data.pipeline.store import STAGES, ShardRecord, StoredFile, record_path, stored_file
from openafm.data.web.documents import Dropped, Page, WebDocument
from openafm.data.web.urls import domain_of

if TYPE_CHECKING:
    import pyarrow as pa


class ShardResult:
    """The files of one result, written as the stage runs. Use as a context manager; then `store` makes it complete."""

    def __init__(self, root: Path, stage: str, key: str, *, has_facts: bool = False) -> None:
        self._root, self._stage, self._key, self._has_facts = root, stage, key, has_facts
        self._dropped: Counter[str] = Counter()
        self._languages: Counter[str] = Counter()
        self._num_in = self._characters = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            documents, drops = (stack.enter_context(atomic_file(self._path(name))) for name in ("documents", "dropped"))
            self._documents = stack.enter_context(RowWriter(documents, document_schema()))
            self._drops = stack.enter_context(RowWriter(drops, drop_schema()))
            self._facts = (
                stack.enter_context(FactsWriter(stack.enter_context(atomic_file(self._path("facts")))))
                if self._has_facts
                else None
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def add(self, item: Item, before: Item, outcome: WebDocument | Dropped) -> None:
        """Add the outcome of an item; `before` is what the last step received."""
        if self._facts is not None and isinstance(item, Page):
            self._facts.add(item)
        if isinstance(outcome, Dropped):
            self.add_drop(before, outcome)
            return
        self._num_in += 1
        self._documents.write(document_row(outcome))
        self._languages[outcome.language] += 1
        self._characters += len(outcome.text)

    def add_drop(self, item: Item, drop: Dropped) -> None:
        """Add a drop."""
        self._num_in += 1
        self._dropped[drop.reason] += 1
        url = drop.url or item.url
        row = {
            "id": item.id if isinstance(item, WebDocument) else _page_id(item),
            "url": url,
            "domain": domain_of(url) if url else "",
            "language": item.language if isinstance(item, WebDocument) else "",
            "stage": self._stage,
            "reason": drop.reason,
            "detail": drop.detail,
        }
        self._drops.write({name: _storable(value) for name, value in row.items()})

    def add_batch(self, batch: pa.RecordBatch, changed: Mapping[int, WebDocument], dropped: Collection[int]) -> None:
        """Add the documents of a batch, some of them changed, without those dropped, which `add_drop` adds."""
        pa = pyarrow()
        import pyarrow.compute as pc

        table = pa.Table.from_batches([batch])
        if changed:
            rows = [document_row(document) for document in changed.values()]
            table = pa.concat_tables([table, pa.Table.from_pylist(rows, schema=batch.schema)])
        if changed or dropped:
            place = {row: batch.num_rows + index for index, row in enumerate(changed)}
            rows_kept = [place.get(row, row) for row in range(batch.num_rows) if row not in dropped]
            table = table.take(pa.array(rows_kept, pa.int64()))
        self._num_in += len(table)
        self._documents.write_table(table)
        self._languages.update(table.column("language").to_pylist())
        self._characters += pc.sum(pc.utf8_length(table.column("text"))).as_py() or 0

    def store(self, seconds: float) -> ShardRecord:
        """Write the record, which makes the result complete, and return it.

        Raises:
            UncountedError: the counts do not add up.
        """
        record = ShardRecord(
            key=self._key,
            num_in=self._num_in,
            documents=self._stored("documents", self._documents.num_rows),
            drops=self._stored("dropped", self._drops.num_rows),
            dropped=dict(sorted(self._dropped.items())),
            languages=dict(sorted(self._languages.items())),
            characters=self._characters,
            seconds=seconds,
            facts=self._stored("facts", self._facts.num_rows) if self._facts is not None else None,
        )
        record.check()
        write_json(record_path(self._root, self._stage, self._key), to_dict(record))
        return record

    def _path(self, name: str) -> Path:
        return self._root / STAGES / self._stage / f"{self._key}.{name}.parquet"

    def _stored(self, name: str, num_rows: int) -> StoredFile:
        return stored_file(self._root, self._path(name), num_rows)


def _page_id(item: Page | Dropped) -> str:
    """Return an identifier of a page that did not become a document."""
    body = item.body if isinstance(item, Page) else b""
    return hashlib.blake2b(item.url.encode("utf-8", "replace") + b"\0" + body, digest_size=16).hexdigest()


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
