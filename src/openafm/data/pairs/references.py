"""Which images documents show: references by URL, resolved to rows of images out of core.

Each shard of documents gives one row for each of its images: place and key of the URL. The reduction sorts these together
with the responses of all WARC files by key, so that memory does not depend on their number. The newest response counts.
References to a redirect are sorted again with the key of its target.

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
from openafm.core.worker_process import unit
from openafm.data.deduplication.groups import read_shard, read_signatures, working_folder, write_tables
from openafm.data.deduplication.sorting import ExternalSort, Records
from openafm.data.pairs.responses import REDIRECT, config_of, url_key
from openafm.data.pairs.store import Record, ReduceTask, ShardTask
from openafm.data.pipeline.parquet import read_documents

MISSING, FOUND, ENDLESS = range(3)
"""Outcomes of a reference: no response, a response, and redirects that do not end."""
_MAX_REDIRECTS = 5
_RESPONSE, _REFERENCE = range(2)
_KEY = ("high", "low")
# Responses come before references of the same key, the newest first. `shard` and `row` are the place of a response; `shard`,
# `position` and `media` that of a reference.
_ENTRY = np.dtype(
    [
        *(("high", "<u8"), ("low", "<u8"), ("role", "<u1"), ("age", "<i8"), ("shard", "<u4"), ("position", "<u8")),
        *(("media", "<u4"), ("state", "<u1"), ("target_high", "<u8"), ("target_low", "<u8")),
    ]
)
_ORDER = ("high", "low", "role", "age", "shard", "position", "media")
_RESOLVED = np.dtype(
    [
        ("shard", "<u4"),
        ("position", "<u8"),
        ("media", "<u4"),
        ("outcome", "<u1"),
        ("image_shard", "<u4"),
        ("image_row", "<u4"),
    ]
)
_PLACE = ("shard", "position", "media")


def run_references(task: ShardTask) -> Record:
    """Write the references of one shard of documents: position, number of the image in the document, and key."""
    pa = pyarrow()
    import pyarrow.parquet as pq

    columns: dict[str, list[int]] = {"position": [], "media": [], "high": [], "low": []}
    for position, document in enumerate(read_documents(task.shard.path)):
        with unit(position):
            for number, media in enumerate(document.media):
                if media.kind == "image":
                    high, low = url_key(media.url)
                    for name, value in zip(columns, (position, number, high, low), strict=True):
                        columns[name].append(value)
    table = pa.table({name: pa.array(values, pa.uint64()) for name, values in columns.items()})
    with atomic_file(task.path("references.parquet")) as file:
        pq.write_table(table, file, use_dictionary=False)
    return task.finish(Record(counts={"references": table.num_rows}), "references.parquet")


def run_resolve(task: ReduceTask) -> Record:
    """Find the response of each reference; count outcomes and images without a reference."""
    budget = config_of(task.config, task.plugins).selection.memory_mb << 20
    out = task.path("resolved.parquet")
    with working_folder(out) as folder:
        resolved = ExternalSort(folder, "resolved", _RESOLVED, _PLACE, budget // 2)
        responses = task.inputs["responses"]
        waiting = _references(task.inputs["references"])
        for _ in range(_MAX_REDIRECTS + 1):
            redirected = _resolve(responses, waiting, resolved, folder, budget // 2)
            if not redirected:
                break
            waiting = iter(redirected)
        for block in redirected:
            resolved.add(_outcomes(block, ENDLESS))
        referenced = [np.zeros(_num_rows(path), bool) for path in responses]
        counts = np.zeros(3, np.int64)

        def counted() -> Iterator[Any]:
            for block in resolved.merged():
                counts[:] += np.bincount(block["outcome"], minlength=3)
                found = block[block["outcome"] == FOUND]
                for shard in np.unique(found["image_shard"]):
                    referenced[shard][found["image_row"][found["image_shard"] == shard]] = True
                yield pyarrow().table({name: block[name] for name in _RESOLVED.names or ()})

        write_tables(out, _resolved_schema(), counted())
    names = ("missing", "found", "redirects")
    result = {name: int(count) for name, count in zip(names, counts, strict=True)}
    result["images_referenced"] = sum(int(each.sum()) for each in referenced)
    return task.finish(Record(counts=result), "resolved.parquet")


def resolved_of(path: Path, shard: int) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return outcome, shard and row of the image by position and number of the image, for one shard of documents."""
    names = ("position", "media", "outcome", "image_shard", "image_row")
    columns = (each.to_pylist() for each in read_shard(path, shard, names).select(names).columns)
    return {(position, media): (outcome, place, row) for position, media, outcome, place, row in zip(*columns, strict=True)}


