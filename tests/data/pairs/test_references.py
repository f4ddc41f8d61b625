"""References to images, resolved by sorting, against a dictionary."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openafm.core.config import to_dict
from openafm.data.pairs.config import SelectionConfig
from openafm.data.pairs.references import ENDLESS, FOUND, MISSING, resolved_of, run_resolve
from openafm.data.pairs.responses import OK, REDIRECT, response_schema
from openafm.data.pairs.selection import run_select, selected_of
from openafm.data.pairs.store import ReduceTask
from openafm.recipes.pipelines.images import recipe

SHARDS = 3


@pytest.mark.parametrize("seed", range(3))
def test_references_find_the_newest_response_through_redirects(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    responses = [[_response(rng) for _ in range(rng.randrange(200))] for _ in range(SHARDS)]
    references = [[(p, m, rng.randrange(150)) for p in range(60) for m in range(rng.randrange(4))] for _ in range(SHARDS)]
    responses[0].append({"state": REDIRECT, "high": 7, "low": 0, "at": 9, "target_high": 7, "target_low": 0})  # to itself
    references[0].append((99, 0, 0))
    task = _task(
        tmp_path, "resolve", responses=_write_responses(tmp_path, responses), references=_write(tmp_path, references)
    )
    record = run_resolve(task)
    newest: dict[int, tuple[int, int, int, dict[str, int]]] = {}
    for shard, rows in enumerate(responses):
        for row, values in enumerate(rows):
            candidate = (-values["at"], shard, row, values)
            if values["low"] not in newest or candidate[:3] < newest[values["low"]][:3]:
                newest[values["low"]] = candidate
    expected: dict[int, dict[tuple[int, int], tuple[int, int, int]]] = {}
    for shard, found in enumerate(references):
        expected[shard] = {(position, media): _resolved(newest, key) for position, media, key in found}
        assert resolved_of(task.path("resolved.parquet"), shard) == expected[shard]
    outcomes = [each[0] for of_shard in expected.values() for each in of_shard.values()]
    assert record.counts["missing"] == outcomes.count(MISSING)
    assert record.counts["redirects"] == outcomes.count(ENDLESS)
    images = {each[1:] for of_shard in expected.values() for each in of_shard.values() if each[0] == FOUND}
    assert record.counts["images_referenced"] == len(images)
    assert min(map(outcomes.count, (MISSING, FOUND, ENDLESS))) > 0


@pytest.mark.parametrize("limits", [(1, 2), (3, 0), (0, 4), (2, 1)])
def test_selection_keeps_the_best_of_each_group(tmp_path: Path, limits: tuple[int, int]) -> None:
    rng = random.Random(limits[0])
    groups = np.array([rng.randrange(12) for _ in range(40)], np.uint64)
    rows = [
        [
            {"id": f"{rng.randrange(1 << 30):010d}", "image_shard": 0, "image_row": rng.randrange(40),
             "text_hash": rng.randrange(9), "score": rng.random()}
            for _ in range(70)
        ]
        for _ in range(SHARDS)
    ]  # fmt: skip
    paths = []
    for shard, of_shard in enumerate(rows):
        paths.append(tmp_path / f"candidates-{shard}.parquet")
        schema = pa.schema(
            {
                "id": pa.string(),
                "image_shard": pa.uint32(),
                "image_row": pa.uint32(),
                "text_hash": pa.uint64(),
                "score": pa.float64(),
            }
        )
        pq.write_table(pa.Table.from_pylist(of_shard, schema=schema), paths[-1])
    np.save(tmp_path / "groups.npy", groups)
    responses = _write_responses(tmp_path, [[_response(rng) for _ in range(40)]])
    task = _task(tmp_path, "select", limits, candidates=tuple(paths), responses=responses, groups=(tmp_path / "groups.npy",))
    record = run_select(task)
    expected: dict[tuple[int, int], str] = {}
    pairs = [
        (-each["score"], each["id"], shard, row, int(groups[each["image_row"]]), each["text_hash"])
        for shard, of_shard in enumerate(rows)
        for row, each in enumerate(of_shard)
    ]
    for reason, limit, key in (
        ("duplicate_pair", 1, (4, 5)),
        ("duplicate_image", limits[0], (4,)),
        ("repeated_text", limits[1], (5,)),
    ):
        counts: dict[tuple[object, ...], int] = {}
        for pair in sorted(pair for pair in pairs if pair[2:4] not in expected):
            group = tuple(pair[index] for index in key)
            counts[group] = counts.get(group, 0) + 1
            if limit and counts[group] > limit:
                expected[pair[2], pair[3]] = reason
    found = {
        (shard, row): reason
        for shard in range(SHARDS)
        for row, (reason, _) in selected_of(task.path("selected.parquet"), shard).items()
    }
    assert found == expected
    assert sum(record.dropped.values()) == len(expected) > 0


def _response(rng: random.Random) -> dict[str, int]:
    is_redirect = rng.random() < 0.4
    values = {"state": REDIRECT if is_redirect else OK, "high": 7, "low": rng.randrange(100), "at": rng.randrange(5)}
    return values | (
        {"target_high": 7, "target_low": rng.randrange(110)} if is_redirect else {"target_high": 0, "target_low": 0}
    )


def _resolved(newest: dict[int, tuple[int, int, int, dict[str, int]]], key: int) -> tuple[int, int, int]:
    for _ in range(6):
        if key not in newest:
            return MISSING, 0, 0
        _, shard, row, values = newest[key]
        if values["state"] != REDIRECT:
            return FOUND, shard, row
        key = values["target_low"]
    return ENDLESS, 0, 0


def _write_responses(folder: Path, shards: list[list[dict[str, int]]]) -> tuple[Path, ...]:
    paths = []
    for shard, rows in enumerate(shards):
        paths.append(folder / f"responses-{shard}.rows.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema=response_schema()), paths[-1])
    return tuple(paths)


def _write(folder: Path, shards: list[list[tuple[int, int, int]]]) -> tuple[Path, ...]:
    paths = []
    for shard, rows in enumerate(shards):
        paths.append(folder / f"{shard}.references.parquet")
        values = [{"position": p, "media": m, "high": 7, "low": key} for p, m, key in rows]
        schema = pa.schema([(name, pa.uint64()) for name in ("position", "media", "high", "low")])
        pq.write_table(pa.Table.from_pylist(values, schema=schema), paths[-1])
    return tuple(paths)


def _task(folder: Path, stage: str, limits: tuple[int, int] = (4, 10), **inputs: tuple[Path, ...]) -> ReduceTask:
    (folder / "stages" / stage).mkdir(parents=True, exist_ok=True)
    selection = SelectionConfig(max_texts_per_image=limits[0], max_images_per_text=limits[1], memory_mb=1)
    config = json.dumps(to_dict(replace(recipe(), selection=selection)))
    return ReduceTask(root=folder, stage=stage, key="key", config=config, inputs=inputs)
