"""Write the shards of an image corpus. `shards.py` describes the folder and reads it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.core.files import atomic_file, file_digest, write_json
from openafm.core.regular_files import read_document
from openafm.data.images.documents import ImageDocument, StoredImage
from openafm.data.images.manifest import MANIFEST, ImageCorpusError, Manifest, MissingImageError, ShardSummary, stored_size
from openafm.data.images.records import document_row, document_schema, drop_row, drop_schema
from openafm.data.images.tar_files import write_tar
from openafm.data.pipeline.parquet import RowWriter
from openafm.data.shards.manifest import FileRecord
from openafm.data.web.documents import Dropped

HELD_OUT = "held_out"
ShardItem = tuple[ImageDocument, Sequence[StoredImage]] | Dropped


def write_image_shard(folder: Path, index: int, items: Iterable[ShardItem], *, key: str = "") -> ShardSummary:
    """Write a shard of an image corpus: documents with their images, and drops. Equal items give equal bytes.

    The record of the shard is written last. `key` identifies the input, for `finished_shard`.

    Raises:
        MissingImageError: a document names an image that is not among its images.
        OutOfSpaceError: the disk is full.
    """
    number = f"{index:05}"
    paths = {it: folder / f"{number}.{it}" for it in ("tar", "index.npy", "documents.parquet", "dropped.parquet")}
    images: dict[str, tuple[StoredImage, Mapping[str, str]]] = {}
    kinds, languages, splits, dropped = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    with (
        atomic_file(paths["documents.parquet"]) as documents_file,
        atomic_file(paths["dropped.parquet"]) as dropped_file,
        RowWriter(documents_file, document_schema()) as documents,
        RowWriter(dropped_file, drop_schema()) as drops,
    ):
        for item in items:
            if isinstance(item, Dropped):
                dropped[item.reason] += 1
                drops.write(drop_row(item))
                continue
            document, found = item
            _check_images(document, found)
            documents.write(document_row(document))
            kinds[document.kind] += 1
            languages[document.language] += 1
            splits[document.split] += 1
            captions = document.captions if len(found) == 1 else {}
            for image in found:
                images.setdefault(image.digest, (image, captions))
    with atomic_file(paths["tar"]) as tar:
        index_I = write_tar(tar, images)
    with atomic_file(paths["index.npy"]) as file:
        np.lib.format.write_array(file, index_I, allow_pickle=False)
    summary = ShardSummary(
        index=index,
        key=key,
        num_documents=sum(kinds.values()),
        num_held_out=splits[HELD_OUT],
        num_images=len(images),
        image_bytes=int(index_I["num_bytes"].sum()),
        dropped=dict(sorted(dropped.items())),
        kinds=dict(sorted(kinds.items())),
        languages=dict(sorted(languages.items())),
        files=tuple(
            FileRecord(name=path.name, num_bytes=path.stat().st_size, sha256=file_digest(path)) for path in paths.values()
        ),
    )
    write_json(folder / f"{number}.json", to_dict(summary))
    return summary


def finished_shard(folder: Path, index: int, key: str) -> ShardSummary | None:
    """Return the record of a shard that an interrupted run completed with the same `key`; None if there is none."""
    try:
        summary = from_dict(ShardSummary, json.loads(read_document(folder / f"{index:05}.json")))
    except (OSError, ValueError, RecursionError, ConfigError):
        return None
    whole = all(stored_size(folder / file.name) == file.num_bytes for file in summary.files)
    return summary if whole and (summary.index, summary.key) == (index, key) else None


def finish_corpus(folder: Path, config: Mapping[str, Any], summaries: Iterable[ShardSummary]) -> Manifest:
    """Write the manifest of a corpus, which makes it complete. Files of shards that are not in it are removed.

    Raises:
        ImageCorpusError: there is no shard, or the shards are not numbered 0, 1, ...
    """
    shards = tuple(sorted(summaries, key=lambda summary: summary.index))
    if [shard.index for shard in shards] != list(range(len(shards))) or not shards:
        raise ImageCorpusError(f"{folder}: shards must be numbered from 0, got {[shard.index for shard in shards]}")
    manifest = Manifest(config=dict(config), shards=shards)
    for file in folder.glob("[0-9]*.*"):
        if int(file.name.partition(".")[0]) >= len(shards):
            file.unlink()  # of an earlier corpus with more shards
    write_json(folder / MANIFEST, to_dict(manifest))
    return manifest


def _check_images(document: ImageDocument, images: Sequence[StoredImage]) -> None:
    missing = set(document.digests) - {image.digest for image in images}
    if missing:
        raise MissingImageError(f"document {document.id} has the image {min(missing)[:12]} without its bytes; pass them too")
