"""What workers compute: one shard of a map stage, the signatures of one shard, or the decisions over all shards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openafm.core.files import atomic_file
from openafm.core.worker_process import unit
from openafm.data.deduplication.base import Deduplication
from openafm.data.pipeline.config import ExtractionStageConfig
from openafm.data.pipeline.inputs import Shard
from openafm.data.pipeline.parquet import document_of, document_schema, open_parquet, read_batches, read_documents
from openafm.data.pipeline.results import ShardResult
from openafm.data.pipeline.steps import (
    REDUCTIONS,
    Decided,
    Decisions,
    Item,
    Processed,
    Stage,
    build_stage,
    config_of,
    reduction_of,
)
from openafm.data.pipeline.store import STAGES, ShardRecord
from openafm.data.web.documents import Dropped, WebDocument


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
        if isinstance(config_of(text, plugins), REDUCTIONS):
            reduction_of(config_of(text, plugins))
        else:
            build_stage(text, plugins)


def run_map(task: MapTask) -> ShardRecord:
    """Compute one shard and store its result."""
    started = time.process_time()
    stage = build_stage(task.stage, task.plugins, task.decisions)
    with ShardResult(
        task.root, task.stage_name, task.key, has_facts=isinstance(stage.config, ExtractionStageConfig)
    ) as result:
        if stage.reduction is not None and open_parquet(task.shard.path).schema_arrow.equals(document_schema()):
            _copy(stage, stage.reduction, task, result)
        else:
            for processed in _processed(stage, task):
                result.add(processed.item, processed.before, processed.outcome)
    return result.store(round(time.process_time() - started, 3))


def _copy(stage: Stage, decided: Decided, task: MapTask, result: ShardResult) -> None:
    """Apply decisions: rows that they do not name are copied as columns, which is several times as fast."""
    poison = {each.position: each for each in task.quarantined}
    first = 0
    for batch in read_batches(task.shard.path):
        rows = sorted({*decided.touched(batch, first), *(p - first for p in poison if 0 <= p - first < batch.num_rows)})
        documents = batch.take(np.array(rows, np.int64)).to_pylist() if rows else []
        changed: dict[int, WebDocument] = {}
        dropped: set[int] = set()
        for row, values in zip(rows, documents, strict=True):
            document = document_of(values, task.shard.path)
            with unit(first + row):
                processed = _process(stage, document, first + row, poison)
            if isinstance(processed.outcome, Dropped):
                dropped.add(row)
                result.add_drop(document, processed.outcome)
            elif processed.outcome is not document:
                changed[row] = processed.outcome
        result.add_batch(batch, changed, dropped)
        first += batch.num_rows


def run_signatures(task: SignaturesTask) -> float:
    """Compute the signatures of one shard and store them; return the CPU seconds."""
    import pyarrow.parquet as pq

    started = time.process_time()
    method = reduction_of(config_of(task.stage, task.plugins))
    assert isinstance(method, Deduplication)
    out = signatures_path(task.root, task.stage_name, task.key)
    table = method.signatures(_in_units(read_documents(task.shard.path)))
    with atomic_file(out) as file:
        pq.write_table(table, file, compression="zstd", use_dictionary=False)
    return time.process_time() - started


def run_decide(task: DecideTask) -> float:
    """Reduce the signatures of all shards to decisions and store them; return the CPU seconds."""
    started = time.process_time()
    method = reduction_of(config_of(task.stage, task.plugins))
    temporary = task.out.with_suffix(".partial")  # renamed when it is complete
    method.decide(task.signatures, temporary)
    temporary.replace(task.out)
    return time.process_time() - started


def signatures_path(root: Path, stage: str, key: str) -> Path:
    """Return the path of the signatures of a shard."""
    return root / STAGES / stage / f"{key}.signatures.parquet"


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
            yield Processed(item=drop, before=drop, outcome=drop)
            return
        with unit(position):
            try:
                item = next(items, None)
            except MemoryError:
                item = Dropped(reason="unreadable", detail=f"the rest of {task.shard.path.name}: out of memory")
                items = iter(())
            if item is None:
                return
            processed = _process(stage, item, position, quarantined)
        yield processed
        position += 1


def _process(stage: Stage, item: Item, position: int, quarantined: Mapping[int, Quarantined]) -> Processed:
    """Return the result of an item; one that ended a worker before is dropped."""
    if (poison := quarantined.get(position)) is not None:
        return Processed(item=item, before=item, outcome=Dropped(reason=poison.reason, detail=poison.detail))
    return stage.process(item, position)
