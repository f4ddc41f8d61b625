"""The images of one shard of a WARC file: decoded, checked and stored as encoded bytes, with one row for each response."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from openafm.core.config import from_dict
from openafm.core.files import atomic_file
from openafm.core.libraries import pyarrow
from openafm.core.registry import load_plugins
from openafm.core.worker_process import unit
from openafm.data.deduplication.groups import hash128
from openafm.data.images.decoding import DecodedImage, decoded_image, pixels
from openafm.data.images.documents import StoredImage
from openafm.data.images.duplicates import ImageSignature, image_signature
from openafm.data.pairs.config import PairsConfig
from openafm.data.pairs.filters import Pixels
from openafm.data.pairs.store import Record, ShardTask, json_of
from openafm.data.pipeline.parquet import RowWriter
from openafm.data.web.documents import Dropped, Page
from openafm.data.web.urls import canonical_url
from openafm.data.web.warc_reader import read_pages

if TYPE_CHECKING:
    import pyarrow as pa

OK, REDIRECT, DROPPED = range(3)
"""States of a response: an image, a redirect of any page or image, and an image that was dropped."""
_REDIRECTS = range(300, 400)
_OK_STATUS = 200
_CACHED_SHARDS = 64
_COLUMNS = (
    *(("state", "u1"), ("url", "text"), ("high", "u8"), ("low", "u8"), ("at", "i8")),
    *(("target_high", "u8"), ("target_low", "u8"), ("reason", "text"), ("detail", "text")),
    *(("digest", "text"), ("format", "text"), ("width", "i4"), ("height", "i4"), ("offset", "i8"), ("num_bytes", "i8")),
    *(("opt_out", "text"), ("metadata", "text")),
)


def response_schema() -> pa.Schema:
    """Return the schema of the rows of responses."""
    pa = pyarrow()
    kinds = {
        "u1": pa.uint8(),
        "u8": pa.uint64(),
        "i4": pa.int32(),
        "i8": pa.int64(),
        "text": pa.string(),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in _COLUMNS])


def run_images(task: ShardTask) -> Record:
    """Decode the images of one shard of a WARC file."""
    pyarrow()
    import pyarrow.parquet as pq

    config = config_of(task.config, task.plugins)
    counts, dropped = Counter[str](), Counter[str]()
    with (
        atomic_file(task.path("images")) as images,
        atomic_file(task.path("rows.parquet")) as file,
        RowWriter(file, response_schema()) as rows,
    ):
        blob = _Blob(images, has_signatures=config.duplicates is not None)
        for page, poison in _pages(task, config.images.max_bytes):
            row = _response_row(page, poison, config, blob)
            if row is None:
                continue
            rows.write(row)
            if row["state"] == REDIRECT:
                counts["redirects"] += 1
                continue
            counts["in"] += 1
            if row["state"] == DROPPED:
                dropped[row["reason"]] += 1
            else:
                counts["decoded"] += 1
        counts["rows"] = rows.num_rows
    if config.duplicates is not None:
        with atomic_file(task.path("signatures.parquet")) as file:
            pq.write_table(config.duplicates.build().signatures(blob.signatures), file, use_dictionary=False)
    suffixes = ("images", "rows.parquet", *(["signatures.parquet"] if config.duplicates is not None else []))
    return task.finish(Record(counts=dict(counts), dropped=dict(dropped)), *suffixes)


@lru_cache(maxsize=4)
def config_of(text: str, plugins: tuple[str, ...]) -> PairsConfig:
    """Return a config from its JSON form."""
    load_plugins(plugins)
    return from_dict(PairsConfig, json.loads(text))


class ImageRows:
    """The rows and bytes of all images, by shard and row; the shards used last are kept in memory."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._rows = lru_cache(maxsize=_CACHED_SHARDS)(self._read)
        self._files = lru_cache(maxsize=_CACHED_SHARDS)(self._open)

    def row(self, shard: int, row: int) -> dict[str, Any]:
        """Return a row."""
        return self._rows(shard)[row]

    def stored(self, shard: int, row: int) -> StoredImage:
        """Return the image of a row with state `OK`."""
        values = self.row(shard, row)
        data = os.pread(self._files(shard).fileno(), values["num_bytes"], values["offset"])
        return StoredImage(
            digest=values["digest"],
            data=data,
            format=values["format"],
            width=values["width"],
            height=values["height"],
            source=values["url"],
            opt_out=values["opt_out"],
            metadata=json.loads(values["metadata"]),
        )

    def pixels(self, shard: int, row: int) -> Pixels:
        """Return the pixels of the image of a row."""
        return pixels(self.stored(shard, row))

    def _read(self, shard: int) -> list[dict[str, Any]]:
        pyarrow()
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(self._paths[shard], use_threads=False).to_pylist()
        return rows

    def _open(self, shard: int) -> IO[bytes]:
        path = self._paths[shard]
        return path.with_name(path.name.replace(".rows.parquet", ".images")).open("rb", buffering=0)


