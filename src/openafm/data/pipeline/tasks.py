"""What workers compute: one shard of a map stage, the signatures of one shard, or the decisions over all shards."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from openafm.core.config import to_dict
from openafm.core.files import atomic_file, write_json
from openafm.core.libraries import pyarrow
from openafm.core.worker_process import unit
from openafm.data.deduplication.base import Deduplication
from openafm.data.pipeline.config import DeduplicationStageConfig
from openafm.data.pipeline.inputs import Shard
from openafm.data.pipeline.parquet import (
    RowWriter,
    document_row,
    document_schema,
    drop_schema,
    read_documents,
)
from openafm.data.pipeline.steps import Decisions, Item, Processed, Stage, build_stage, config_of
from openafm.data.pipeline.store import STAGES, ShardRecord, StoredFile, record_path, stored_file
from openafm.data.web.documents import Dropped, Page, WebDocument
from openafm.data.web.urls import domain_of


@dataclass(frozen=True, kw_only=True)
class CheckTask:
    """Stages to build before any work: the JSON form of each config, and the plugins that it needs."""

    stages: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A document that ended its worker: its position in the shard, and why."""

    position: int
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class MapTask:
    """One shard of a map stage.

    `stage` is the JSON form of its config. `quarantined` are documents that ended a worker before. Reading stops at
    `stop_at`, where it ended a worker even though that document is quarantined.
    """

    root: Path
    stage: str
    stage_name: str
    key: str
    shard: Shard
    plugins: tuple[str, ...] = ()
    decisions: Decisions | None = None
    quarantined: tuple[Quarantined, ...] = ()
    stop_at: int | None = None


@dataclass(frozen=True, kw_only=True)
class SignaturesTask:
    """The signatures of one shard."""

    root: Path
    stage: str
    stage_name: str
    key: str
    shard: Shard
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DecideTask:
    """The decisions over the signatures of all shards."""

    stage: str
    signatures: tuple[Path, ...]
    out: Path
    plugins: tuple[str, ...] = field(default=())


def run_check(task: CheckTask) -> None:
    """Build the stages. Workers do it, because they need the models later and the parent does not.

    Raises:
        OpenAFMError: a library, a model or a file of a stage is missing.
    """
    for text, plugins in task.stages:
        if isinstance(config_of(text, plugins), DeduplicationStageConfig):
            _deduplication(text, plugins)
        else:
            build_stage(text, plugins)


def run_map(task: MapTask) -> ShardRecord:
    """Compute one shard and store its result."""
    started = time.process_time()
    stage = build_stage(task.stage, task.plugins, task.decisions)
    folder = task.root / STAGES / task.stage_name
    documents_path, drops_path = folder / f"{task.key}.documents.parquet", folder / f"{task.key}.dropped.parquet"
    with atomic_file(documents_path) as documents, atomic_file(drops_path) as drops:
        result = _Result(task.stage_name, documents, drops)
        with result.writers:
            for processed in _processed(stage, task):
                result.add(processed.before, processed.outcome)
    record = result.record(
        task.key,
        stored_file(task.root, documents_path, result.num_kept),
        stored_file(task.root, drops_path, sum(result.dropped.values())),
        round(time.process_time() - started, 3),
    )
    record.check()
    write_json(record_path(task.root, task.stage_name, task.key), to_dict(record))
    return record


def run_signatures(task: SignaturesTask) -> float:
    """Compute the signatures of one shard and store them; return the CPU seconds."""
    import pyarrow.parquet as pq

    started = time.process_time()
    method = _deduplication(task.stage, task.plugins)
    out = signatures_path(task.root, task.stage_name, task.key)
    table = method.signatures(_in_units(read_documents(task.shard.path)))
    with atomic_file(out) as file:
        pq.write_table(table, file, compression="zstd", use_dictionary=False)
    return time.process_time() - started


