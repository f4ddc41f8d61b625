"""Tar files of images in webdataset's layout, and the index of their members."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from openafm.data.images.documents import StoredImage

INDEX = np.dtype(
    [
        ("digest", "S32"),
        ("offset", "<i8"),
        ("num_bytes", "<i8"),
        ("record_offset", "<i8"),
        ("record_bytes", "<i8"),
        ("width", "<i4"),
        ("height", "<i4"),
    ]
)
"""`offset` and `num_bytes` are those of the encoded image in the tar file, `record_*` those of its JSON record."""
SUFFIXES = {"png": "png", "jpeg": "jpg", "webp": "webp"}


def write_tar(file: IO[bytes], images: Mapping[str, tuple[StoredImage, Mapping[str, str]]]) -> npt.NDArray[Any]:
    """Write the images sorted by digest; return the index. Owners and times are fixed, so equal images give equal bytes."""
    index_I = np.zeros(len(images), INDEX)
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for entry, digest in zip(index_I, sorted(images), strict=True):
            image, captions = images[digest]
            record = json.dumps(_image_record(image, captions), ensure_ascii=False, sort_keys=True).encode(
                "utf-8", "replace"
            )
            entry["record_offset"] = _add(tar, f"{digest}.json", record)
            entry["offset"] = _add(tar, f"{digest}.{SUFFIXES[image.format]}", image.data)
            entry["digest"], entry["num_bytes"], entry["record_bytes"] = bytes.fromhex(digest), len(image.data), len(record)
            entry["width"], entry["height"] = image.width, image.height
    return index_I


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Append a member; return the position of its data."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    offset = tar.offset + tarfile.BLOCKSIZE
    tar.addfile(member, io.BytesIO(data))
    return offset


def _image_record(image: StoredImage, captions: Mapping[str, str]) -> dict[str, Any]:
    names = ("format", "width", "height", "source", "license", "opt_out")
    values = {name: getattr(image, name) for name in names}
    return values | {"metadata": dict(image.metadata), "captions": dict(captions)}
