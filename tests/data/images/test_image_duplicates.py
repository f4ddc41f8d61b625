"""Near-duplicate images: copies are found over shards, pictures that only look alike are kept."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

from openafm.data.images.duplicates import ImageDuplicatesConfig, ImageSignature, image_signature


def picture(seed: int) -> Image.Image:
    """A smooth random picture with an ellipse."""
    rng = np.random.default_rng(seed)
    total = np.zeros((180, 240, 3))
    for octave in range(2, 7):
        noise = Image.fromarray(rng.integers(0, 256, (2**octave, 2**octave, 3), dtype=np.uint8))
        total += np.asarray(noise.resize((240, 180), Image.Resampling.BICUBIC)) * 0.6**octave
    image = Image.fromarray((total * (255 / total.max())).astype(np.uint8))
    ImageDraw.Draw(image).ellipse((40, 30, 90, 120), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def bars(seed: int) -> Image.Image:
    """A chart: all of them look alike."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (240, 180), "white")
    for place, height in enumerate(rng.integers(20, 150, 6).tolist()):
        ImageDraw.Draw(image).rectangle((20 + 35 * place, 170 - height, 45 + 35 * place, 170), fill="navy")
    return image


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(io.BytesIO(stream.getvalue()))


def copies(image: Image.Image) -> Iterator[Image.Image]:
    yield jpeg(image, 35)
    yield image.resize((150, 112))
    yield jpeg(image.crop((20, 5, 225, 160)), 80)


def decisions(folder: Path, shards: list[list[ImageSignature]]) -> dict[str, str]:
    """Return the beginning of the digest that is kept, by the digest that is dropped."""
    method = ImageDuplicatesConfig(memory_mb=1).build()
    paths = [folder / f"{number}.parquet" for number in range(len(shards))]
    for path, rows in zip(paths, shards, strict=True):
        pq.write_table(method.signatures(rows), path)
    method.decide(paths, folder / "decisions.parquet")
    found = {}
    for number, rows in enumerate(shards):
        for position, kept in method.read_decisions(folder / "decisions.parquet", number).items():
            found[rows[position].digest] = kept
    return found


def test_copies_are_dropped_and_the_largest_is_kept(tmp_path: Path) -> None:
    names: dict[str, str] = {}
    rows = []
    for seed in range(6):
        images = [picture(seed), *copies(picture(seed))] if seed < 4 else [picture(seed)]
        images += [bars(seed)]
        for number, image in enumerate(images):
            digest = f"{10 * seed + number:02x}" * 32
            names[digest[:40]] = f"{seed}.{number}" if number < len(images) - 1 else f"bars {seed}"
            rows.append(image_signature(digest, np.asarray(image.convert("RGB"))))
    expected = {f"{seed}.{number}": f"{seed}.0" for seed in range(4) for number in (1, 2, 3)}
    for order, num_shards in ((1, 1), (-1, 3)):
        folder = tmp_path / str(num_shards)
        folder.mkdir()
        shards = [rows[::order][start::num_shards] for start in range(num_shards)]
        found = decisions(folder, shards)
        assert {names[dropped[:40]]: names[kept] for dropped, kept in found.items()} == expected


def test_flat_images_have_no_near_duplicates(tmp_path: Path) -> None:
    rows = [image_signature(f"{shade:02x}" * 32, np.full((40, 40, 3), shade, np.uint8)) for shade in (0, 1, 128, 255)]
    assert decisions(tmp_path, [rows]) == {}
