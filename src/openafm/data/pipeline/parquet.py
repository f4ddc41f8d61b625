"""Documents and drops as Parquet files, which any program can read.

Columns of documents: id, url, domain, language, text, title, author, date, license, opt_out, extractor (strings), confidence
(double), media (list of url, kind, alt, caption, offset), metadata (a JSON object of strings). Columns of drops: id, url,
domain, language, stage, reason, detail. Compression is zstd. Equal rows give equal bytes with one version of pyarrow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from openafm.core.errors import OpenAFMError
from openafm.core.libraries import pyarrow
from openafm.data.web.documents import Media, WebDocument
from openafm.data.web.urls import domain_of

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_GROUP = 1_000
_ZSTD_LEVEL = 3
_STRINGS = ("id", "url", "domain", "language", "text", "title", "author", "date", "license", "opt_out", "extractor")
_DROP_COLUMNS = ("id", "url", "domain", "language", "stage", "reason", "detail")
_REQUIRED = ("text",)


class ParquetSchemaError(OpenAFMError):
    """A file is not Parquet, or not Parquet of documents."""


@dataclass(frozen=True, kw_only=True)
class Drop:
    """One row of a file of drops: what was dropped, by which stage and why."""

    id: str
    url: str
    domain: str
    language: str
    stage: str
    reason: str
    detail: str


def document_schema() -> pa.Schema:
    """Return the schema of documents."""
    pa = pyarrow()
    media = pa.struct([pa.field(field.name, pa.int64() if field.name == "offset" else pa.string()) for field in _MEDIA])
    strings = [pa.field(name, pa.string()) for name in _STRINGS]
    other = [("confidence", pa.float64()), ("media", pa.list_(media)), ("metadata", pa.string())]
    return pa.schema([*strings, *(pa.field(name, kind) for name, kind in other)])


def drop_schema() -> pa.Schema:
    """Return the schema of drops."""
    pa = pyarrow()
    return pa.schema([pa.field(name, pa.string()) for name in _DROP_COLUMNS])


class RowWriter:
    """Write rows to an open file in groups of `ROWS_PER_GROUP`. Use as a context manager."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        pyarrow()
        import pyarrow.parquet as pq

        self._schema, self.num_rows = schema, 0
        self._rows: list[dict[str, Any]] = []
        self._tables: list[Any] = []  # rows before `_rows`, fewer than a group
        self._writer = pq.ParquetWriter(
            file, schema, compression="zstd", compression_level=_ZSTD_LEVEL, use_dictionary=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._take_rows()
            rest = [table for table in self._tables if len(table)]
            if rest:
                self._writer.write_table(pyarrow().concat_tables(rest))
        self._writer.close()

    def write(self, row: dict[str, Any]) -> None:
        """Append a row."""
        self.num_rows += 1
        self._rows.append(row)
        if len(self._rows) == ROWS_PER_GROUP:
            self._take_rows()

    def write_table(self, table: pa.Table) -> None:
        """Append the rows of a table of the schema."""
        self.num_rows += len(table)
        self._take_rows()
        self._append(table)

    def _take_rows(self) -> None:
        if self._rows:
            self._append(pyarrow().Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    def _append(self, table: pa.Table) -> None:
        self._tables.append(table)
        while sum(map(len, self._tables)) >= ROWS_PER_GROUP:
            whole = pyarrow().concat_tables(self._tables)
            self._writer.write_table(whole.slice(0, ROWS_PER_GROUP))
            self._tables = [whole.slice(ROWS_PER_GROUP)]


def document_row(document: WebDocument) -> dict[str, Any]:
    """Return a document as a row of `document_schema`."""
    row = {name: getattr(document, name) for name in _STRINGS if name != "domain"}
    return row | {
        "domain": domain_of(document.url),
        "confidence": document.confidence,
        "media": [{field.name: getattr(media, field.name) for field in _MEDIA} for media in document.media],
        "metadata": json.dumps(dict(sorted(document.metadata.items())), ensure_ascii=False),
    }


def read_documents(path: Path) -> Iterator[WebDocument]:
    """Yield the documents of a Parquet file. Only `text` is required, so that files of other programs are read too.

    Raises:
        ParquetSchemaError: the file is not Parquet, or its columns are not those of documents.
    """
    for row in read_rows(path):
        yield document_of(row, path)


def read_drops(path: Path) -> Iterator[Drop]:
    """Yield the rows of a file of drops.

    Raises:
        ParquetSchemaError: the file is not Parquet of drops.
    """
    for row in read_rows(path, required=_DROP_COLUMNS):
        yield Drop(**{name: row[name] for name in _DROP_COLUMNS})


def read_rows(path: Path, required: Sequence[str] = _REQUIRED) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file with the required columns.

    Raises:
        ParquetSchemaError: the file is not Parquet, lacks a column, or is damaged.
    """
    for batch in read_batches(path, required):
        yield from batch.to_pylist()


def read_batches(path: Path, required: Sequence[str] = _REQUIRED) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches.

    Raises:
        ParquetSchemaError: the file is not Parquet, lacks a column, or is damaged.
    """
    pa = pyarrow()
    with open_parquet(path, required) as file:
        try:
            yield from file.iter_batches(batch_size=ROWS_PER_GROUP, use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise ParquetSchemaError(f"{path} is damaged: {error}; copy it again or leave it out") from error


def open_parquet(path: Path, required: Sequence[str] = _REQUIRED) -> Any:
    """Return a `pyarrow.parquet.ParquetFile` that has the required columns of strings.

    Raises:
        ParquetSchemaError: the file is not Parquet, or lacks a column.
        FileNotFoundError: there is no such file.
    """
    pa = pyarrow()
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ParquetSchemaError(f"{path} is not a whole Parquet file: {error}; copy it again or leave it out") from error
    kinds = {field.name: field.type for field in file.schema_arrow}
    for name in required:
        if name not in kinds or not (pa.types.is_string(kinds[name]) or pa.types.is_large_string(kinds[name])):
            found = f"is {kinds[name]}" if name in kinds else f"is missing; columns: {', '.join(kinds)}"
            raise ParquetSchemaError(
                f"{path} is Parquet with another schema: the column '{name}' of strings {found}; docs/data.md has the schema"
            )
    return file


_MEDIA = dataclasses.fields(Media)


def document_of(row: Mapping[str, Any], path: Path) -> WebDocument:
    """Return the document of a row.

    Raises:
        ParquetSchemaError: a column is of another type.
    """
    strings = {name: str(row.get(name) or "") for name in _STRINGS if name != "domain"}
    try:
        metadata = row.get("metadata") or "{}"
        values = json.loads(metadata) if isinstance(metadata, str) else dict(metadata)
        return WebDocument(
            **strings,
            confidence=1.0 if row.get("confidence") is None else float(row["confidence"]),
            media=tuple(Media(**media) for media in row.get("media") or ()),
            metadata={str(key): str(value) for key, value in values.items() if value is not None},
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise ParquetSchemaError(
            f"{path} is Parquet with another schema: {error} (document {strings['id']!r}); docs/data.md has the schema"
        ) from error
