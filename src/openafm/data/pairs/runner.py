"""Run the stages of image data: pages, images, references, filtered pairs, selection, and the shards of the corpus."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.core.config import Config, from_dict, to_dict
from openafm.core.executors import Executor
from openafm.core.files import matches, room_for
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import progress
from openafm.core.regular_files import read_document
from openafm.core.worker_process import NO_LIMITS, Failure
from openafm.data.images.manifest import PATTERNS, Manifest, ShardSummary
from openafm.data.images.shard_writer import finish_corpus, finished_shard
from openafm.data.pairs.candidates import build_filters, run_candidates
from openafm.data.pairs.config import PairsConfig
from openafm.data.pairs.references import run_references, run_resolve
from openafm.data.pairs.responses import run_images
from openafm.data.pairs.selection import run_groups, run_repeated, run_select
from openafm.data.pairs.store import CODE_VERSION, Quarantined, Record, ReduceTask, ShardTask, added
from openafm.data.pairs.writing import DOCUMENT, PAIR, PLACED, run_write_interleaved, run_write_pairs
from openafm.data.pipeline.config import QUARANTINE_REASONS, PipelineConfig, StageConfig
from openafm.data.pipeline.inputs import WARC_SUFFIXES, Shard, find_inputs, shards_of
from openafm.data.pipeline.runner import CorpusFolderError, QuarantineError, run_pipeline
from openafm.data.pipeline.store import STAGES, CorpusManifest, UncountedError, config_key, key_of, modules_of

_STAGES = ("pages", "images", "references", "resolve", "candidates", "groups", "select", "repeated", "write")
_FEW = 20
REPORT = "report.html"


def run_pairs(config: PairsConfig, inputs: Sequence[Path], out: Path) -> Manifest:
    """Make an image corpus of pairs and interleaved documents from WARC files at `out`.

    Results that an earlier run finished are not computed again, also after that run was killed. The corpus does not depend
    on the executor, its number of workers, or the order and names of the input files.

    Raises:
        PipelineInputError: there is no WARC file.
        CorpusFolderError: `out` has other files; nothing is written.
        FolderInUseError: another run writes to `out`.
        QuarantineError: a stage fails on too many pages or images.
        OutOfSpaceError: the disk is full; finished results are kept.
    """
    paths = find_inputs(inputs, WARC_SUFFIXES)
    build_filters(config)  # a missing library or program fails here, before any work
    _check_folder(out)
    with folder_lock(out), room_for(out), config.executor.build() as executor:
        stages = out / STAGES
        for name in _STAGES:
            (stages / name).mkdir(parents=True, exist_ok=True)
        pages = run_pipeline(_pipeline(config, config.pages), paths, stages / "pages", executor)
        documents = Documents(pages, stages / "pages")
        texts = documents if config.interleaved is not None else None
        if config.interleaved is not None and config.interleaved.stages and pages.num_kept:
            kept = [stages / "pages" / file.path for file in pages.documents]
            filtered = run_pipeline(_pipeline(config, config.interleaved.stages), kept, stages / "texts", executor)
            texts = Documents(filtered, stages / "texts")
        run = _Run(config, executor, out)
        return run.corpus([shard for file in pages.inputs for shard in shards_of(file)], documents, texts)


@dataclass(frozen=True)
class Documents:
    """A corpus of the text pipeline and its folder."""

    manifest: CorpusManifest
    folder: Path

    def shards(self) -> list[Shard]:
        """Return the documents, one shard for each of the input; empty ones are among them."""
        records = self.manifest.stages[-1].shards
        return [Shard(path=self.folder / each.documents.path, digest=each.documents.sha256) for each in records]


@dataclass(frozen=True)
class _Run:
    """One run on images and documents, after the text pipeline."""

    config: PairsConfig
    executor: Executor
    root: Path

    def corpus(self, pages: Sequence[Shard], documents: Documents, texts: Documents | None) -> Manifest:
        """Compute the corpus. `pages` are the shards of the WARC files."""
        config = self.config
        image_keys = [config_key(config.images), _config_keys(config.duplicates), to_dict(config.limits)]
        image_tasks = [self._shard_task("images", shard, *image_keys, shard.digest) for shard in pages]
        image_records = self._map(run_images, image_tasks, "images")
        self._check_quarantined(image_records, "images")
        responses = tuple(task.path("rows.parquet") for task in image_tasks)
        image_key = key_of([task.key for task in image_tasks])
        signatures = tuple(task.path("signatures.parquet") for task in image_tasks)
        group_inputs = {"responses": responses, "signatures": signatures if config.duplicates is not None else ()}
        groups = self._reduce("groups", run_groups, group_inputs, image_key, _config_keys(config.duplicates))

        shards = documents.shards()
        resolved, resolve_record, num_references = self._resolved(shards, responses, image_key)
        filters = [config_key(each) for each in (*config.text_filters, *config.pair_filters)]
        candidates = [
            dataclasses.replace(
                self._shard_task("candidates", shard, filters, config.opt_outs, to_dict(config.limits), resolved.key, index),
                index=index,
                inputs={"resolved": resolved.path("resolved.parquet")},
                image_shards=responses,
            )
            for index, shard in enumerate(shards)
        ]
        self._check_quarantined(self._map(run_candidates, candidates, "pairs"), "candidates")
        files = tuple(task.path("candidates.parquet") for task in candidates)
        select_inputs = {"candidates": files, "responses": responses, "groups": (groups.path("groups.npy"),)}
        select = self._reduce(
            "select", run_select, select_inputs, [t.key for t in candidates], groups.key, to_dict(config.selection)
        )

        write = [
            dataclasses.replace(
                self._shard_task("write", shard, select.key, task.key, index),
                index=index,
                output=index,
                image_shards=responses,
                inputs={
                    "candidates": task.path("candidates.parquet"),
                    "drops": task.path("drops.parquet"),
                    "selected": select.path("selected.parquet"),
                    "responses": responses[index],
                },
            )
            for index, (shard, task) in enumerate(zip(shards, candidates, strict=True))
        ]
        written = self._map(run_write_pairs, write, "write pairs")
        counts: dict[str, Any] = {
            "pages": _corpus_counts(documents.manifest),
            "images": _image_counts(image_records, resolve_record),
            "pairs": _unit_counts(num_references, written, PAIR),
        }
        if texts is not None:
            if texts is not documents:
                counts["texts"] = _corpus_counts(texts.manifest)
            written += self._interleaved(texts, responses, image_key, groups, len(write), counts)
        _check_counts(counts)
        described = {name: value for name, value in to_dict(config).items() if name != "executor"}
        summaries = [_summary(self.root, index) for index in range(len(written))]
        return finish_corpus(self.root, {"kind": "pairs", "config": described, "counts": counts}, summaries)

    def _interleaved(
        self,
        texts: Documents,
        responses: tuple[Path, ...],
        image_key: str,
        groups: ReduceTask,
        first_output: int,
        counts: dict[str, Any],
    ) -> list[Record]:
        """Write the interleaved documents and count them."""
        shards = texts.shards()
        resolved, _, num_references = self._resolved(shards, responses, image_key)
        repeated_inputs = {
            "resolved": (resolved.path("resolved.parquet"),),
            "responses": responses,
            "groups": (groups.path("groups.npy"),),
        }
        assert self.config.interleaved is not None
        rules = to_dict(self.config.interleaved)
        repeated = self._reduce("repeated", run_repeated, repeated_inputs, resolved.key, groups.key, rules)
        filters = [config_key(each) for each in self.config.pair_filters if each.IS_OF_IMAGES]
        tasks = [
            dataclasses.replace(
                self._shard_task("write", shard, repeated.key, rules, filters, self.config.opt_outs, index, first_output),
                index=index,
                output=first_output + index,
                image_shards=responses,
                inputs={
                    "resolved": resolved.path("resolved.parquet"),
                    "groups": groups.path("groups.npy"),
                    "repeated": repeated.path("repeated.npy"),
                },
            )
            for index, shard in enumerate(shards)
        ]
        written = self._map(run_write_interleaved, tasks, "write documents")
        counts["documents"] = _unit_counts(texts.manifest.num_kept, written, DOCUMENT)
        placed = _unit_counts(num_references, written, PLACED)
        placed["kept"] = sum(record.counts.get("images", 0) for record in written)
        counts["interleaved_images"] = placed
        return written

    def _resolved(
        self, shards: Sequence[Shard], responses: tuple[Path, ...], image_key: str
    ) -> tuple[ReduceTask, Record, int]:
        """Resolve the references of documents; return the task, its record, and the number of references."""
        tasks = [self._shard_task("references", shard, shard.digest) for shard in shards]
        records = self._map(run_references, tasks, "references")
        inputs = {"responses": responses, "references": tuple(task.path("references.parquet") for task in tasks)}
        task = self._reduce("resolve", run_resolve, inputs, image_key, [each.key for each in tasks])
        record = task.found()
        assert record is not None
        return task, record, sum(each.counts["references"] for each in records)

    def _shard_task(self, stage: str, shard: Shard, *key: object) -> ShardTask:
        return ShardTask(root=self.root, stage=stage, key=_key(stage, *key, shard.digest), shard=shard, **self._code())

    def _code(self) -> dict[str, Any]:
        config = dataclasses.replace(self.config, plugins=())
        return {
            "config": json.dumps(to_dict(config), sort_keys=True),
            "plugins": (*self.config.plugins, *modules_of(self.config)),
        }

    def _reduce(
        self, stage: str, function: Callable[[ReduceTask], Record], inputs: Mapping[str, tuple[Path, ...]], *key: object
    ) -> ReduceTask:
        """Compute a reduction, unless its result exists, and return its task."""
        task = ReduceTask(root=self.root, stage=stage, key=_key(stage, *key), inputs=inputs, **self._code())
        if task.found() is None:
            for outcome in self.executor.map(function, [task], NO_LIMITS):
                if outcome.failure is not None:
                    raise QuarantineError(
                        f"a worker ended with {outcome.failure.detail} in the stage '{stage}'; free memory"
                    )
        return task

    def _map(self, function: Callable[[ShardTask], Record], tasks: Sequence[ShardTask], title: str) -> list[Record]:
        """Compute shards that have no result; a shard whose worker died is computed again without the unit that ended it."""
        found = {task.key: record for task in tasks if (record := _found(task)) is not None}
        waiting = [task for task in tasks if task.key not in found]
        with progress(title, len(tasks)) as bar:
            bar.update(len(found))
            while waiting:
                again = []
                for outcome in self.executor.map(function, waiting, self.config.limits):
                    if outcome.failure is not None:
                        again.append(_without(outcome.item, outcome.failure))
                    elif outcome.result is not None:
                        found[outcome.item.key] = outcome.result
                        bar.update(len(found))
                waiting = again
        return [found[task.key] for task in tasks]

    def _check_quarantined(self, records: Sequence[Record], stage: str) -> None:
        """Check that a stage fails on few images only.

        Raises:
            QuarantineError: it fails on more than `max_quarantined` of them.
        """
        total = sum(record.counts.get("in", 0) for record in records)
        failed = sum(record.dropped.get(reason, 0) for record in records for reason in QUARANTINE_REASONS)
        if failed > _FEW and failed > self.config.max_quarantined * total:
            raise QuarantineError(
                f"the stage '{stage}' failed on {failed:,} of {total:,} images; read {self.root / STAGES / stage} for the "
                "details, or set max_quarantined"
            )


def _key(stage: str, *parts: object) -> str:
    return key_of("pairs", CODE_VERSION, stage, *parts)


def _config_keys(*configs: Config | None) -> list[object]:
    return [config_key(each) for each in configs if each is not None]


def _found(task: ShardTask) -> Record | None:
    """Return the record of a finished task; a shard of the corpus must be of this task too."""
    if task.stage == "write" and finished_shard(task.root, task.output, task.key) is None:
        return None
    return task.found()


def _pipeline(config: PairsConfig, stages: tuple[StageConfig, ...]) -> PipelineConfig:
    return PipelineConfig(
        recipe=config.recipe,
        stages=stages,
        limits=config.limits,
        executor=config.executor,
        shard_mb=config.shard_mb,
        max_quarantined=config.max_quarantined,
        plugins=config.plugins,
    )


def _without(task: ShardTask, failure: Failure) -> ShardTask:
    """Return the task without the unit at which its worker ended."""
    known = {each.position for each in task.quarantined}
    if failure.position < 0 or failure.position in known or task.stage in ("references", "write"):
        raise QuarantineError(
            f"a worker ended with {failure.detail} in the stage '{task.stage}' at unit {failure.position} of "
            f"{task.shard.path}; raise limits.memory_mb, or leave the file out"
        )
    poison = Quarantined(position=failure.position, reason=failure.reason, detail=failure.detail)
    return dataclasses.replace(task, quarantined=(*task.quarantined, poison))


def _counts(num_in: int, num_kept: int, dropped: Mapping[str, int]) -> dict[str, Any]:
    return {"in": num_in, "kept": num_kept, "dropped": dict(dropped)}


def _corpus_counts(corpus: CorpusManifest) -> dict[str, Any]:
    total: dict[str, int] = {}
    for stage in corpus.stages:
        total = added(total, stage.dropped)
    return _counts(corpus.num_in, corpus.num_kept, total)


def _unit_counts(num_in: int, records: Sequence[Record], unit: str) -> dict[str, Any]:
    """Return the counts of one unit of the corpus; its drops are those whose reason begins with its name."""
    dropped: dict[str, int] = {}
    for record in records:
        own = {name.removeprefix(f"{unit}."): count for name, count in record.dropped.items() if name.startswith(f"{unit}.")}
        dropped = added(dropped, own)
    return _counts(num_in, sum(record.counts["documents"] for record in records), dropped)


def _image_counts(records: Sequence[Record], resolved: Record) -> dict[str, Any]:
    dropped: dict[str, int] = {}
    for record in records:
        dropped = added(dropped, record.dropped)
    num_in, num_decoded = (sum(record.counts.get(name, 0) for record in records) for name in ("in", "decoded"))
    return _counts(num_in, num_decoded, dropped) | {"referenced": resolved.counts["images_referenced"]}


def _check_counts(counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that each page, image, pair and document is counted once.

    Raises:
        UncountedError: one is neither kept nor dropped.
    """
    for name, each in counts.items():
        num_dropped = sum(each["dropped"].values())
        if each["in"] != each["kept"] + num_dropped:
            raise UncountedError(
                f"{name}: {each['in']} in, {each['kept']} kept, {num_dropped} dropped; report this error with the config"
            )


def _summary(root: Path, index: int) -> ShardSummary:
    return from_dict(ShardSummary, json.loads(read_document(root / f"{index:05}.json")))


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise CorpusFolderError(f"{out} is a file; choose another output folder")
    own = (STAGES, REPORT, *PATTERNS)
    names = sorted(path.name for path in out.iterdir()) if out.exists() else []
    foreign = [name for name in names if name[0] != "." and not matches(name, own)]
    if foreign:
        raise CorpusFolderError(f"{out} holds {foreign[0]}, which is not of image data; choose another output folder")