def url_key(url: str) -> tuple[int, int]:
    """Return the key by which images are found: a hash of the canonical URL."""
    return hash128(canonical_url(url) or url)


@dataclass
class _Blob:
    """Encoded images one after another, and their signatures; equal images once."""

    file: IO[bytes]
    has_signatures: bool

    def __post_init__(self) -> None:
        self.signatures: list[ImageSignature] = []
        self._offsets: dict[str, int] = {}
        self._end = 0

    def add(self, image: DecodedImage) -> int:
        """Store an image and return its offset."""
        digest, data = image.stored.digest, image.stored.data
        if digest not in self._offsets:
            if self.has_signatures:
                self.signatures.append(image_signature(digest, image.pixels))
            self._offsets[digest] = self._end
            self.file.write(data)
            self._end += len(data)
        return self._offsets[digest]


def _pages(task: ShardTask, max_bytes: int) -> Iterator[tuple[Page | Dropped, Dropped | None]]:
    """Yield what a shard of a WARC file holds, with the drop of those that ended a worker. Limits apply to each."""
    poisoned = {each.position: Dropped(reason=each.reason, detail=each.detail) for each in task.quarantined}
    shard = task.shard
    pages = read_pages(shard.path, max_body_bytes=max_bytes, start=shard.start, stop=shard.stop or None)
    position = 0
    while True:
        with unit(position):
            page = next(pages, None)
            if page is None:
                return
            yield page, poisoned.get(position)
        position += 1


def _response_row(page: Page | Dropped, poison: Dropped | None, config: PairsConfig, blob: _Blob) -> dict[str, Any] | None:
    """Return the row of a response; None if it is not one of an image or a redirect."""
    if isinstance(page, Dropped):
        return None  # counted by the stage of pages, which reads the same file
    row: dict[str, Any] = dict.fromkeys((name for name, kind in _COLUMNS if kind == "text"), "")
    row |= {name: 0 for name, kind in _COLUMNS if kind != "text"}
    row["url"], row["at"] = _storable(page.url), _microseconds(page.fetched_at)
    row["high"], row["low"] = url_key(page.url)
    row["metadata"] = "{}"
    if page.status in _REDIRECTS and (target := canonical_url(page.headers.get("location", ""), page.url)):
        row["state"] = REDIRECT
        row["target_high"], row["target_low"] = url_key(target)
        return row
    if page.status != _OK_STATUS or not page.content_type.lower().startswith("image/"):
        return None
    decoded = poison or decoded_image(page.body, limits=config.images, source=page.url, opt_out=page.opt_out)
    if isinstance(decoded, Dropped):
        return row | {"state": DROPPED, "reason": decoded.reason, "detail": _storable(decoded.detail[:500])}
    image = decoded.stored
    return row | {
        "state": OK,
        "digest": image.digest,
        "format": image.format,
        "width": image.width,
        "height": image.height,
        "offset": blob.add(decoded),
        "num_bytes": len(image.data),
        "opt_out": _storable(page.opt_out),
        "metadata": json_of(image.metadata),
    }


def _microseconds(at: str) -> int:
    """Return a WARC date in microseconds since the epoch; 0 if it is malformed."""
    try:
        return int(datetime.fromisoformat(at).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        return 0


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
