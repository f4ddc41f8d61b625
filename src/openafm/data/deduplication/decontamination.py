"""Decontamination: documents that share n-grams with evaluation sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.files import file_digest
from openafm.core.libraries import pyarrow
from openafm.data.deduplication.base import Deduplication, DeduplicationConfig
from openafm.data.deduplication.evaluation_sets import Match, NgramIndex, evaluation_files
from openafm.data.deduplication.groups import read_shard, read_signatures, rows_with, write_tables
from openafm.data.web.documents import Dropped, WebDocument

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("position", "id", "url", "set", "ngram", "num_ngrams")


@dataclass(frozen=True, kw_only=True)
class DecontaminationConfig(DeduplicationConfig):
    """Drop documents that share an n-gram with the evaluation sets at the paths `evaluation`, files or folders.

    An n-gram has `num_words` words, or `num_characters` characters in scripts without spaces, without case and punctuation.
    Of a shorter text of a set the whole text counts if it has at least `min_words` words, or twice as many characters;
    shorter texts, such as the answers to choose from, are left out. The decisions are the list of what was removed: each
    document with the set, its first shared n-gram and their number.

    Memory: 16 bytes for each n-gram of the sets plus the row groups of one shard.
    """

    REASONS = ("contaminated",)
    VERSION = 2

    evaluation: tuple[str, ...]
    num_words: int = 13
    num_characters: int = 26
    min_words: int = 8

    def __post_init__(self) -> None:
        self.require(len(self.evaluation) > 0, "evaluation is empty; name files or folders of evaluation sets")
        self.require(1 <= self.min_words <= self.num_words, f"min_words {self.min_words} is not in [1, num_words]")
        self.require(self.num_characters >= 1, f"num_characters {self.num_characters} is below 1")

    def input_digests(self) -> tuple[str, ...]:
        return tuple(file_digest(path) for path in evaluation_files(self.evaluation))

    def build(self) -> Deduplication:
        evaluation_files(self.evaluation)  # a missing set fails here, before any work
        return Decontamination(self)


class Decontamination(Deduplication):
    """See `DecontaminationConfig`."""

    def __init__(self, config: DecontaminationConfig) -> None:
        self._config = config

    def signatures(self, documents: Iterable[WebDocument]) -> pa.Table:
        """Return one row for each document and set that share n-grams."""
        pa = pyarrow()
        index = _index(self._config, self._config.input_digests())
        rows = [
            (position, document, match)
            for position, document in enumerate(documents)
            for match in index.matches(document.text)
        ]
        return pa.Table.from_pylist([_row(*row) for row in rows], schema=_schema())

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        pa = pyarrow()
        schema = _schema().insert(0, pa.field("shard", pa.uint32()))
        tables = (
            pa.Table.from_batches([part.batch]).add_column(
                0, schema.field("shard"), pa.array([part.shard] * len(part), pa.uint32())
            )
            for part in read_signatures(signatures, _COLUMNS)
        )
        write_tables(out, schema, tables)

    def read_decisions(self, path: Path, shard: int) -> Mapping[int, list[Match]]:
        """Return what documents share with the sets, by position."""
        found: dict[int, list[Match]] = {}
        for row in read_shard(path, shard, _COLUMNS).to_pylist():
            found.setdefault(row["position"], []).append(Match(row["set"], row["ngram"], row["num_ngrams"]))
        return found

    def touched(self, batch: pa.RecordBatch, first: int, decisions: Any) -> Sequence[int]:
        return rows_with(decisions, first, batch.num_rows)

    def apply(self, document: WebDocument, position: int, decisions: Any) -> WebDocument | Dropped:
        if position not in decisions:
            return document
        shared = "; ".join(f"{each.name}: {each.num_ngrams} n-grams, '{each.ngram}'" for each in decisions[position])
        return Dropped(reason="contaminated", detail=shared, url=document.url)


@lru_cache(maxsize=1)
def _index(config: DecontaminationConfig, _: tuple[str, ...]) -> NgramIndex:
    """Return the n-grams of the sets; the digests of their files make the cache notice a change."""
    files = evaluation_files(config.evaluation)
    return NgramIndex(files, config.num_words, config.num_characters, config.min_words)


def _schema() -> Any:
    pa = pyarrow()
    kinds = {"position": pa.uint64(), "num_ngrams": pa.uint32()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])


def _row(position: int, document: WebDocument, match: Match) -> dict[str, Any]:
    values = (position, document.id, document.url, match.name, match.ngram, match.num_ngrams)
    return dict(zip(_COLUMNS, values, strict=True))
