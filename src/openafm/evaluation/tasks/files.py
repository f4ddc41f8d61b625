"""Reads the files of evaluation sets and checks their columns."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.evaluation.harness.task import TaskDataError


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the data of a set come from and under which license: the text of the error for missing data."""

    name: str
    origin: str
    license: str

    def missing(self, data: Path, paths: Sequence[str]) -> TaskDataError:
        """Return the error for missing data."""
        return TaskDataError(
            f"no data of {self.name}: expected {' or '.join(paths)} in {data}; get them from {self.origin}"
            f" (license: {self.license}) and pass their folder with --data"
        )


def found(source: Source, data: Path, *paths: str) -> Path:
    """Return the first file of `paths` that exists below the folder, also gzipped.

    Raises:
        TaskDataError: there is none.
    """
    for path in paths:
        for candidate in (data / path, data / f"{path}.gz"):
            if candidate.is_file():
                return candidate
    absent = None if data.exists() else FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(data))
    raise source.missing(data, paths) from absent


def json_lines(path: Path, columns: Mapping[str, type | tuple[type, ...]]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file, whose columns must have these types.

    Raises:
        TaskDataError: a line is not a JSON object, or a column is missing or has another type.
    """
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise TaskDataError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise TaskDataError(f"{path}:{number} must be a JSON object, got {type(value).__name__}")
        for name, types in columns.items():
            if name not in value:
                raise TaskDataError(
                    f"{path}:{number} has no column '{name}'; expected {', '.join(columns)}, got {', '.join(value)}"
                )
            if not isinstance(value[name], types):
                names = " or ".join(each.__name__ for each in (types if isinstance(types, tuple) else (types,)))
                raise TaskDataError(f"{path}:{number}: '{name}' must be {names}, got {value[name]!r}"[:300])
        yield value


def table(path: Path, columns: Sequence[str], *, delimiter: str = ",", has_header: bool = True) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV or TSV file by column.

    Raises:
        TaskDataError: a column is missing, or a row has another number of columns.
    """
    lines = io.StringIO(text_of(path))
    # quotation marks in a TSV file are text
    rows = csv.reader(lines) if delimiter == "," else csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    header = [name.strip() for name in next(rows, [])] if has_header else list(columns)
    missing = [name for name in columns if name not in header]
    if missing:
        raise TaskDataError(f"{path} has no column '{missing[0]}'; expected {', '.join(columns)}, got {', '.join(header)}")
    for number, row in enumerate(rows, start=1 + has_header):
        if not row:
            continue
        if len(row) != len(header):
            raise TaskDataError(f"{path}: row {number} has {len(row)} columns, expected {len(header)} ({', '.join(header)})")
        yield dict(zip(header, row, strict=True))


def text_of(path: Path) -> str:
    """Return the text of a file, decompressed if its name ends in .gz.

    Raises:
        TaskDataError: it cannot be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, ValueError, EOFError) as error:
        raise TaskDataError(f"{path} cannot be read: {error}") from error