def _references(paths: Sequence[Path]) -> Iterator[Records]:
    for part in read_signatures(paths, ("position", "media", *_KEY)):
        entries = np.zeros(len(part), _ENTRY)
        for name in ("position", "media", *_KEY):
            entries[name] = part.column(name)
        entries["role"], entries["shard"] = _REFERENCE, part.shard
        yield entries


def _responses(paths: Sequence[Path]) -> Iterator[Records]:
    for part in read_signatures(paths, ("state", "at", "target_high", "target_low", *_KEY)):
        entries = np.zeros(len(part), _ENTRY)
        for name in ("state", "target_high", "target_low", *_KEY):
            entries[name] = part.column(name)
        entries["age"] = -part.column("at")
        entries["shard"], entries["position"] = part.shard, np.arange(part.start, part.start + len(part))
        yield entries


def _resolve(
    responses: Sequence[Path], waiting: Iterator[Records], resolved: ExternalSort, folder: Path, budget: int
) -> list[Records]:
    """Resolve references; return those whose response is a redirect, with the key of its target."""
    sort = ExternalSort(folder, "entries", _ENTRY, _ORDER, budget)
    for block in _responses(responses):
        sort.add(block)
    for block in waiting:
        sort.add(block)
    redirected = []
    head = np.zeros(1, _ENTRY)  # the first entry of the present key; a key may continue in the next block
    is_first = True
    for block in sort.merged():
        joined = np.concatenate([head, block])
        starts = np.ones(len(joined), bool)
        starts[1:] = (joined["high"][1:] != joined["high"][:-1]) | (joined["low"][1:] != joined["low"][:-1])
        starts[1] |= is_first
        heads = joined[np.maximum.accumulate(np.where(starts, np.arange(len(joined)), 0))]
        head, is_first = heads[-1:].copy(), False
        block_N, heads_N = joined[1:], heads[1:]
        is_reference = block_N["role"] == _REFERENCE
        has_response = heads_N["role"] == _RESPONSE
        resolved.add(_outcomes(block_N[is_reference & ~has_response], MISSING))
        is_redirect = is_reference & has_response & (heads_N["state"] == REDIRECT)
        is_found = is_reference & has_response & ~is_redirect
        resolved.add(_outcomes(block_N[is_found], FOUND, heads_N[is_found]))
        if is_redirect.any():
            moved = block_N[is_redirect].copy()
            moved["high"], moved["low"] = heads_N["target_high"][is_redirect], heads_N["target_low"][is_redirect]
            redirected.append(moved)
    return redirected


def _outcomes(references: Records, outcome: int, responses: Records | None = None) -> Records:
    rows = np.zeros(len(references), _RESOLVED)
    for name in _PLACE:
        rows[name] = references[name]
    rows["outcome"] = outcome
    if responses is not None:
        rows["image_shard"], rows["image_row"] = responses["shard"], responses["position"]
    return rows


def _resolved_schema() -> Any:
    pa = pyarrow()
    types: dict[str, npt.DTypeLike] = {name: _RESOLVED[name] for name in _RESOLVED.names or ()}
    return pa.schema([(name, pa.from_numpy_dtype(kind)) for name, kind in types.items()])


def _num_rows(path: Path) -> int:
    pyarrow()
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)
