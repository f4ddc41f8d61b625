"""Near-duplicates: speed of MinHash beside datasketch, recall and precision on planted pairs, memory of the reduction.

    python benchmarks/deduplication.py [--peer PYTHON] [--quick] [--json]

`minhash_ratio` compares signatures of 112 hashes from the same hashes of 5-word shingles, `text_ratio` signatures
from texts: words, shingles, their hashes and the minima. Both are in CPU time. PYTHON is an interpreter that has
datasketch; without it this one is tried, and without datasketch the figures of the peer are left out. Pairs are
planted at exact Jaccard similarities from 0.5 to 1; `recall` is the share found of those at 0.8 or more, `precision`
the share of found pairs at 0.7 or more (112 hashes cannot separate 0.75 from 0.8). `peak_mb` is the anonymous memory
of the process that decides, with a budget of 16 MB.
A full run writes docs/benchmarks/deduplication.json.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.data.deduplication import MinHashConfig
from openafm.data.deduplication.minhash import minhash_signatures
from openafm.data.deduplication.shingles import shingle_hashes, tokens_of
from openafm.data.web.documents import Dropped, WebDocument

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "deduplication.json"
NUM_WORDS = 760  # of a document, as in a crawl of articles
BUDGET_MB = 16
EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PEER = """
import json, re, sys, time
from datasketch import MinHash
from datasketch.hashfunc import sha1_hash32
texts = json.load(sys.stdin)
def shingles(text):
    words = re.findall(r"\\w+", text.lower())
    return [" ".join(words[place : place + 5]).encode() for place in range(max(len(words) - 4, 1))]
def signature(items, **options):
    minhash = MinHash(num_perm=112, seed=1, **options)
    minhash.update_batch(items)
    return minhash.hashvalues
hashes = [[sha1_hash32(each) for each in shingles(text)] for text in texts]
signature(hashes[0], hashfunc=int)
started = time.process_time()
for each in hashes:
    signature(each, hashfunc=int)
from_hashes = time.process_time() - started
started = time.process_time()
for text in texts:
    signature(shingles(text))
print(json.dumps({"hashes": len(texts) / from_hashes, "text": len(texts) / (time.process_time() - started)}))
"""


def main() -> None:
    parser = benchmark_parser(__doc__, "fewer documents; makes no claim")
    parser.add_argument("--peer", default=sys.executable, help="a Python interpreter that has datasketch")
    options = parser.parse_args()
    num_documents, num_pairs, sizes = (300, 40, (2_000, 8_000)) if options.quick else (1_000, 300, (25_000, 100_000))
    figures = {**measure_speed(num_documents, options.peer), **measure_pairs(num_pairs), **measure_reduction(sizes)}
    hand_in({"figures": {name: figures[name] for name in sorted(figures)}}, REPORT, options)


def measure_speed(num_documents: int, peer: str) -> dict[str, float]:
    """Signatures per CPU second, and the ratio to datasketch; the best of three runs each."""
    generator = random.Random(0)
    texts = [" ".join(words_of(generator, NUM_WORDS)) for _ in range(num_documents)]
    shingles = [shingle_hashes(tokens_of(text).hashes, 5) for text in texts]
    documents = [WebDocument(id=str(index), url="https://a.example/", text=text) for index, text in enumerate(texts)]
    method = MinHashConfig().build()
    ours = {
        "hashes": _rate(num_documents, lambda: _signatures(shingles)),
        "text": _rate(num_documents, lambda: _signatures([shingle_hashes(tokens_of(each).hashes, 5) for each in texts])),
        "table": _rate(num_documents, lambda: method.signatures(documents)),
    }
    figures = {"minhash_s": ours["hashes"], "text_s": ours["text"], "documents_s": ours["table"]}
    theirs = _peer(peer, texts)
    if theirs:
        figures |= {"minhash_s_datasketch": theirs["hashes"], "text_s_datasketch": theirs["text"]}
        figures |= {"minhash_ratio": ours["hashes"] / theirs["hashes"], "text_ratio": ours["text"] / theirs["text"]}
    return {name: round(value, 2 if "ratio" in name else 0) for name, value in figures.items()}


def measure_pairs(pairs_per_bin: int) -> dict[str, Any]:
    """Recall, precision and the share found by exact Jaccard similarity."""
    generator = random.Random(1)
    bins: dict[int, list[tuple[str, str, float]]] = {place: [] for place in range(len(EDGES) - 1)}
    while any(len(each) < pairs_per_bin for each in bins.values()):
        first, second = planted_pair(generator)
        similarity = jaccard(first, second)
        place = max((place for place in bins if EDGES[place] <= similarity), default=-1)
        if place >= 0 and len(bins[place]) < pairs_per_bin:
            bins[place].append((first, second, similarity))
    pairs = [pair for each in bins.values() for pair in each]
    found = _found([pair[:2] for pair in pairs])
    similar = [is_found for is_found, pair in zip(found, pairs, strict=True) if pair[2] >= 0.8]
    of_found = [pair[2] for is_found, pair in zip(found, pairs, strict=True) if is_found]
    shares = {
        f"found_{EDGES[place]:.1f}_{EDGES[place + 1]:.1f}": _share(
            found[place * pairs_per_bin : (place + 1) * pairs_per_bin]
        )
        for place in bins
    }
    figures = {"recall": _share(similar), "precision": _share([each >= 0.7 for each in of_found]), "num_pairs": len(pairs)}
    return figures | {"precision_0.8": _share([each >= 0.8 for each in of_found])} | shares


def measure_reduction(sizes: Sequence[int]) -> dict[str, float]:
    """Documents per CPU second and peak of anonymous memory of `decide`, each size in a process of its own."""
    figures: dict[str, float] = {}
    spawn = multiprocessing.get_context("spawn")
    for name, size in zip(("small", "large"), sizes, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            paths = _write_signatures(Path(folder), size)
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
                seconds, before, peak = pool.submit(_decide, paths, Path(folder) / "decisions").result()
        figures |= {f"documents_{name}": size, f"peak_mb_{name}": round(peak - before, 1)}
        figures |= {f"decide_s_{name}": round(size / seconds)}
    return figures


def words_of(generator: random.Random, count: int) -> list[str]:
    """Return words of which few are frequent, as in a language."""
    return [f"w{int(generator.paretovariate(0.6)) % 20_000}" for _ in range(count)]


def planted_pair(generator: random.Random) -> tuple[str, str]:
    """Return a text and a copy with some words replaced."""
    first = words_of(generator, 300)
    second = list(first)
    for _ in range(generator.randrange(30)):
        second[generator.randrange(len(second))] = f"x{generator.randrange(10**6)}"
    return " ".join(first), " ".join(second)


def jaccard(first: str, second: str) -> float:
    """Return the exact Jaccard similarity of the sets of 5-word shingles."""
    one, other = (set(shingle_hashes(tokens_of(text).hashes, 5).tolist()) for text in (first, second))
    return len(one & other) / len(one | other)


def _found(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Return for each pair whether one of its texts is dropped."""
    import pyarrow.parquet as pq

    method = MinHashConfig().build()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{side}.parquet" for side in (0, 1)]
        shards = [
            [WebDocument(id=f"{index:06d}{side}", url="", text=pair[side]) for index, pair in enumerate(pairs)]
            for side in (0, 1)
        ]
        for path, shard in zip(paths, shards, strict=True):
            pq.write_table(method.signatures(shard), path)
        method.decide(paths, Path(folder) / "decisions")
        decisions = method.read_decisions(Path(folder) / "decisions", 1)
        return [isinstance(method.apply(each, place, decisions), Dropped) for place, each in enumerate(shards[1])]


