"""Near-duplicate images: recall and precision on planted crops, rescales and re-encodes, and signatures per second.

    python benchmarks/image_duplicates.py [--quick] [--json]

Pictures are of four kinds: photo-like (fractal noise with shapes), pages of text, bar charts, and flyers of the project's
generator. Each second picture gets three copies: JPEG of quality 20 to 60; scaled to 30 to 80 % of its size; a crop that
keeps 80 to 98 % of both sides, as JPEG. `recall` is the share of copies that are in the group of their picture, `precision`
the share of dropped images that are copies of the kept one; charts and pages look alike, so they test it. A full run
writes docs/benchmarks/image_duplicates.json.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.data.images.duplicates import ImageDuplicatesConfig, image_signature

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "image_duplicates.json"
SIZE = (480, 360)
COPIES = ("encoded", "scaled", "cropped")


def main() -> None:
    options = benchmark_parser(__doc__, "fewer pictures; makes no claim").parse_args()
    hand_in({"figures": measure(40 if options.quick else 600)}, REPORT, options)


def measure(num_pictures: int) -> dict[str, float]:
    """Plant copies of `num_pictures` pictures, find them, and return the figures."""
    method = ImageDuplicatesConfig().build()
    signatures, truth = [], []
    seconds = 0.0
    for number in range(num_pictures):
        rng = random.Random(number)
        kind, picture = picture_of(number, rng)
        versions = [("original", picture)] + (list(copies(picture, rng)) if number % 8 < 4 else [])
        for name, image in versions:
            pixels = np.asarray(image.convert("RGB"))
            started = time.process_time()
            signatures.append(image_signature(f"{len(truth):016x}" + "0" * 48, pixels))
            seconds += time.process_time() - started
            truth.append((number, kind, name))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{shard}.parquet" for shard in range(4)]
        for shard, path in enumerate(paths):
            pq.write_table(method.signatures(signatures[shard::4]), path)
        started = time.process_time()
        method.decide(paths, Path(folder) / "out.parquet")
        decide_seconds = time.process_time() - started
        decisions = {
            4 * position + shard: int(kept[:16], 16)
            for shard in range(4)
            for position, kept in method.read_decisions(Path(folder) / "out.parquet", shard).items()
        }
    right = {place for place, kept in decisions.items() if truth[place][0] == truth[kept][0]}
    planted = Counter(name for _, _, name in truth if name != "original")
    # The largest image of a group is kept, so a copy that is kept in place of its picture counts by the picture's drop.
    found = Counter(truth[place][2] if truth[place][2] != "original" else truth[decisions[place]][2] for place in right)
    figures = {
        "recall": round(len(right) / sum(planted.values()), 4),
        "precision": round(len(right) / max(1, len(decisions)), 4),
        "images": float(len(truth)),
        "copies": float(sum(planted.values())),
        "signatures_per_core_s": round(len(truth) / seconds, 1),
        "decide_images_per_core_s": round(len(truth) / decide_seconds, 1),
    }
    return figures | {f"recall.{name}": round(found[name] / planted[name], 4) for name in COPIES}


def picture_of(number: int, rng: random.Random) -> tuple[str, Image.Image]:
    """Return a picture; four kinds take turns."""
    kinds = {"photo": photo, "page": page, "chart": chart, "flyer": flyer}
    kind = tuple(kinds)[number % 4]
    return kind, kinds[kind](rng)


def copies(picture: Image.Image, rng: random.Random) -> Iterator[tuple[str, Image.Image]]:
    """Yield copies of a picture with the names in `COPIES`."""
    yield "encoded", jpeg(picture, rng.randint(20, 60))
    scale = rng.uniform(0.3, 0.8)
    yield "scaled", picture.resize((round(picture.width * scale), round(picture.height * scale)))
    share = rng.uniform(0.8, 0.98)
    left, top = rng.uniform(0, 1 - share) * picture.width, rng.uniform(0, 1 - share) * picture.height
    box = (int(left), int(top), int(left + share * picture.width), int(top + share * picture.height))
    yield "cropped", jpeg(picture.crop(box), rng.randint(60, 90))


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    """Return an image after it was encoded as JPEG."""
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=quality)
    return Image.open(io.BytesIO(stream.getvalue()))


def photo(rng: random.Random) -> Image.Image:
    """Return fractal noise with ellipses; the spectrum is like that of photographs."""
    noise = np.random.default_rng(rng.getrandbits(32))
    total = np.zeros((SIZE[1], SIZE[0], 3))
    for octave in range(1, 8):
        layer = Image.fromarray(noise.integers(0, 256, (2**octave + 1, 2**octave + 1, 3), dtype=np.uint8))
        total += np.asarray(layer.resize(SIZE, Image.Resampling.BICUBIC)) * 0.65**octave
    image = Image.fromarray(((total - total.min()) * (255 / (total.max() - total.min()))).astype(np.uint8))
    for _ in range(rng.randrange(6)):
        x, y, side = rng.randrange(SIZE[0]), rng.randrange(SIZE[1]), rng.randrange(10, 120)
        color = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        ImageDraw.Draw(image).ellipse((x, y, x + side, y + side * rng.uniform(0.5, 2)), fill=color)
    return image


def page(rng: random.Random) -> Image.Image:
    """Return a white page of small text."""
    image = Image.new("RGB", SIZE, "white")
    for y in range(10, SIZE[1] - 20, 14):
        words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(rng.randint(2, 11))]
        ImageDraw.Draw(image).text((10, y), " ".join(words), fill="black")
    return image


def chart(rng: random.Random) -> Image.Image:
    """Return a bar chart in one of two colors."""
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    draw.line((40, 10, 40, SIZE[1] - 30, SIZE[0] - 10, SIZE[1] - 30), fill="black")
    color = rng.choice(("navy", "darkred"))
    for place in range(8):
        height = rng.uniform(20, SIZE[1] - 60)
        draw.rectangle((60 + 50 * place, SIZE[1] - 30 - height, 95 + 50 * place, SIZE[1] - 30), fill=color)
    return image


def flyer(rng: random.Random) -> Image.Image:
    """Return a flyer of the project's generator."""
    from openafm.data.drawing.flyers import FlyersConfig

    drawn = FlyersConfig().build().draw(rng, "en", "train")
    return Image.open(io.BytesIO(drawn.images[0].data)).convert("RGB")


if __name__ == "__main__":
    main()
