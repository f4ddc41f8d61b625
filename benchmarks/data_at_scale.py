"""Starting and reading a corpus of a billion documents.

A corpus of 10^9 documents of 1,000 tokens is simulated: the manifest and the stored rows of every group of shards are real
files, the tokens are sparse files. All shards have the same 244,141 documents, so that one group is packed by the loader's
own code and its files are linked under the names of the other groups. A process of its own then opens the loader, as every
rank of a run does, and reads its first batch.

- `start_s_1e9`: seconds from the call of `LoaderConfig.build` to the first batch of 8 rows of 4,096 tokens.
- `rss_mb`: the peak resident memory of that process, imports included; `rss_mb_before` is that before `build`.
- `rows_per_s_1e9`: rows read at random from the whole corpus; each is in another shard and another group.
- `pack_documents_per_s`: documents packed into rows per second of one process. It happens once per corpus and row length,
  and the processes of a machine share it.
- `rows_per_s`: rows read from a written corpus of one group, whose files are in memory, with verified digests.
- `peer_rows_per_s`: the same number of tokens as slices of one `numpy.memmap` at random positions, without documents,
  targets and masks: what reading the bytes alone costs.
- `datasets_rows_per_s`: the same rows as an Arrow table of Hugging Face `datasets`, if it is installed.

With `--quick` the corpus has 10^9 documents as well, in fewer reads.

    python benchmarks/data_at_scale.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared.reporting import benchmark_parser, hand_in

from openafm.core.config import from_dict, to_dict
from openafm.core.files import write_json
from openafm.data.loading import row_index
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.loading.row_index import GroupRecord, RowsKey, pack_group, shard_groups
from openafm.data.shards.manifest import MANIFEST, FileRecord, Manifest, ShardRecord
from openafm.data.shards.token_shards import open_shards
from openafm.data.shards.writer import write_shards

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "data_at_scale.json"
NUM_DOCUMENTS = 1_000_000_000
NUM_SHARDS = 4096
MEAN_TOKENS = 1000
ROW_TOKENS = 4096
ROWS_PER_STEP = 8
VOCAB_SIZE = 60_000


def lengths(count: int) -> np.ndarray:
    """Return log-normal lengths of documents with a mean of about `MEAN_TOKENS`."""
    rng = np.random.default_rng(0)
    return np.maximum(1, rng.lognormal(np.log(MEAN_TOKENS) - 0.32, 0.8, count).astype(np.int64))


def loader_config(corpus: Path) -> LoaderConfig:
    sources = (SourceConfig(name="web", path=str(corpus)),)
    return LoaderConfig(sources=sources, rows_per_step=ROWS_PER_STEP, row_tokens=ROW_TOKENS)


def simulate(folder: Path) -> tuple[Path, float]:
    """Write the corpus of 10^9 documents and its stored rows; return its folder and the documents packed per second."""
    corpus = folder / "corpus"
    corpus.mkdir()
    num_documents = -(-NUM_DOCUMENTS // NUM_SHARDS)
    offsets = np.concatenate([[0], np.cumsum(lengths(num_documents))])
    num_tokens = int(offsets[-1])
    np.save(corpus / "first.offsets.npy", offsets)
    np.save(corpus / "first.tags.npy", np.zeros((num_documents, 2), dtype=np.uint16))
    sparse = np.lib.format.open_memmap(corpus / "first.tokens.npy", mode="w+", dtype=np.uint16, shape=(num_tokens,))
    sparse.flush()
    shards = []
    for number in range(NUM_SHARDS):
        files = {}
        for kind in ("tokens", "offsets", "tags"):
            name = f"{number:05}.{kind}.npy"
            (corpus / name).hardlink_to(corpus / f"first.{kind}.npy")
            files[kind] = FileRecord(name=name, num_bytes=(corpus / name).stat().st_size, sha256="0" * 64)
        counts: dict[str, Any] = {"languages": {"": num_documents}, "sources": {"web": num_documents}}
        shards.append(ShardRecord(num_tokens=num_tokens, num_documents=num_documents, **counts, **files))
    manifest = Manifest(tokenizer_digest="t", vocab_size=VOCAB_SIZE, languages=("",), sources=("web",), shards=tuple(shards))
    write_json(corpus / MANIFEST, to_dict(manifest))
    return corpus, store_rows(corpus)


def store_rows(corpus: Path) -> float:
    """Pack the first group and store its rows for every group, with the shards of each; return documents per second."""
    opened = open_shards(corpus, verification="sizes")
    groups = shard_groups(opened.manifest)
    key = RowsKey(name="web", languages=None, row_tokens=ROW_TOKENS, seed=0)
    start_s = time.perf_counter()
    packed = pack_group(opened, groups[0], 0, key)
    rate = packed["web"].num_documents / (time.perf_counter() - start_s)
    folder = row_index._folder(opened, key)
    folder.mkdir(parents=True)
    first = row_index._store(folder, 0, packed)
    part = first.parts["web"]
    for number in range(1, len(groups)):
        files = {}
        for kind, file in (("pieces", part.pieces), ("starts", part.starts)):
            files[kind] = replace(file, name=f"{number:05}.0.{kind}.npy")
            (folder / files[kind].name).hardlink_to(folder / file.name)
        write_json(folder / f"{number:05}.json", to_dict(GroupRecord(parts={"web": replace(part, **files)})))
    assert from_dict(GroupRecord, json.loads((folder / f"{len(groups) - 1:05}.json").read_bytes())).parts
    return rate


def open_and_read(corpus: Path, num_steps: int) -> dict[str, float]:
    """Open the loader, read steps, and return times and memory. Runs in a process of its own."""
    from openafm.training.observability.metrics import peak_memory_mb

    before_mb = peak_memory_mb() or 0.0
    start_s = time.perf_counter()
    loader = loader_config(corpus).build(verification="sizes")  # the simulated tokens have no digests
    loader.batch(0)
    opened_s = time.perf_counter()
    for step in range(1, num_steps + 1):
        loader.batch(step)
    seconds = time.perf_counter() - opened_s
    return {
        "start_s_1e9": opened_s - start_s,
        "rss_mb_before": before_mb,
        "rss_mb": peak_memory_mb() or 0.0,
        "rows_per_s_1e9": num_steps * ROWS_PER_STEP / seconds,
        "documents": loader.sources[0].num_documents,
        "row_fill": loader.sources[0].fill,
    }


def read_written(folder: Path, num_documents: int, num_steps: int) -> dict[str, float]:
    """Write a corpus of one group, and read rows from it through the loader and through the peers."""
    corpus = folder / "written"
    rng = np.random.default_rng(1)
    with write_shards(corpus, tokenizer_digest="t", vocab_size=VOCAB_SIZE) as writer:
        for length in lengths(num_documents).tolist():
            writer.add(rng.integers(0, VOCAB_SIZE, length))
    loader = loader_config(corpus).build()
    loader.batch(0)
    start_s = time.perf_counter()
    for step in range(1, num_steps + 1):
        loader.batch(step)
    ours = num_steps * ROWS_PER_STEP / (time.perf_counter() - start_s)
    stored = np.load(corpus / "00000.tokens.npy", mmap_mode="r")
    positions = rng.integers(0, len(stored) - ROW_TOKENS, num_steps * ROWS_PER_STEP).tolist()
    start_s = time.perf_counter()
    for position in positions:
        stored[position : position + ROW_TOKENS].astype(np.int64)
    found = {"rows_per_s": ours, "peer_rows_per_s": len(positions) / (time.perf_counter() - start_s)}
    if importlib.util.find_spec("datasets") is not None:
        found["datasets_rows_per_s"] = read_datasets(folder, stored, positions)
    return found


def read_datasets(folder: Path, tokens: np.ndarray, positions: list[int]) -> float:
    """Return the rows per second of an Arrow table with the same rows, read in random order."""
    import datasets

    count = min(len(tokens) // ROW_TOKENS, 2000)
    rows = tokens[: count * ROW_TOKENS].reshape(count, ROW_TOKENS)
    datasets.Dataset.from_dict({"tokens": list(rows)}).save_to_disk(str(folder / "arrow"))
    table = datasets.load_from_disk(str(folder / "arrow")).with_format("numpy")
    start_s = time.perf_counter()
    for position in positions:
        table[position % count]["tokens"].astype(np.int64)
    return len(positions) / (time.perf_counter() - start_s)


def measure(quick: bool) -> dict[str, float]:
    num_steps = 50 if quick else 500
    with tempfile.TemporaryDirectory() as place:
        os.environ["OPENAFM_CACHE"] = str(Path(place) / "cache")
        corpus, rate = simulate(Path(place))
        print(f"wrote the manifest and the rows of {NUM_DOCUMENTS:,} documents", file=sys.stderr)
        line = [sys.executable, __file__, "--open", str(corpus), "--steps", str(num_steps)]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        print("opened them in a process of their own", file=sys.stderr)
        found |= read_written(Path(place), 5_000 if quick else 50_000, num_steps)
    found["pack_documents_per_s"] = rate
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open is not None:
        print(json.dumps(open_and_read(options.open, options.steps)))
        return
    found = measure(options.quick)
    hand_in({"figures": found}, REPORT, options)


if __name__ == "__main__":
    main()
