"""Which pairs are kept among those with similar images or equal texts, and which images many documents show; out of core.

Shape suffix: N rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.core.files import atomic_file
from openafm.core.libraries import pyarrow
from openafm.data.deduplication.groups import (
    ID_BYTES,
    first_numbers,
    read_shard,
    read_signatures,
    working_folder,
    write_tables,
)
from openafm.data.deduplication.sorting import ExternalSort, Records
from openafm.data.pairs.config import SELECTION_REASONS, PairsConfig
from openafm.data.pairs.references import FOUND
from openafm.data.pairs.responses import config_of
from openafm.data.pairs.store import Record, ReduceTask

Groups = npt.NDArray[np.uint64]

_PAIR = np.dtype(
    [
        *(("high", "<u8"), ("low", "<u8"), ("penalty", "<f8"), ("id", f"S{ID_BYTES}")),
        *(("group", "<u8"), ("text", "<u8"), ("shard", "<u4"), ("row", "<u8")),
    ]
)
_PAIR_ORDER = ("high", "low", "penalty", "id", "shard", "row")
_DROP = np.dtype([("shard", "<u4"), ("row", "<u8"), ("reason", "<u1"), ("kept", f"S{ID_BYTES}")])
_SIGHT = np.dtype([("group", "<u8"), ("shard", "<u4"), ("position", "<u8")])


def run_groups(task: ReduceTask) -> Record:
    """Write the group of near-duplicates of each image, in the order of shards and rows: a number from the digest of one."""
    config = config_of(task.config, task.plugins)
    out = task.path("groups.npy")
    responses = task.inputs["responses"]
    first_of = first_numbers(responses)
    groups_N = np.zeros(int(first_of[-1]), np.uint64)
    with working_folder(out) as folder:
        decisions = folder / "decisions.parquet"
        if config.duplicates is not None:
            config.duplicates.build().decide(task.inputs["signatures"], decisions)
        for part in read_signatures(responses, ("digest",)):
            kept = _kept_digests(config, task.inputs["signatures"], decisions, part.shard)
            start = int(first_of[part.shard]) + part.start
            for number, digest in enumerate(part.batch.column("digest").to_pylist(), start):
                if digest:
                    groups_N[number] = int(kept.get(digest[:ID_BYTES], digest)[:16], 16)
    with atomic_file(out) as file:
        np.lib.format.write_array(file, groups_N, allow_pickle=False)
    return task.finish(Record(counts={"groups": len(np.unique(groups_N[groups_N > 0]))}), "groups.npy")


def _kept_digests(config: PairsConfig, signatures: Sequence[Path], decisions: Path, shard: int) -> dict[str, str]:
    """Return the digest of the kept image by that of its near-duplicates, for the images of one shard."""
    if config.duplicates is None:
        return {}
    dropped = config.duplicates.build().read_decisions(decisions, shard)
    parts = read_signatures(signatures[shard : shard + 1], ("id",))
    ids = (each for part in parts for each in part.batch.column("id").to_pylist())
    return {digest.decode(): dropped[position] for position, digest in enumerate(ids) if position in dropped}


def run_select(task: ReduceTask) -> Record:
    """Write which pairs are dropped: shard, row, reason, and the identifier of the pair that is kept."""
    config = config_of(task.config, task.plugins)
    limits = (1, config.selection.max_texts_per_image, config.selection.max_images_per_text)
    groups = _groups(task)
    first_of = first_numbers(task.inputs["responses"])
    out = task.path("selected.parquet")
    budget = (config.selection.memory_mb << 20) // 3  # three sorts are open at a time
    counts = np.zeros(len(SELECTION_REASONS), np.int64)
    with working_folder(out) as folder:
        drops = ExternalSort(folder, "drops", _DROP, ("shard", "row"), budget)
        blocks = _candidates(task.inputs["candidates"], groups, first_of)
        for reason, (limit, keys) in enumerate(zip(limits, (("group", "text"), ("group",), ("text",)), strict=True)):
            sort = ExternalSort(folder, f"pairs-{reason}", _PAIR, _PAIR_ORDER, budget)
            for block in blocks:
                block["high"], block["low"] = block[keys[0]], block[keys[1]] if len(keys) > 1 else 0
                sort.add(block)
            blocks = _limited(sort, limit, reason, drops, counts)
        for _ in blocks:
            pass

        def tables() -> Iterator[Any]:
            pa = pyarrow()
            for block in drops.merged():
                columns = {name: block[name] for name in ("shard", "row", "reason")}
                yield pa.table(columns | {"kept": [each.decode() for each in block["kept"].tolist()]})

        pa = pyarrow()
        schema = pa.schema([("shard", pa.uint32()), ("row", pa.uint64()), ("reason", pa.uint8()), ("kept", pa.string())])
        write_tables(out, schema, tables())
    dropped = {name: int(count) for name, count in zip(SELECTION_REASONS, counts, strict=True) if count}
    return task.finish(Record(dropped=dropped), "selected.parquet")


def selected_of(path: Path, shard: int) -> dict[int, tuple[str, str]]:
    """Return reason and identifier of the kept pair by row of the candidates, for the dropped ones of one shard."""
    columns = (each.to_pylist() for each in read_shard(path, shard, ("row", "reason", "kept")).select((1, 2, 3)).columns)
    return {row: (SELECTION_REASONS[reason], kept) for row, reason, kept in zip(*columns, strict=True)}


def run_repeated(task: ReduceTask) -> Record:
    """Write the groups of images that too many documents show, sorted."""
    config = config_of(task.config, task.plugins)
    limit = _max_documents(config)
    groups, first_of = _groups(task), first_numbers(task.inputs["responses"])
    out = task.path("repeated.npy")
    repeated: list[npt.NDArray[np.uint64]] = []
    with working_folder(out) as folder:
        sort = ExternalSort(folder, "sights", _SIGHT, _SIGHT.names or (), config.selection.memory_mb << 20)
        names = ("shard", "position", "outcome", "image_shard", "image_row")
        for part in read_signatures(task.inputs["resolved"], names):
            is_found = part.column("outcome") == FOUND
            sights = np.zeros(int(is_found.sum()), _SIGHT)
            sights["shard"], sights["position"] = part.column("shard")[is_found], part.column("position")[is_found]
            images = first_of[part.column("image_shard")[is_found]] + part.column("image_row")[is_found]
            sights["group"] = groups[images]
            sort.add(sights)
        last, num_documents = np.zeros(1, _SIGHT), 0
        for block in sort.merged():
            joined = np.concatenate([last, block])
            is_new = np.any([joined[name][1:] != joined[name][:-1] for name in _SIGHT.names or ()], axis=0)
            is_new[0] |= num_documents == 0
            distinct = block[is_new]
            found, counts = np.unique(distinct["group"], return_counts=True)
            if len(found) and num_documents and found[0] == last["group"][0]:
                counts[0] += num_documents
            if len(found):
                repeated.append(found[counts > limit])
                num_documents = int(counts[-1])
            last = block[-1:].copy()
    result = np.unique(np.concatenate([np.zeros(0, np.uint64), *repeated])) if limit else np.zeros(0, np.uint64)
    with atomic_file(out) as file:
        np.lib.format.write_array(file, result, allow_pickle=False)
    return task.finish(Record(counts={"repeated_groups": len(result)}), "repeated.npy")


def _max_documents(config: PairsConfig) -> int:
    return config.interleaved.max_documents_per_image if config.interleaved is not None else 0


def _groups(task: ReduceTask) -> Groups:
    (path,) = task.inputs["groups"]
    groups: Groups = np.load(path, mmap_mode="r", allow_pickle=False)
    return groups


def _candidates(paths: Sequence[Path], groups: Groups, first_of: npt.NDArray[np.int64]) -> Iterator[Records]:
    for part in read_signatures(paths, ("id", "image_shard", "image_row", "text_hash", "score")):
        pairs = np.zeros(len(part), _PAIR)
        pairs["penalty"] = -part.column("score")
        pairs["id"] = np.array([each.encode() for each in part.batch.column("id").to_pylist()], f"S{ID_BYTES}")
        pairs["group"] = groups[first_of[part.column("image_shard")] + part.column("image_row")]
        pairs["text"] = part.column("text_hash")
        pairs["shard"], pairs["row"] = part.shard, np.arange(part.start, part.start + len(part))
        yield pairs


def _limited(
    sort: ExternalSort, limit: int, reason: int, drops: ExternalSort, counts: npt.NDArray[np.int64]
) -> Iterator[Records]:
    """Yield the first `limit` pairs of each key, and note the others as drops; 0 is no limit."""
    last, rank = np.zeros(1, _PAIR), -1  # the first pair of the present key, and the rank of its last one
    for block in sort.merged():
        starts = np.ones(len(block), bool)
        starts[1:] = (block["high"][1:] != block["high"][:-1]) | (block["low"][1:] != block["low"][:-1])
        starts[0] = rank < 0 or (block["high"][0], block["low"][0]) != (last["high"][0], last["low"][0])
        places = np.arange(len(block))
        firsts = np.maximum.accumulate(np.where(starts, places, -1))
        ranks = np.where(firsts >= 0, places - firsts, places + rank + 1)
        kept = np.where(firsts >= 0, block["id"][firsts], last["id"][0])
        is_dropped = (ranks >= limit) if limit else np.zeros(len(block), bool)
        dropped = np.zeros(int(is_dropped.sum()), _DROP)
        dropped["shard"], dropped["row"] = block["shard"][is_dropped], block["row"][is_dropped]
        dropped["reason"], dropped["kept"] = reason, kept[is_dropped]
        drops.add(dropped)
        counts[reason] += len(dropped)
        rank = int(ranks[-1])
        last = block[firsts[-1] : firsts[-1] + 1].copy() if firsts[-1] >= 0 else last
        yield block[~is_dropped].copy()
