"""The newest word of a publisher: a later opt-out of training removes documents of earlier records of the same input.

While pages are read, each shard stores what they say about training: URL, time and reason. The reduction keeps the URLs
whose newest record is opted out, and the newest robots.txt of each origin, if the input has any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from openafm.core.files import atomic_file
from openafm.core.libraries import pyarrow
from openafm.data.deduplication.base import Reduction
from openafm.data.pipeline.config import OptOutStageConfig
from openafm.data.pipeline.parquet import RowWriter, read_rows
from openafm.data.web.documents import Dropped, Page, WebDocument
from openafm.data.web.permissions.opt_out import TRAINING_AGENTS, training_opt_out
from openafm.data.web.permissions.robots import MAX_BYTES, Robots
from openafm.data.web.urls import canonical_url, domain_of, origin_of

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("url", "fetched_at", "opt_out", "robots")
_DECIDED = ("domain", "key", "fetched_at", "opt_out", "robots")
_OK = 200


class FactsWriter:
    """Writes what the pages of a shard say about training. Use as a context manager."""

    def __init__(self, file: IO[bytes]) -> None:
        self._rows = RowWriter(file, _schema(_COLUMNS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._rows.__exit__(kind, error, trace)

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def add(self, page: Page) -> None:
        """Add a page; a robots.txt with its content."""
        if page.status == _OK:
            robots = page.body[:MAX_BYTES] if urlsplit(page.url).path == "/robots.txt" else b""
            texts = (page.url, page.fetched_at.removesuffix("Z"), page.opt_out)  # times without Z sort as text
            values = [text.encode("utf-8", "replace").decode() for text in texts]
            self._rows.write(dict(zip(_COLUMNS, (*values, robots), strict=True)))


@dataclasses.dataclass(frozen=True)
class OptOuts:
    """What the newest records of some domains say: opt-outs by canonical URL, and robots.txt by origin."""

    urls: Mapping[str, tuple[str, str]]  # time and reason
    robots: Mapping[str, tuple[str, Robots]]
    domains: frozenset[str]


class LatestOptOuts(Reduction):
    """See `OptOutStageConfig`. Memory: about 300 bytes for each URL that a record opts out, and the robots.txt files."""

    def __init__(self, config: OptOutStageConfig) -> None:
        self._config = config

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        """Read the facts of all shards and write the opt-outs that are the newest word of their publisher."""
        denied: dict[str, tuple[str, str]] = {}
        robots: dict[str, tuple[str, bytes]] = {}
        for row in _facts(signatures):
            if row["robots"]:
                origin = origin_of(row["url"])
                robots[origin] = max(robots.get(origin, ("", b"")), (row["fetched_at"], row["robots"]))
            elif row["opt_out"]:
                key = _key(row["url"])
                denied[key] = max(denied.get(key, ("", "")), (row["fetched_at"], row["opt_out"]))
        for row in _facts(signatures) if denied else ():
            if not row["opt_out"] and not row["robots"]:
                key = _key(row["url"])
                if key in denied and row["fetched_at"] > denied[key][0]:
                    del denied[key]
        rows = [(domain_of(key), key, at, reason, b"") for key, (at, reason) in denied.items()]
        rows += [
            (domain_of(origin), origin, at, "", body) for origin, (at, body) in robots.items() if _is_about_training(body)
        ]
        with atomic_file(out) as file, RowWriter(file, _schema(_DECIDED)) as writer:
            for values in sorted(rows):
                writer.write(dict(zip(_DECIDED, values, strict=True)))

    def read_decisions(self, path: Path, shard: int) -> OptOuts:
        """Return the opt-outs; they are the same for every shard."""
        rows = list(read_rows(path, required=("key",)))
        return OptOuts(
            urls={row["key"]: (row["fetched_at"], row["opt_out"]) for row in rows if not row["robots"]},
            robots={
                row["key"]: (row["fetched_at"], Robots.of_response(_OK, row["robots"])) for row in rows if row["robots"]
            },
            domains=frozenset(row["domain"] for row in rows),
        )

    def touched(self, batch: pa.RecordBatch, first: int, decisions: OptOuts) -> Sequence[int]:
        domains = batch.column("domain").to_pylist() if decisions.domains else []
        return [row for row, domain in enumerate(domains) if domain in decisions.domains or "" in decisions.domains]

    def apply(self, document: WebDocument, position: int, decisions: OptOuts) -> WebDocument | Dropped:
        at, reason = self._found(document.url, decisions)
        if document.opt_out or not reason:
            return document
        detail = f"{reason} (record of {at}Z)" if at else reason
        if self._config.opt_outs == "keep":
            return dataclasses.replace(document, opt_out=detail)
        return Dropped(reason="training_opt_out", detail=detail, url=document.url)

    def _found(self, url: str, decisions: OptOuts) -> tuple[str, str]:
        """Return time and reason of the opt-out of a URL; an empty reason without one."""
        if (found := decisions.urls.get(_key(url))) is not None:
            return found
        at, robots = decisions.robots.get(origin_of(url), ("", None))
        return at, training_opt_out(url, {}, robots=robots)


def _facts(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    return (row for path in paths for row in read_rows(path, required=("url", "fetched_at", "opt_out")))


def _key(url: str) -> str:
    return canonical_url(url) or url


def _is_about_training(body: bytes) -> bool:
    robots = Robots.of_response(_OK, body)
    return any(map(robots.names, TRAINING_AGENTS)) or "ai-train" in robots.content_signals(TRAINING_AGENTS[0])


def _schema(names: Sequence[str]) -> pa.Schema:
    pa = pyarrow()
    return pa.schema([pa.field(name, pa.binary() if name == "robots" else pa.string()) for name in names])
