"""The vote of a domain on the language of its uncertain documents: a short page of a Norwegian site is not Danish."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from openafm.core.files import atomic_file
from openafm.core.libraries import pyarrow
from openafm.data.deduplication.base import Deduplication, DeduplicationConfig
from openafm.data.filtering.base import dropped, with_metadata
from openafm.data.filtering.language import CONFIDENCE_KEY
from openafm.data.web.documents import Dropped, WebDocument
from openafm.data.web.urls import domain_of

if TYPE_CHECKING:
    import pyarrow as pa

IDENTIFIED_KEY = "language.identified"
"""The language that was identified, in the metadata of a document with the language of its domain."""


@dataclass(frozen=True, kw_only=True)
class DomainLanguageConfig(DeduplicationConfig):
    """Give uncertain documents the language of their domain, or drop them.

    A domain has a language if at least `min_documents` of its documents were identified and `min_share` of these agree. A
    document is uncertain if the confidence of its language is below `max_confidence`. The stage runs after `LanguageConfig`,
    as a map and a reduction over shards like deduplication.

    Memory of the reduction: about 300 bytes for each pair of a domain and a language.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("domain_language",)

    action: Literal["relabel", "drop"] = "relabel"
    min_documents: int = 5
    min_share: float = 0.9
    max_confidence: float = 0.9

    def __post_init__(self) -> None:
        self.require(self.min_documents >= 1, f"min_documents {self.min_documents} is below 1")
        self.require(0.5 < self.min_share <= 1, f"min_share {self.min_share} is not in (0.5, 1]")
        self.require(0 <= self.max_confidence <= 1, f"max_confidence {self.max_confidence} is not in [0, 1]")

    def build(self) -> Deduplication:
        return DomainLanguage(self)


class DomainLanguage(Deduplication):
    """See `DomainLanguageConfig`. Signatures are counts of languages by domain, decisions are languages by domain."""

    def __init__(self, config: DomainLanguageConfig) -> None:
        self._config = config

    def signatures(self, documents: Iterable[WebDocument]) -> pa.Table:
        pa = pyarrow()
        votes = Counter((domain_of(document.url), document.language) for document in documents if document.language)
        rows = sorted((*pair, count) for pair, count in votes.items() if pair[0])
        return pa.table(
            {
                "domain": pa.array([domain for domain, _, _ in rows], pa.string()),
                "language": pa.array([language for _, language, _ in rows], pa.string()),
                "count": pa.array([count for _, _, count in rows], pa.int64()),
            }
        )

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        pa = pyarrow()
        import pyarrow.parquet as pq

        votes: dict[str, Counter[str]] = {}
        for path in signatures:
            for row in pq.read_table(path).to_pylist():
                votes.setdefault(row["domain"], Counter())[row["language"]] += row["count"]
        languages = {domain: self._language_of(counts) for domain, counts in sorted(votes.items())}
        decided = {domain: language for domain, language in languages.items() if language}
        columns = {"domain": pa.array(decided.keys(), pa.string()), "language": pa.array(decided.values(), pa.string())}
        with atomic_file(out) as file:
            pq.write_table(pa.table(columns), file)

    def read_decisions(self, path: Path, shard: int) -> Mapping[str, str]:
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        return dict(zip(table["domain"].to_pylist(), table["language"].to_pylist(), strict=True))

    def touched(self, batch: pa.RecordBatch, first: int, decisions: Mapping[str, str]) -> Sequence[int]:
        pairs = zip(*(batch.column(name).to_pylist() for name in ("domain", "language")), strict=True)
        return [row for row, (domain, language) in enumerate(pairs) if decisions.get(domain, language) != language]

    def apply(self, document: WebDocument, position: int, decisions: Mapping[str, str]) -> WebDocument | Dropped:
        language = decisions.get(domain_of(document.url), document.language)
        confidence = float(document.metadata.get(CONFIDENCE_KEY, "1"))
        if language == document.language or confidence >= self._config.max_confidence:
            return document
        if self._config.action == "drop":
            return dropped(document, "domain_language", f"{document.language} on a domain in {language}")
        changed = dataclasses.replace(document, language=language)
        return with_metadata(changed, {IDENTIFIED_KEY: document.language})

    def _language_of(self, counts: Counter[str]) -> str:
        """Return the language of a domain with these counts; empty without a clear majority."""
        language, count = max(counts.items(), key=lambda item: (item[1], item[0]))
        total = counts.total()
        return language if total >= self._config.min_documents and count >= self._config.min_share * total else ""
