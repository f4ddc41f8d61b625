"""What a pipeline kept and dropped: by stage, reason, language, domain and length, as JSON and as an HTML page."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from openafm.core.files import atomic_file
from openafm.data.pipeline.parquet import open_parquet, read_drops
from openafm.data.pipeline.store import CorpusManifest, read_manifest

MAX_DOMAINS = 30
LENGTH_EDGES = (200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_SUMMED = "privacy."
_AGREEMENT = "extraction.agreement"
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """One stage: documents in, kept, and dropped by reason, by language and by domain."""

    name: str
    num_in: int
    num_kept: int
    dropped: Mapping[str, int]
    dropped_by_language: Mapping[str, int]
    dropped_by_domain: Mapping[str, int]
    documents_per_core_s: float


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """A corpus: its stages, and what it keeps by language, domain, length in characters and extractor.

    `measured` adds up what filters counted in the documents, such as masked e-mail addresses. `agreement` is the mean share
    of characters on which a model and the classifier agree in the pages that the model extracted; None without such pages.
    Domains beyond the largest `MAX_DOMAINS` are added up as "other".
    """

    recipe: str
    num_in: int
    num_kept: int
    characters: int
    digest: str
    stages: tuple[StageReport, ...]
    languages: Mapping[str, int]
    characters_by_language: Mapping[str, int]
    domains: Mapping[str, int]
    lengths: Mapping[str, int]
    extractors: Mapping[str, int]
    measured: Mapping[str, int] = field(default_factory=dict)
    agreement: float | None = None


def corpus_report(corpus: Path) -> CorpusReport:
    """Return the report of a corpus.

    Raises:
        CorpusError: the folder is not a finished corpus.
        ParquetSchemaError: a file of it is damaged.
    """
    manifest = read_manifest(corpus)
    kept = _Kept()
    for file in manifest.documents:
        kept.add_file(corpus / file.path)
    return CorpusReport(
        recipe=str(manifest.config.get("recipe") or ""),
        num_in=manifest.num_in,
        num_kept=manifest.num_kept,
        characters=manifest.stages[-1].characters,
        digest=manifest.digest,
        stages=tuple(_stages(corpus, manifest)),
        languages=_sorted(kept.languages),
        characters_by_language=_sorted(kept.characters),
        domains=_largest(kept.domains),
        lengths=_histogram(kept.lengths),
        extractors=_sorted(kept.extractors),
        measured=dict(sorted(kept.measured.items())),
        agreement=round(statistics.fmean(kept.agreements), 3) if kept.agreements else None,
    )


def write_html(report: CorpusReport, path: Path) -> None:
    """Write the report as one HTML page without scripts or references to other files."""
    with atomic_file(path, "w") as file:
        file.write(html(report))


def html(report: CorpusReport) -> str:
    """Return the report as an HTML page. Texts of crawled pages, such as domains, are escaped."""
    share = report.num_kept / report.num_in if report.num_in else 0.0
    parts = [
        f"<h1>Corpus of {escape(report.recipe or 'a pipeline')}</h1>",
        f"<p>{report.num_kept:,} of {report.num_in:,} documents kept ({share:.1%}), {report.characters:,} characters. "
        f"Digest <code>{escape(report.digest[:16])}</code>.</p>",
        "<h2>Stages</h2>",
        _stage_table(report.stages),
    ]
    for stage in report.stages:
        if stage.dropped:
            parts.append(f"<h2>Dropped by {escape(stage.name)}</h2>")
            parts.append(bars("reason", stage.dropped, "drop"))
            parts.append(bars("language", stage.dropped_by_language, "drop"))
            parts.append(bars("domain", stage.dropped_by_domain, "drop"))
    parts.append("<h2>Kept</h2>")
    parts.append(bars("language", report.languages))
    parts.append(bars("characters by language", report.characters_by_language))
    parts.append(bars("domain", report.domains))
    parts.append(bars("length in characters", report.lengths))
    parts.append(bars("extractor", report.extractors))
    parts.append(bars("found in texts", report.measured))
    if report.agreement is not None:
        parts.append(f"<p>The model and the classifier agree on {report.agreement:.1%} of the characters.</p>")
    head = f"<meta charset='utf-8'><title>Corpus report</title><style>{_STYLE}</style>"
    return f"<!DOCTYPE html><html lang='en'>{head}{''.join(parts)}</html>\n"


class _Kept:
    """Counts over the documents of a corpus."""

    def __init__(self) -> None:
        self.languages: Counter[str] = Counter()
        self.characters: Counter[str] = Counter()
        self.domains: Counter[str] = Counter()
        self.extractors: Counter[str] = Counter()
        self.measured: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.agreements: list[float] = []

    def add_file(self, path: Path) -> None:
        with open_parquet(path) as file:
            for batch in file.iter_batches(
                columns=["language", "domain", "extractor", "metadata", "text"], use_threads=False
            ):
                for row in batch.to_pylist():
                    self._add(row)

    def _add(self, row: Mapping[str, Any]) -> None:
        language, length = row["language"] or _UNKNOWN, len(row["text"])
        self.languages[language] += 1
        self.characters[language] += length
        self.domains[row["domain"] or _UNKNOWN] += 1
        self.extractors[row["extractor"] or _UNKNOWN] += 1
        self.lengths[sum(length >= edge for edge in LENGTH_EDGES)] += 1
        if _SUMMED in row["metadata"] or _AGREEMENT in row["metadata"]:
            for key, value in json.loads(row["metadata"]).items():
                if key.startswith(_SUMMED) and value.isdecimal():
                    self.measured[key] += int(value)
                elif key == _AGREEMENT:
                    self.agreements.append(float(value))


def _stages(corpus: Path, manifest: CorpusManifest) -> Iterable[StageReport]:
    for stage in manifest.stages:
        languages: Counter[str] = Counter()
        domains: Counter[str] = Counter()
        for shard in stage.shards:
            for drop in read_drops(corpus / shard.drops.path):
                languages[drop.language or _UNKNOWN] += 1
                domains[drop.domain or _UNKNOWN] += 1
        yield StageReport(
            name=stage.name,
            num_in=stage.num_in,
            num_kept=stage.num_kept,
            dropped=_sorted(Counter(stage.dropped)),
            dropped_by_language=_sorted(languages),
            dropped_by_domain=_largest(domains),
            documents_per_core_s=round(stage.num_in / stage.seconds, 1) if stage.seconds else 0.0,
        )


def _sorted(counts: Counter[str]) -> dict[str, int]:
    """Return counts, the largest first, equal ones by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _largest(counts: Counter[str]) -> dict[str, int]:
    ranked = list(_sorted(counts).items())
    rest = sum(count for _, count in ranked[MAX_DOMAINS:])
    return dict(ranked[:MAX_DOMAINS]) | ({"other": rest} if rest else {})


