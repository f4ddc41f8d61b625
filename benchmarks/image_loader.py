"""Batches with images: samples per second against torch's DataLoader over webdataset, and resuming after kill -9.

    python benchmarks/image_loader.py [--quick] [--json]

Photo-like JPEGs of 640 x 480 to 2048 x 1536 pixels with captions, packed in the drawn resolution modes (report 5.1). Both
sides read the same tar files, decode and resize each image to the same views with Pillow, with one worker per core: threads
here, processes there. The peer has no tokens and no rows. `ratio` is images per core-second (CPU time of the process and of
its workers) against the peer, the median of alternating runs, and `ratio_wall` images per second of wall time. In
`ratio_same_resizing` the peer calls the functions that decode and resize here. Without webdataset the ratios are left out.
`resumed_equal` is 1 if the batches of a process that is killed and started again equal those of one that is not. A full run
writes docs/benchmarks/image_loader.json.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.core.executors import num_cores
from openafm.data.images.decoding import pixels, stored_image
from openafm.data.images.documents import ImageDocument, ImagePart, StoredImage
from openafm.data.images.packing import ImagePackConfig, pack_image_corpus
from openafm.data.images.resolution import MODES, Mode, ResolutionConfig
from openafm.data.images.shard_writer import ShardItem, finish_corpus, write_image_shard
from openafm.data.loading.batch import Batch
from openafm.data.loading.loader import Loader, LoaderConfig, SourceConfig
from openafm.data.shards.token_shards import open_shards
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "image_loader.json"
SIZES = ((640, 480), (1024, 768), (1600, 1200), (2048, 1536))
RESOLUTION = ResolutionConfig()
NUM_SHARDS = 4
ROWS, ROW_TOKENS = 8, 1024


def main() -> None:
    parser = benchmark_parser(__doc__, "fewer images; makes no claim")
    parser.add_argument("--batches", nargs=3, metavar=("SHARDS", "FIRST", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batches:
        print_digests(Path(options.batches[0]), int(options.batches[1]), int(options.batches[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), 32 if options.quick else 160, 1 if options.quick else 3)
    hand_in({"figures": figures}, REPORT, options)


def measure(folder: Path, num_images: int, num_runs: int) -> dict[str, float]:
    """Write a corpus of `num_images`, read it with both loaders and return the figures."""
    make_corpus(folder / "corpus", num_images)
    config = ImagePackConfig(learn=("captions",), resolution=RESOLUTION)
    pack_image_corpus(folder / "corpus", folder / "shards", Tokenizer([]), ChatTemplate(), config)
    sides: dict[str, Callable[[], int]] = {"ours": lambda: ours(folder / "shards")}
    if importlib.util.find_spec("webdataset"):
        modes = modes_of(folder / "shards")  # both sides read each image in the same mode
        sides["peer"] = lambda: peer(folder / "corpus", partial(decode_plain, modes))
        sides["peer_same_resizing"] = lambda: peer(folder / "corpus", partial(decode_as_here, modes))
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(num_runs):
        for name, run in sides.items():
            started = core_seconds(), time.perf_counter()
            count = run()
            speeds[name].append((count / (core_seconds() - started[0]), count / (time.perf_counter() - started[1])))
    cpu, wall = ({name: statistics.median(run[axis] for run in runs) for name, runs in speeds.items()} for axis in (0, 1))
    ratios = {"ratio": (cpu, "peer"), "ratio_same_resizing": (cpu, "peer_same_resizing"), "ratio_wall": (wall, "peer")}
    return {
        **{name: round(of["ours"] / of[side], 2) for name, (of, side) in ratios.items() if side in of},
        **{f"images_per_core_s.{name}": round(value, 1) for name, value in cpu.items()},
        "images": float(num_images),
        "workers": float(num_cores()),
        "resumed_equal": float(resumes(folder / "shards")),
    }


def make_corpus(folder: Path, num_images: int) -> None:
    """Write photo-like JPEGs with captions in `NUM_SHARDS` shards."""
    summaries = []
    for shard in range(NUM_SHARDS):
        items: list[ShardItem] = []
        for number in range(shard, num_images, NUM_SHARDS):
            image = stored_image(photo(number))
            assert isinstance(image, StoredImage)
            parts = (ImagePart(digest=image.digest),)
            document = ImageDocument(id=f"{number}", kind="pair", parts=parts, captions={"short": f"noise number {number}"})
            items.append((document, (image,)))
        summaries.append(write_image_shard(folder, shard, items))
    finish_corpus(folder, {}, summaries)


def photo(number: int) -> bytes:
    """Return fractal noise, whose JPEG is as large as that of a photograph."""
    rng = np.random.default_rng(number)
    size = SIZES[number % len(SIZES)]
    total = np.zeros((size[1], size[0], 3), np.float32)
    for octave in (2, 4, 6, 8):
        layer = Image.fromarray(rng.integers(0, 256, (2**octave, 2**octave, 3), dtype=np.uint8))
        total += np.asarray(layer.resize(size, Image.Resampling.BICUBIC), np.float32) * 0.6**octave
    stream = io.BytesIO()
    Image.fromarray((total * (255 / total.max())).astype(np.uint8)).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def loader_of(shards: Path) -> Loader:
    """Open the packed corpus."""
    source = SourceConfig(name="images", path=str(shards))
    return LoaderConfig(sources=(source,), rows_per_step=ROWS, row_tokens=ROW_TOKENS).build(verification="sizes")


def core_seconds() -> float:
    """Return the CPU time of this process and of its finished children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def ours(shards: Path) -> int:
    """Read an epoch with our loader; return the number of images."""
    loader = loader_of(shards)
    batches = (loader.batch(step) for step in range(loader.sources[0].num_rows // ROWS))
    return sum(len(batch.embedding_spans) for batch in batches)


def peer(corpus: Path, decode: Callable[[dict[str, Any]], Any]) -> int:
    """Read an epoch with torch's DataLoader over webdataset, whose workers are forked; return the number of images."""
    import torch.utils.data
    import webdataset

    paths = sorted(str(path) for path in corpus.glob("*.tar"))
    dataset = webdataset.WebDataset(paths, shardshuffle=False).map(decode)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=min(num_cores(), NUM_SHARDS), multiprocessing_context="fork"
    )
    return sum(1 for _ in loader)  # the end of the epoch waits for the workers


def modes_of(shards: Path) -> dict[str, Mode]:
    """Return the resolution mode of each image of packed shards by digest."""
    opened = open_shards(shards)
    slots = (slot for shard in range(opened.num_shards) for slot in opened.image_slots(shard, 0, sys.maxsize))
    return {bytes(slot["digest"]).ljust(32, b"\0").hex(): MODES[slot["mode"]] for slot in slots}


def decode_plain(modes: dict[str, Mode], sample: dict[str, Any]) -> Any:
    """Return the views of a sample as they are usually computed: decode whole, convert, resize."""
    image = Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
    mode = modes[sample["__key__"]]
    side = RESOLUTION.mode(mode).side
    overview = np.array(image.resize((side, side), Image.Resampling.BICUBIC))[None]
    if mode != "high":
        return overview
    grid = RESOLUTION.grid
    whole = np.asarray(image.resize((side * grid, side * grid), Image.Resampling.BICUBIC))
    tiles = whole.reshape(grid, side, grid, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    return np.concatenate([overview, tiles])


def decode_as_here(modes: dict[str, Mode], sample: dict[str, Any]) -> Any:
    """Return the views of a sample by the functions of this project."""
    image = StoredImage(digest=sample["__key__"], data=sample["jpg"], format="jpeg", width=0, height=0)
    mode = modes[image.digest]
    return np.array(RESOLUTION.views(pixels(image, side=RESOLUTION.needed_side(mode)), mode))


def print_digests(shards: Path, first: int, count: int) -> None:
    """Print a digest of each batch from step `first` on."""
    batches = loader_of(shards).batches(first)
    for step in range(first, first + count):
        print(json.dumps([step, digest_of(next(batches))]), flush=True)


def digest_of(batch: Batch) -> str:
    """Return a digest of all that a batch has."""
    digest = hashlib.sha256(batch.tokens_BS.tobytes() + batch.loss_mask_BS.tobytes())
    for span in batch.embedding_spans:
        digest.update(repr(span).encode() + batch.images[span.image].tobytes())
    return digest.hexdigest()


def resumes(shards: Path, count: int = 6) -> bool:
    """Return whether a process that is killed after three batches and started again gives the same batches."""
    whole = dict(batches_of(shards, 0, count))
    seen = dict(batches_of(shards, 0, count, kill_after=3))
    seen |= dict(batches_of(shards, len(seen), count - len(seen)))
    return seen == whole and len(whole) == count


def batches_of(shards: Path, first: int, count: int, kill_after: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield steps and digests from another process, which is killed after `kill_after` batches."""
    command = [sys.executable, __file__, "--batches", str(shards), str(first), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, start=1):
            step, digest = json.loads(line)
            yield step, digest
            if number == kill_after:
                os.kill(process.pid, signal.SIGKILL)
                return


if __name__ == "__main__":
    main()
