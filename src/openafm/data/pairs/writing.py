"""The shards of the image corpus: pairs with their images and drops, then interleaved documents."""

from __future__ import annotations

import dataclasses
import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from openafm.core.worker_process import unit
from openafm.data.deduplication.groups import first_numbers
from openafm.data.images.documents import ImageDocument, ImagePart, Part, StoredImage, TextPart
from openafm.data.images.records import DroppedImage
from openafm.data.images.shard_writer import ShardItem, write_image_shard
from openafm.data.pairs.candidates import image_drop, pair_of
from openafm.data.pairs.config import InterleavedConfig, PairsConfig
from openafm.data.pairs.references import ENDLESS, MISSING, resolved_of
from openafm.data.pairs.responses import DROPPED, ImageRows, config_of
from openafm.data.pairs.selection import selected_of
from openafm.data.pairs.store import Record, ShardTask
from openafm.data.pipeline.parquet import read_documents, read_rows
from openafm.data.web.documents import Dropped, Media, WebDocument

PAIR, IMAGE, DOCUMENT, PLACED = "pair", "image", "document", "interleaved"
"""What a drop is of, the first part of its reason such as `pair.short_text`: a pair, a response with an image, a document
that would be interleaved, or an image of such a document."""
_THUMBNAILS = 3  # for each reason in a shard
_THUMBNAIL_SIDE = 96


def run_write_pairs(task: ShardTask) -> Record:
    """Write a shard of pairs, with the drops of pairs and of images of the same pages."""
    return _written(task, _pair_items(task))


def run_write_interleaved(task: ShardTask) -> Record:
    """Write a shard of interleaved documents."""
    return _written(task, _interleaved_items(task))


def _written(task: ShardTask, items: Iterator[ShardItem]) -> Record:
    placed = Counter[str]()

    def counted() -> Iterator[ShardItem]:
        for item in items:
            if not isinstance(item, Dropped) and item[0].kind == "interleaved":
                placed["images"] += len(item[0].digests)
            yield item

    summary = write_image_shard(task.root, task.output, counted(), key=task.key)
    return task.finish(Record(counts={"documents": summary.num_documents, **placed}, dropped=dict(summary.dropped)))


def _pair_items(task: ShardTask) -> Iterator[ShardItem]:
    images = ImageRows(task.image_shards)
    selected = selected_of(task.inputs["selected"], task.index)
    drops = _Drops(images)
    for row, values in enumerate(read_rows(task.inputs["candidates"])):
        with unit(row):
            place = (values["image_shard"], values["image_row"])
            item: ShardItem
            if row in selected:
                reason, kept = selected[row]
                detail = f"kept: {kept}; {values['text'][:200]}"
                item = drops.item(PAIR, Dropped(reason=reason, detail=detail, url=values["image_url"]), *place)
            else:
                item = _pair_document(values), (dataclasses.replace(images.stored(*place), license=values["license"]),)
        yield item
    for values in read_rows(task.inputs["drops"], required=("reason", "detail", "url")):
        drop = Dropped(reason=values["reason"], detail=values["detail"], url=values["url"])
        yield drops.item(PAIR, drop, values["image_shard"], values["image_row"])
    for values in read_rows(task.inputs["responses"], required=("reason", "detail", "url")):
        if values["state"] == DROPPED:
            yield drops.item(IMAGE, Dropped(reason=values["reason"], detail=values["detail"], url=values["url"]))


def _pair_document(values: dict[str, Any]) -> ImageDocument:
    metadata = {"image_url": values["image_url"], "caption": values["caption"], "title": values["title"]}
    metadata |= json.loads(values["metadata"])
    return ImageDocument(
        id=values["id"],
        kind="pair",
        parts=(ImagePart(digest=values["digest"]), TextPart(text=values["text"])),
        language=values["language"],
        captions={"alt": values["text"]},
        source=values["page_url"],
        license=values["license"],
        opt_out=values["opt_out"],
        metadata={key: value for key, value in metadata.items() if value},
    )


def _interleaved_items(task: ShardTask) -> Iterator[ShardItem]:
    interleaver = _Interleaver(task)
    for position, document in enumerate(read_documents(task.shard.path)):
        with unit(position):
            items = list(interleaver.items(document, position))
        yield from items