def _histogram(counts: Counter[int]) -> dict[str, int]:
    names = [f"below {LENGTH_EDGES[0]:,}", *(f"from {edge:,}" for edge in LENGTH_EDGES)]
    return {name: counts[index] for index, name in enumerate(names)}


def _stage_table(stages: Iterable[StageReport]) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage.name)}<td>{stage.num_in:,}<td>{stage.num_kept:,}<td>{stage.num_in - stage.num_kept:,}"
        f"<td>{stage.documents_per_core_s:,.0f}"
        for stage in stages
    )
    return f"<table><tr><th>stage<th>in<th>kept<th>dropped<th>documents / s and core{rows}</table>"


def bars(title: str, counts: Mapping[str, int], style: str = "keep") -> str:
    """Return a chart of horizontal bars; empty without counts."""
    if not counts:
        return ""
    largest, total = max(1, *counts.values()), max(1, sum(counts.values()))
    rows = "".join(
        f"<tr><td>{escape(name or 'unknown')}<td>{count:,}<td>{count / total:.1%}"
        f"<td class=bar><div class={style} style='width:{100 * count / largest:.1f}%'></div>"
        for name, count in counts.items()
    )
    return f"<table class=chart><caption>by {escape(title)}</caption>{rows}</table>"


_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.15em .8em .15em 0;text-align:right}"
    "td:first-child,th:first-child{text-align:left;max-width:22em;overflow-wrap:anywhere}caption{text-align:left;color:#666}"
    ".chart{width:100%}.bar{width:50%}.bar div{height:1em;border-radius:2px}"
    ".keep{background:#2a7fba}.drop{background:#c4663a}"
)
