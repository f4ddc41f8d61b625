"""Input files of a pipeline: their digests and their division into shards, independent of names, order and workers."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.core.errors import UsageError
from openafm.core.files import file_digest, write_json
from openafm.core.progress import progress
from openafm.data.pipeline.store import InputFile

WARC_SUFFIXES = (".warc", ".warc.gz")
PARQUET_SUFFIXES = (".parquet",)
_CACHE = "inputs.json"
_MEMBER = b"\x1f\x8b\x08"
_BLOCK = 1 << 20
_HEADER_BYTES = 2048


class PipelineInputError(UsageError):
    """There is no input, or a file of another kind than the first stage reads."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of an input file from byte `start` up to byte `stop`; `stop` 0 is the end. `digest` identifies the content."""

    path: Path
    digest: str
    start: int = 0
    stop: int = 0


def find_inputs(paths: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """Return the files at `paths`, those of folders included.

    Raises:
        PipelineInputError: a path does not exist or has another suffix, or there is no file.
    """
    known = ", ".join(suffixes)
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.rglob("*") if file.name.endswith(tuple(suffixes)))
        elif not path.exists():
            raise PipelineInputError(f"{path} does not exist; pass files of {known}, or folders of them")
        elif not path.name.endswith(tuple(suffixes)):
            raise PipelineInputError(f"{path} is a file of another kind; pass files of {known}")
        else:
            found.append(path)
    if not found:
        raise PipelineInputError(f"no input; pass files of {known}, or folders of them")
    return found


def describe(paths: Sequence[Path], folder: Path, shard_bytes: int) -> list[InputFile]:
    """Return the files in the order of their digests; equal files once. Digests are cached in `folder` by size and time."""
    cache = _read_cache(folder / _CACHE)
    described: dict[str, InputFile] = {}
    fresh: dict[str, dict[str, object]] = {}
    with progress("read inputs", len(paths)) as bar:
        for index, path in enumerate(paths):
            stat = path.stat()
            stamp = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}:{shard_bytes}"
            file = cache.get(stamp) or InputFile(
                path=str(path),
                num_bytes=stat.st_size,
                sha256=file_digest(path),
                split_at=tuple(split_points(path, shard_bytes)),
            )
            fresh[stamp] = to_dict(file)
            if file.sha256 in described:
                bar.note(f"{path} equals {described[file.sha256].path} and is read once")
            described.setdefault(file.sha256, replace(file, path=str(path)))
            bar.update(index + 1)
    write_json(folder / _CACHE, fresh)
    return [described[digest] for digest in sorted(described)]


def shards_of(file: InputFile) -> list[Shard]:
    """Return the shards of a file in order."""
    edges = [0, *file.split_at, 0]
    return [
        Shard(path=Path(file.path), digest=f"{file.sha256}:{start}:{stop}", start=start, stop=stop)
        for start, stop in itertools.pairwise(edges)
    ]


def split_points(path: Path, shard_bytes: int) -> Iterator[int]:
    """Yield the bytes at which a gzipped WARC file can be divided into parts of about `shard_bytes`.

    A part begins with a request or warcinfo record, because what belongs to one page begins with its request. Files without
    these records, or not compressed by record, stay whole.
    """
    if not path.name.endswith(".warc.gz"):
        return
    size = path.stat().st_size
    place = shard_bytes
    while place < size:
        found = _next_group(path, place)
        if found is None:
            return
        yield found
        place = found + shard_bytes


def _next_group(path: Path, place: int) -> int | None:
    with path.open("rb") as file:
        file.seek(place)
        tail = b""
        while block := file.read(_BLOCK):
            data, base = tail + block, file.tell() - len(block) - len(tail)
            at = data.find(_MEMBER)
            while at >= 0:
                if at + _HEADER_BYTES > len(data) and len(block) == _BLOCK:
                    break  # with the next block
                if _begins_group(data[at : at + _HEADER_BYTES]):
                    return base + at
                at = data.find(_MEMBER, at + 1)
            tail = data[at:] if at >= 0 else data[-len(_MEMBER) :]
    return None


def _begins_group(data: bytes) -> bool:
    try:
        header = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, _HEADER_BYTES).lower()
    except zlib.error:
        return False
    return header.startswith(b"warc/") and (b"warc-type: request" in header or b"warc-type: warcinfo" in header)


def _read_cache(path: Path) -> dict[str, InputFile]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return {stamp: from_dict(InputFile, value) for stamp, value in values.items()}
    except (OSError, ValueError, ConfigError, AttributeError):
        return {}  # computed again
