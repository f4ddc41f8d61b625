"""Image documents and drops as rows of Parquet files, which any program can read.

Columns of documents: id, kind, language, split, source, license, opt_out, text (the text parts), transcription,
caption_alt, caption_keywords, caption_short, caption_paragraph, caption_grounded (strings, empty where absent), and parts,
regions, questions, metadata as JSON. Columns of drops: reason, detail, url (strings), thumbnail (bytes, mostly empty).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.core.errors import OpenAFMError
from openafm.core.libraries import pyarrow
from openafm.data.images.documents import CAPTION_LEVELS, ImageDocument, ImagePart, Part, Question, Region, TextPart
from openafm.data.pipeline.parquet import ParquetSchemaError, read_rows
from openafm.data.web.documents import Dropped

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN = ("id", "kind", "language", "split", "source", "license", "opt_out", "transcription")
_CAPTIONS = {level: f"caption_{level}" for level in CAPTION_LEVELS}
_JSON = ("parts", "regions", "questions", "metadata")
_DROP_STRINGS = ("reason", "detail", "url")


class CaptionLevelError(OpenAFMError):
    """A document has a caption of an unknown level."""


@dataclass(frozen=True, kw_only=True)
class DroppedImage(Dropped):
    """A dropped image with a small picture of it (PNG, JPEG or WebP), which the report shows."""

    thumbnail: bytes = b""


def document_schema() -> pa.Schema:
    """Return the schema of documents."""
    pa = pyarrow()
    return pa.schema([pa.field(name, pa.string()) for name in (*_PLAIN, "text", *_CAPTIONS.values(), *_JSON)])


def drop_schema() -> pa.Schema:
    """Return the schema of drops."""
    pa = pyarrow()
    return pa.schema([*(pa.field(name, pa.string()) for name in _DROP_STRINGS), pa.field("thumbnail", pa.binary())])


def document_row(document: ImageDocument) -> dict[str, Any]:
    """Return a document as a row of `document_schema`.

    Raises:
        CaptionLevelError: a caption is of an unknown level.
    """
    unknown = set(document.captions) - set(CAPTION_LEVELS)
    if unknown:
        raise CaptionLevelError(
            f"document {document.id}: the caption levels {sorted(unknown)} are unknown; use {', '.join(CAPTION_LEVELS)}"
        )
    row = {name: _storable(getattr(document, name)) for name in _PLAIN} | {"text": _storable(document.text)}
    row |= {column: _storable(document.captions.get(level, "")) for level, column in _CAPTIONS.items()}
    return row | {
        "parts": _json([_part_values(part) for part in document.parts]),
        "regions": _json([_region_values(region) for region in document.regions]),
        "questions": _json([vars(question) for question in document.questions]),
        "metadata": _json(dict(sorted(document.metadata.items()))),
    }


def drop_row(drop: Dropped) -> dict[str, Any]:
    """Return a drop as a row of `drop_schema`."""
    thumbnail = drop.thumbnail if isinstance(drop, DroppedImage) else b""
    return {name: _storable(getattr(drop, name)) for name in _DROP_STRINGS} | {"thumbnail": thumbnail}


def read_image_documents(path: Path) -> Iterator[ImageDocument]:
    """Yield the documents of a Parquet file.

    Raises:
        ParquetSchemaError: the file is not Parquet of image documents.
    """
    for row in read_rows(path, required=(*_PLAIN, *_CAPTIONS.values(), *_JSON)):
        yield _document(row, path)


def read_dropped(path: Path) -> Iterator[DroppedImage]:
    """Yield the drops of a Parquet file.

    Raises:
        ParquetSchemaError: the file is not Parquet of drops.
    """
    for row in read_rows(path, required=_DROP_STRINGS):
        yield DroppedImage(**{name: row[name] for name in _DROP_STRINGS}, thumbnail=row.get("thumbnail") or b"")


def _document(row: Mapping[str, Any], path: Path) -> ImageDocument:
    try:
        parts, regions, questions, metadata = (json.loads(row[name]) for name in _JSON)
        return ImageDocument(
            **{name: row[name] for name in _PLAIN},
            parts=tuple(_part(values) for values in parts),
            captions={level: row[column] for level, column in _CAPTIONS.items() if row[column]},
            regions=tuple(map(_region, regions)),
            questions=tuple(Question(**values) for values in questions),
            metadata=metadata,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ParquetSchemaError(
            f"{path} is Parquet with another schema: {error} (document {row['id']!r}); docs/images.md has the schema"
        ) from error


def _part_values(part: Part) -> dict[str, str]:
    return {"image": part.digest} if isinstance(part, ImagePart) else {"text": part.text}


def _part(values: Mapping[str, str]) -> Part:
    return ImagePart(digest=values["image"]) if "image" in values else TextPart(text=values["text"])


def _region(values: dict[str, Any]) -> Region:
    centers = tuple((float(x), float(y)) for x, y in values.get("centers", ()))
    return Region(**values | {"box": tuple(values["box"]), "centers": centers})


def _region_values(region: Region) -> dict[str, Any]:
    box = [round(float(value), 2) for value in region.box]
    values = {"label": region.label, "box": box, "kind": region.kind}
    centers = [[round(x, 1), round(y, 1)] for x, y in region.centers]
    return values | ({"image": region.image} if region.image else {}) | ({"centers": centers} if centers else {})


def _json(value: object) -> str:
    return _storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _storable(text: str) -> str:
    """Return a text without lone surrogates, which UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode()