def _write_signatures(folder: Path, size: int, per_shard: int = 1_000) -> list[Path]:
    """Write signatures of short documents, of which every fifth has a near-duplicate."""
    import pyarrow.parquet as pq

    method, generator = MinHashConfig().build(), random.Random(2)
    paths = []
    previous = words_of(generator, 40)
    for start in range(0, size, per_shard):
        documents = []
        for number in range(start, min(start + per_shard, size)):
            previous = [*previous[:-1], "changed"] if number % 5 == 0 else words_of(generator, 40)
            documents.append(WebDocument(id=f"{number:032d}", url="", text=" ".join(previous)))
        paths.append(folder / f"{start:09d}.parquet")
        pq.write_table(method.signatures(documents), paths[-1])
    return paths


def _decide(paths: Sequence[Path], out: Path) -> tuple[float, float, float]:
    """Return CPU seconds, and MB of anonymous memory before and at the peak."""
    import pyarrow.parquet  # noqa: F401  # its memory is not that of the reduction

    method = MinHashConfig(memory_mb=BUDGET_MB).build()
    before = peak = _anonymous_mb()
    is_finished = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not is_finished.wait(0.005):
            peak = max(peak, _anonymous_mb())

    sampler = threading.Thread(target=sample)
    sampler.start()
    started = time.process_time()
    method.decide(paths, out)
    seconds = time.process_time() - started
    is_finished.set()
    sampler.join()
    return seconds, before, peak


def _anonymous_mb() -> float:
    """Return the memory of this process that is no page of a file, which the system could evict."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def _signatures(shingles: Sequence[Any]) -> None:
    for start in range(0, len(shingles), 256):
        minhash_signatures(shingles[start : start + 256], 112, 1)


def _rate(count: int, work: Any) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return count / best


def _peer(python: str, texts: Sequence[str]) -> dict[str, float]:
    command = [python, "-c", PEER]
    runs = [subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True) for _ in range(3)]
    failed = [run for run in runs if run.returncode]
    if failed:
        reason = (failed[0].stderr.strip().splitlines() or ["no message"])[-1]
        print(
            f"deduplication: {python} does not run datasketch ({reason}); pass an interpreter with --peer", file=sys.stderr
        )
        return {}
    measured = [json.loads(run.stdout) for run in runs]
    return {name: max(each[name] for each in measured) for name in measured[0]}


def _share(values: Sequence[bool]) -> float:
    return round(sum(values) / max(len(values), 1), 4)


if __name__ == "__main__":
    main()