class _Interleaver:
    """Turns documents of text and media positions into documents of text and images."""

    def __init__(self, task: ShardTask) -> None:
        config = config_of(task.config, task.plugins)
        self._config: PairsConfig = config
        self._rules = config.interleaved or InterleavedConfig()
        self._images = ImageRows(task.image_shards)
        self._resolved = resolved_of(task.inputs["resolved"], task.index)
        self._groups = np.load(task.inputs["groups"], mmap_mode="r", allow_pickle=False)
        self._repeated = np.load(task.inputs["repeated"], allow_pickle=False)
        self._first_of = first_numbers(task.image_shards)
        self._filters = [each.build() for each in config.pair_filters if each.IS_OF_IMAGES]
        self._drops = _Drops(self._images)

    def items(self, document: WebDocument, position: int) -> Iterator[ShardItem]:
        """Yield the drops of single images, and the document or its drop."""
        placed: list[tuple[int, StoredImage]] = []
        opt_outs: list[str] = []
        digests: set[str] = set()
        for number, media in enumerate(document.media):
            if media.kind != "image":
                continue
            outcome, shard, row = self._resolved[position, number]
            drop = self._drop(document, media, outcome, shard, row, digests)
            if drop is not None:
                yield drop
                continue
            image = self._images.stored(shard, row)
            digests.add(image.digest)
            opt_outs += [image.opt_out] if image.opt_out else []
            placed.append((media.offset, dataclasses.replace(image, license=document.license)))
        reason = self._refusal(document, len(placed))
        if reason:
            yield self._drops.item(DOCUMENT, Dropped(reason=reason, detail=f"{len(placed)} images", url=document.url))
            yield from (
                self._drops.item(PLACED, Dropped(reason="document", detail=reason, url=image.source)) for _, image in placed
            )
            return
        yield (
            ImageDocument(
                id=document.id,
                kind="interleaved",
                parts=tuple(_parts(document.text, placed)),
                language=document.language,
                source=document.url,
                license=document.license,
                opt_out=document.opt_out or next(iter(opt_outs), ""),
                metadata={key: value for key in ("title", "author", "date") if (value := getattr(document, key))},
            ),
            [image for _, image in placed],
        )

    def _drop(
        self, document: WebDocument, media: Media, outcome: int, shard: int, row: int, digests: set[str]
    ) -> Dropped | None:
        """Return the drop of one image; None if it is kept."""
        if outcome in (MISSING, ENDLESS):
            reason = "missing" if outcome == MISSING else "redirects"
            return self._drops.item(PLACED, Dropped(reason=reason, detail=f"on {document.url}", url=media.url))
        image = self._images.row(shard, row)
        drop = image_drop(document, image, self._config, url=media.url)
        if drop is None and image["digest"] in digests:
            drop = Dropped(reason="repeated_in_page", detail=document.url, url=media.url)
        if drop is None and self._is_repeated(shard, row):
            drop = Dropped(reason="repeated_image", detail="a logo or an advertisement", url=media.url)
        pair = pair_of(document, media, image, lambda: self._images.pixels(shard, row))
        checks = (each.check(pair) for each in self._filters)
        drop = drop or next((each for each in checks if each is not None), None)
        if drop is None:
            return None
        return self._drops.item(PLACED, drop, *((shard, row) if image["state"] != DROPPED else ()))

    def _is_repeated(self, shard: int, row: int) -> bool:
        group = self._groups[self._first_of[shard] + row]
        place = int(np.searchsorted(self._repeated, group))
        return place < len(self._repeated) and bool(self._repeated[place] == group)

    def _refusal(self, document: WebDocument, num_images: int) -> str:
        if num_images < self._rules.min_images:
            return "too_few_images"
        if num_images > self._rules.max_images:
            return "too_many_images"
        return "too_little_text" if sum(map(str.isalpha, document.text)) < self._rules.min_letters else ""


def _parts(text: str, placed: list[tuple[int, StoredImage]]) -> Iterator[Part]:
    """Yield the text between images, and the images."""
    start = 0
    for offset, image in sorted(placed, key=lambda item: item[0]):
        if piece := text[start:offset].strip():
            yield TextPart(text=piece)
        yield ImagePart(digest=image.digest)
        start = max(start, offset)
    if piece := text[start:].strip():
        yield TextPart(text=piece)


class _Drops:
    """Names drops by what they are of; the first of each reason have a small picture for the report."""

    def __init__(self, images: ImageRows) -> None:
        self._images, self._shown = images, Counter[str]()

    def item(self, kind: str, drop: Dropped, shard: int = -1, row: int = -1) -> Dropped:
        """Return a drop whose reason names its kind; `shard` and `row` are the place of its image."""
        reason = f"{kind}.{drop.reason}"
        if shard < 0 or self._shown[reason] >= _THUMBNAILS:
            return dataclasses.replace(drop, reason=reason)
        self._shown[reason] += 1
        return DroppedImage(reason=reason, detail=drop.detail, url=drop.url, thumbnail=self._thumbnail(shard, row))

    def _thumbnail(self, shard: int, row: int) -> bytes:
        from PIL import Image

        image = Image.fromarray(self._images.pixels(shard, row))
        image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=75)
        return stream.getvalue()
