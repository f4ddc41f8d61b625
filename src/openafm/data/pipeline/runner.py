"""Run a pipeline: stages in order, shards in parallel, finished results found again by their keys."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openafm.core.config import to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.executors import Executor
from openafm.core.files import atomic_folder, file_digest, room_for, write_json
from openafm.core.folder_lock import folder_lock
from openafm.core.libraries import pyarrow
from openafm.core.progress import progress
from openafm.core.worker_process import NO_LIMITS, Failure, LimitsConfig
from openafm.data.pipeline.config import (
    QUARANTINE_REASONS,
    DeduplicationStageConfig,
    ExtractionStageConfig,
    OptOutStageConfig,
    PipelineConfig,
    StageConfig,
)
from openafm.data.pipeline.inputs import PARQUET_SUFFIXES, WARC_SUFFIXES, Shard, describe, find_inputs, shards_of
from openafm.data.pipeline.parquet import open_parquet
from openafm.data.pipeline.steps import Decisions, stage_json
from openafm.data.pipeline.store import (
    COUNTERS,
    DOCUMENTS,
    MANIFEST,
    STAGES,
    CorpusManifest,
    ShardRecord,
    StageSummary,
    StoredFile,
    config_key,
    find_record,
    key_of,
    modules_of,
    summarize,
    write_counters,
)
from openafm.data.pipeline.tasks import (
    CheckTask,
    DecideTask,
    MapTask,
    Quarantined,
    SignaturesTask,
    run_check,
    run_decide,
    run_map,
    run_signatures,
    signatures_path,
)

_OWN_FILES = {STAGES, DOCUMENTS, MANIFEST, COUNTERS, "report.html", ".lock"}
_FEW = 20


class QuarantineError(OpenAFMError):
    """A stage quarantined more documents than `max_quarantined` allows, or a worker died outside of any document."""


class CorpusFolderError(OpenAFMError):
    """The output folder holds files that are not of a corpus."""


def run_pipeline(
    config: PipelineConfig, inputs: Sequence[Path], out: Path, executor: Executor | None = None
) -> CorpusManifest:
    """Run a pipeline on WARC files, or on Parquet files if it has no extraction, and write the corpus to `out`.

    Shards that an earlier run finished with the same stage on the same input are not computed again, also after that run was
    killed. The corpus does not depend on the executor, its number of workers, or the order and names of the input files.
    Without Chromium no page is rendered; the manifest has a note. An open `executor` is used instead of that of the config.

    Raises:
        PipelineInputError: there is no input of the kind that the first stage reads.
        ParquetSchemaError: an input is Parquet with another schema.
        CorpusFolderError: `out` has other files; nothing is written.
        FolderInUseError: another run writes to `out`.
        QuarantineError: a stage fails on too many documents.
        OutOfSpaceError: the disk is full; finished shards are kept.
    """
    pyarrow()
    paths = find_inputs(inputs, WARC_SUFFIXES if config.reads_pages else PARQUET_SUFFIXES)
    if not config.reads_pages:
        for path in paths:
            open_parquet(path).close()
    _check_folder(out)
    config, notes = _without_missing_browser(config)
    with config.executor.build() if executor is None else contextlib.nullcontext(executor) as workers:
        check = CheckTask(stages=tuple((stage_json(stage), _plugins(config, stage)) for stage in config.stages))
        list(_all(workers.map(run_check, [check], LimitsConfig(memory_mb=config.limits.memory_mb))))
        return _run(config, paths, workers, out, notes)


def _without_missing_browser(config: PipelineConfig) -> tuple[PipelineConfig, tuple[str, ...]]:
    """Return the config without rendering if Chromium is not installed, and a note that says so."""
    first = config.stages[0]
    if not isinstance(first, ExtractionStageConfig) or first.rendering is None:
        return config, ()
    from openafm.data.rendering.renderer import RenderingUnavailableError, check_installation

    try:
        check_installation(first.rendering)
    except RenderingUnavailableError as error:
        return replace(config, stages=(replace(first, rendering=None), *config.stages[1:])), (
            f"no page is rendered: {error}",
        )
    return config, ()


def _run(
    config: PipelineConfig, paths: Sequence[Path], executor: Executor, out: Path, notes: tuple[str, ...]
) -> CorpusManifest:
    with folder_lock(out), room_for(out):
        (out / STAGES).mkdir(exist_ok=True)
        files = describe(paths, out / STAGES, config.shard_mb << 20)
        shards = [shard for file in files for shard in shards_of(file)]
        summaries: list[StageSummary] = []
        for stage in config.stages:
            summary = _StageRun(config, stage, executor, out).run(shards, summaries)
            summaries.append(summary)
            write_json(out / STAGES / stage.name / "manifest.json", to_dict(summary))
            shards = [Shard(path=out / r.documents.path, digest=r.documents.sha256) for r in summary.shards]
        documents = _publish(out, summaries[-1].shards)
        described = {name: value for name, value in to_dict(config).items() if name != "executor"}
        manifest = CorpusManifest(
            config=described,
            inputs=tuple(files),
            stages=tuple(summaries),
            documents=documents,
            digest=hashlib.sha256("\n".join(file.sha256 for file in documents).encode()).hexdigest(),
            notes=notes,
        )
        write_counters(out / COUNTERS, summaries)
        write_json(out / MANIFEST, to_dict(manifest))
        return manifest


@dataclass(frozen=True)
class _StageRun:
    """One stage of one run."""

    config: PipelineConfig
    stage: StageConfig
    executor: Executor
    root: Path

    def run(self, shards: Sequence[Shard], before: Sequence[StageSummary]) -> StageSummary:
        """Run the stage on shards; `before` are the stages before it."""
        (self.root / STAGES / self.stage.name).mkdir(exist_ok=True)
        decisions, reduce_seconds = None, 0.0
        if isinstance(self.stage, DeduplicationStageConfig):
            decisions, reduce_seconds = self._deduplicated(self.stage, shards)
        elif isinstance(self.stage, OptOutStageConfig):
            decisions, reduce_seconds = self._decided(
                [self.root / each.facts.path for each in before[-1].shards if each.facts is not None]
            )
        decided = file_digest(decisions) if decisions is not None else ""
        tasks = [
            MapTask(
                root=self.root,
                stage=stage_json(self.stage),
                stage_name=self.stage.name,
                key=self._key("map", shard.digest, *([decided, index] if decisions else [])),
                shard=shard,
                plugins=_plugins(self.config, self.stage),
                decisions=Decisions(path=decisions, shard=index) if decisions else None,
            )
            for index, shard in enumerate(shards)
        ]
        found = {task.key: find_record(self.root, self.stage.name, task.key) for task in tasks}
        records = {key: record for key, record in found.items() if record is not None}
        records |= {record.key: record for record in self._map([task for task in tasks if task.key not in records], tasks)}
        in_order = [records[task.key] for task in tasks]
        summary = summarize(self.stage.name, key_of(config_key(self.stage)), in_order, reduce_seconds)
        self._check_quarantined(summary)
        return summary

    def _key(self, *parts: object) -> str:
        return key_of(config_key(self.stage), to_dict(self.config.limits), *parts)

    def _map(self, tasks: Sequence[MapTask], all_tasks: Sequence[MapTask]) -> Iterator[ShardRecord]:
        """Compute shards; a shard whose worker died is computed again without the document that it was processing."""
        finished = len(all_tasks) - len(tasks)
        with self._shown(len(all_tasks), finished) as shown:
            while tasks:
                again: list[MapTask] = []
                for outcome in self.executor.map(run_map, tasks, self.config.limits, shown.on_units):
                    if outcome.failure is not None:
                        again.append(_without(outcome.item, outcome.failure))
                    elif outcome.result is not None:
                        shown.finish_shard()
                        yield outcome.result
                tasks = again

    def _deduplicated(self, stage: DeduplicationStageConfig, shards: Sequence[Shard]) -> tuple[Path, float]:
        """Compute signatures and decisions, unless they exist; return the decisions and the CPU seconds."""
        seconds = 0.0
        files = stage.deduplication.input_digests()
        tasks = [
            SignaturesTask(
                root=self.root,
                stage=stage_json(stage),
                stage_name=self.stage.name,
                key=self._key("signatures", shard.digest, *files),
                shard=shard,
                plugins=_plugins(self.config, self.stage),
            )
            for shard in shards
        ]
        paths = [signatures_path(self.root, self.stage.name, task.key) for task in tasks]
        missing = [task for task, path in zip(tasks, paths, strict=True) if not path.is_file()]
        limits = LimitsConfig(memory_mb=self.config.limits.memory_mb)
        with self._shown(len(tasks), len(tasks) - len(missing), " signatures") as shown:
            for spent in _all(self.executor.map(run_signatures, missing, limits, shown.on_units)):
                seconds += spent
                shown.finish_shard()
        decisions, decide_seconds = self._decided(paths)
        return decisions, seconds + decide_seconds

    def _decided(self, signatures: Sequence[Path]) -> tuple[Path, float]:
        """Compute the decisions, unless they exist; return them and the CPU seconds."""
        key = self._key("decide", [file_digest(path) for path in signatures])
        decisions = self.root / STAGES / self.stage.name / f"{key}.decisions.parquet"
        if decisions.is_file():
            return decisions, 0.0
        task = DecideTask(
            stage=stage_json(self.stage),
            signatures=tuple(signatures),
            out=decisions,
            plugins=_plugins(self.config, self.stage),
        )
        return decisions, sum(_all(self.executor.map(run_decide, [task], NO_LIMITS)))

    def _check_quarantined(self, summary: StageSummary) -> None:
        counts = {reason: count for reason, count in summary.dropped.items() if reason in QUARANTINE_REASONS}
        total = sum(counts.values())
        if total > _FEW and total > self.config.max_quarantined * summary.num_in:
            raise QuarantineError(
                f"stage '{summary.name}' failed on {total:,} of {summary.num_in:,} documents ("
                f"{', '.join(f'{reason} {count:,}' for reason, count in counts.items())}); "
                f"read {self.root / STAGES / summary.name} *.dropped.parquet for the details, or set max_quarantined"
            )

    @contextlib.contextmanager
    def _shown(self, total: int, finished: int, suffix: str = "") -> Iterator[_Shown]:
        with progress(f"{self.stage.name}{suffix}", total) as bar:
            yield _Shown(bar, finished)


class _Shown:
    """Progress of a stage: finished shards, documents and their rate."""

    def __init__(self, bar: Any, finished: int) -> None:
        self._bar, self._finished, self._documents, self._started = bar, finished, 0, time.monotonic()
        if finished:
            bar.note(f"{finished} shards were finished before")
        self._update()

    def on_units(self, count: int) -> None:
        self._documents += count
        self._update()

    def finish_shard(self) -> None:
        self._finished += 1
        self._update()

    def _update(self) -> None:
        rate = self._documents / max(time.monotonic() - self._started, 1e-3)
        self._bar.update(self._finished, f"{self._documents:,} documents, {rate:,.0f}/s" if self._documents else "")


def _plugins(config: PipelineConfig, stage: StageConfig) -> tuple[str, ...]:
    """Return the modules that a worker imports before it reads the JSON form of a stage."""
    return (*config.plugins, *modules_of(stage))


def _without(task: MapTask, failure: Failure) -> MapTask:
    """Return the task without the document at which its worker ended."""
    if failure.position < 0:
        raise QuarantineError(
            f"a worker ended with {failure.detail} outside of the documents of {task.shard.path}; "
            "raise limits.memory_mb, or run with --workers 1 to see its messages"
        )
    if failure.position in {each.position for each in task.quarantined}:
        return replace(task, stop_at=failure.position)  # reading it is what ends the worker
    poison = Quarantined(position=failure.position, reason=failure.reason, detail=failure.detail)
    return replace(task, quarantined=(*task.quarantined, poison))


def _all(outcomes: Iterable[Any]) -> Iterator[Any]:
    """Yield the results; raise if a worker died."""
    for outcome in outcomes:
        if outcome.failure is not None:
            raise QuarantineError(
                f"a worker ended with {outcome.failure.detail} outside of any document; raise limits.memory_mb or make "
                "shards smaller with shard_mb"
            )
        yield outcome.result


def _publish(root: Path, records: Sequence[ShardRecord]) -> tuple[StoredFile, ...]:
    """Put the documents of the last stage into `documents/`, as hard links where the file system has them."""
    published: list[StoredFile] = []
    with atomic_folder(root / DOCUMENTS) as folder:
        for record in records:
            if record.documents.num_rows == 0 and len(records) > 1:
                continue
            name = f"{len(published):05d}.parquet"
            _link(root / record.documents.path, folder / name)
            published.append(replace(record.documents, path=f"{DOCUMENTS}/{name}"))
    return tuple(published)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise CorpusFolderError(f"{out} is a file; choose another output folder")
    foreign = (
        sorted(path.name for path in out.iterdir() if path.name not in _OWN_FILES and path.name[0] != ".")
        if out.exists()
        else []
    )
    if foreign:
        raise CorpusFolderError(f"{out} holds {foreign[0]}, which is not of a corpus; choose another output folder")