def run_decide(task: DecideTask) -> float:
    """Reduce the signatures of all shards to decisions and store them; return the CPU seconds."""
    started = time.process_time()
    method = _deduplication(task.stage, task.plugins)
    temporary = task.out.with_suffix(".partial")  # renamed when it is complete
    method.decide(task.signatures, temporary)
    temporary.replace(task.out)
    return time.process_time() - started


def signatures_path(root: Path, stage: str, key: str) -> Path:
    """Return the path of the signatures of a shard."""
    return root / STAGES / stage / f"{key}.signatures.parquet"


def _deduplication(text: str, plugins: tuple[str, ...]) -> Deduplication:
    config = config_of(text, plugins)
    assert isinstance(config, DeduplicationStageConfig)
    return config.deduplication.build()


def _in_units(documents: Iterator[WebDocument]) -> Iterator[WebDocument]:
    for position, document in enumerate(documents):
        with unit(position):
            pass  # reports the progress; signatures of a text have no time limit of their own
        yield document


def _processed(stage: Stage, task: MapTask) -> Iterator[Processed]:
    """Yield the result of each item of a shard; time limits apply to reading and processing it."""
    quarantined = {each.position: each for each in task.quarantined}
    items = stage.read(task.shard)
    position = 0
    while True:
        if position == task.stop_at:
            detail = f"the rest of {task.shard.path.name} after document {position}: {quarantined[position].detail}"
            drop = Dropped(reason="unreadable", detail=detail)
            yield Processed(before=drop, outcome=drop)
            return
        with unit(position):
            try:
                item = next(items, None)
            except MemoryError:
                item = Dropped(reason="unreadable", detail=f"the rest of {task.shard.path.name}: out of memory")
                items = iter(())
            if item is None:
                return
            poison = quarantined.get(position)
            if poison is None:
                processed = stage.process(item, position)
            else:
                processed = Processed(before=item, outcome=Dropped(reason=poison.reason, detail=poison.detail))
        yield processed
        position += 1


class _Result:
    """Writes kept documents and drops, and counts them."""

    def __init__(self, stage: str, documents: IO[bytes], drops: IO[bytes]) -> None:
        pyarrow()
        self._stage = stage
        self._documents = RowWriter(documents, document_schema())
        self._drops = RowWriter(drops, drop_schema())
        self.writers = contextlib.ExitStack()
        self.writers.enter_context(self._documents)
        self.writers.enter_context(self._drops)
        self.dropped: Counter[str] = Counter()
        self._languages: Counter[str] = Counter()
        self._num_in = self._characters = 0

    @property
    def num_kept(self) -> int:
        return self._documents.num_rows

    def add(self, item: Item, outcome: WebDocument | Dropped) -> None:
        self._num_in += 1
        if isinstance(outcome, WebDocument):
            self._documents.write(document_row(outcome))
            self._languages[outcome.language] += 1
            self._characters += len(outcome.text)
            return
        self.dropped[outcome.reason] += 1
        url = outcome.url or item.url
        row = {
            "id": item.id if isinstance(item, WebDocument) else _page_id(item),
            "url": url,
            "domain": domain_of(url) if url else "",
            "language": item.language if isinstance(item, WebDocument) else "",
            "stage": self._stage,
            "reason": outcome.reason,
            "detail": outcome.detail,
        }
        self._drops.write({name: _storable(value) for name, value in row.items()})

    def record(self, key: str, documents: StoredFile, drops: StoredFile, seconds: float) -> ShardRecord:
        return ShardRecord(
            key=key,
            num_in=self._num_in,
            documents=documents,
            drops=drops,
            dropped=dict(sorted(self.dropped.items())),
            languages=dict(sorted(self._languages.items())),
            characters=self._characters,
            seconds=seconds,
        )


def _page_id(item: Page | Dropped) -> str:
    """Return an identifier of a page that did not become a document."""
    body = item.body if isinstance(item, Page) else b""
    return hashlib.blake2b(item.url.encode("utf-8", "replace") + b"\0" + body, digest_size=16).hexdigest()


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
