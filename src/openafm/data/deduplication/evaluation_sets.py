"""The n-grams of evaluation sets, read from JSON, JSON Lines, CSV, TSV and text files, plain or gzipped."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openafm.core.errors import UsageError
from openafm.core.files import lines_of
from openafm.data.deduplication.shingles import Hashes, Tokens, shingle_hashes, tokens_of

SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt")
_MAX_DEPTH = 100


class EvaluationSetError(UsageError):
    """A file of an evaluation set does not exist or cannot be read."""


@dataclass(frozen=True)
class Match:
    """The n-grams that a document shares with one evaluation set: their number and the first one."""

    name: str
    ngram: str
    num_ngrams: int


@dataclass(frozen=True)
class _Table:
    """The n-grams of one size: sorted hashes, and the index of the first set of each."""

    hashes: Hashes
    sets: Hashes


class NgramIndex:
    """The n-grams of evaluation sets.

    Of a text with at least `num_words` words (`num_characters` in scripts without spaces) every n-gram counts, of a shorter
    one with at least `min_words` (twice as many characters) the whole text. Memory: 16 bytes for each n-gram.
    """

    def __init__(self, files: Sequence[Path], num_words: int, num_characters: int, min_words: int) -> None:
        self._sizes = {False: (min_words, num_words), True: (min(2 * min_words, num_characters), num_characters)}
        self.names = tuple(f"{path.parent.name}/{path.name}" for path in files)
        found: dict[tuple[bool, int], list[tuple[Hashes, int]]] = {}
        for number, path in enumerate(files):
            for text in dict.fromkeys(texts_of(path)):
                tokens = tokens_of(text)
                shortest, longest = self._sizes[tokens.is_spaceless]
                size = min(len(tokens), longest)
                if size >= shortest:
                    ngrams = shingle_hashes(tokens.hashes, size)
                    found.setdefault((tokens.is_spaceless, size), []).append((ngrams, number))
        self._tables = {key: _table(found[key]) for key in sorted(found)}

    def matches(self, text: str) -> list[Match]:
        """Return what a text shares with each set, in the order of the sets."""
        tokens = tokens_of(text)
        hashes = tokens.hashes
        firsts: dict[int, tuple[int, int]] = {}  # set -> (first place, size)
        counts: dict[int, int] = {}
        for (is_spaceless, size), table in self._tables.items():
            if is_spaceless != tokens.is_spaceless or size > len(hashes):
                continue
            ngrams = shingle_hashes(hashes, size)
            rows = np.minimum(np.searchsorted(table.hashes, ngrams), len(table.hashes) - 1)
            for place in np.flatnonzero(table.hashes[rows] == ngrams).tolist():
                number = int(table.sets[rows[place]])
                firsts[number] = min(firsts.get(number, (place, size)), (place, size))
                counts[number] = counts.get(number, 0) + 1
        return [Match(self.names[number], _words(tokens, *firsts[number]), counts[number]) for number in sorted(counts)]


def evaluation_files(paths: Sequence[str]) -> list[Path]:
    """Return the files at `paths`, and those of known formats in folders, in order.

    Raises:
        EvaluationSetError: a path does not exist or is of another format, or a folder has no file of a known format.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and _suffix(file) in SUFFIXES)
            if not files:
                raise EvaluationSetError(f"{path} has no file of {', '.join(SUFFIXES)}, plain or with .gz")
            found += files
        elif not path.is_file():
            raise EvaluationSetError(f"{path} does not exist; pass files or folders of evaluation sets")
        elif _suffix(path) not in SUFFIXES:
            raise EvaluationSetError(f"{path} is of another format; use {', '.join(SUFFIXES)}, plain or with .gz")
        else:
            found.append(path)
    return found


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a file: strings of JSON at any depth, cells of tables, paragraphs of a text.

    Raises:
        EvaluationSetError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.name.endswith(".gz") else data).decode("utf-8-sig")
        match _suffix(path):
            case ".csv" | ".tsv":
                # Quotes have no special meaning in the tables of TSV sets.
                is_csv = _suffix(path) == ".csv"
                rows = (
                    csv.reader(io.StringIO(text), strict=True) if is_csv else (line.split("\t") for line in lines_of(text))
                )
                yield from (cell for row in rows for cell in row)
            case ".txt":
                yield from text.split("\n\n")
            case _:
                yield from (each for value in _json_values(text) for each in _strings(value, 0))
    except (OSError, EOFError, zlib.error, ValueError, csv.Error, RecursionError) as error:
        raise EvaluationSetError(f"cannot read the evaluation set {path}: {error}") from error


def _json_values(text: str) -> list[Any]:
    """Return the values of JSON Lines, or the one value of a JSON file; sets use the suffix .json for both."""
    try:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError:
        return [json.loads(text)]


def _strings(value: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"values are nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, depth + 1)


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _table(ngrams: list[tuple[Hashes, int]]) -> _Table:
    hashes = np.concatenate([each for each, _ in ngrams])
    sets = np.concatenate([np.full(len(each), number, np.uint64) for each, number in ngrams])
    unique, first = np.unique(hashes, return_index=True)  # of equal n-grams the one of the first set
    return _Table(unique, sets[first])


def _words(tokens: Tokens, place: int, size: int) -> str:
    return ("" if tokens.is_spaceless else " ").join(tokens.words(place, size))
