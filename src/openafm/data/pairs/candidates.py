"""The pairs of one shard of documents: each image with its alt text, or the reason for a drop."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_file
from openafm.core.libraries import pyarrow
from openafm.core.worker_process import unit
from openafm.data.deduplication.exact import normalized_text
from openafm.data.deduplication.groups import hash64
from openafm.data.filtering.base import DocumentFilter
from openafm.data.pairs.alignment import SCORE_KEY
from openafm.data.pairs.config import PairsConfig
from openafm.data.pairs.filters import Pair, PairFilter, Pixels
from openafm.data.pairs.pages import IMAGES_OPT_OUT
from openafm.data.pairs.references import ENDLESS, MISSING, resolved_of
from openafm.data.pairs.responses import DROPPED, ImageRows, config_of
from openafm.data.pairs.store import Record, ShardTask, json_of
from openafm.data.pipeline.parquet import RowWriter, read_documents
from openafm.data.web.documents import Dropped, Media, WebDocument

if TYPE_CHECKING:
    import pyarrow as pa

NEARBY = 400
"""Characters of the page's text before and after an image that filters see."""
_STRINGS = ("id", "text", "language", "caption", "title", "page_url", "image_url", "license", "opt_out", "metadata")
_INTEGERS = ("image_shard", "image_row", "text_hash")
_DROP_STRINGS = ("reason", "detail", "url")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A pair that the filters keep."""

    pair: Pair
    document: WebDocument
    image_shard: int
    image_row: int
    opt_out: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class _Rejected:
    """A drop, and the place of its image; -1 without one."""

    drop: Dropped
    image_shard: int = -1
    image_row: int = -1


@dataclass(frozen=True)
class FilterSteps:
    """The filters of a config with the class names of their configs."""

    texts: tuple[tuple[str, DocumentFilter], ...]
    pairs: tuple[tuple[str, PairFilter], ...]


def run_candidates(task: ShardTask) -> Record:
    """Write the pairs that the filters keep, and the drops, of one shard of documents."""
    config = config_of(task.config, task.plugins)
    steps = _steps(task.config, task.plugins)
    images = ImageRows(task.image_shards)
    resolved = resolved_of(task.inputs["resolved"], task.index)
    poisoned = {each.position: each for each in task.quarantined}
    num_in, dropped = 0, Counter[str]()
    with (
        atomic_file(task.path("candidates.parquet")) as file,
        atomic_file(task.path("drops.parquet")) as drops_file,
        RowWriter(file, candidate_schema()) as rows,
        RowWriter(drops_file, drop_schema()) as drops,
    ):
        for position, document in enumerate(read_documents(task.shard.path)):
            with unit(position):
                if position in poisoned:
                    poison = Dropped(reason=poisoned[position].reason, detail=poisoned[position].detail, url=document.url)
                    found: list[Candidate | _Rejected] = [
                        _Rejected(drop=poison) for each in document.media if each.kind == "image"
                    ]
                else:
                    found = list(_pairs(document, position, resolved, images, config, steps))
            for each in found:
                num_in += 1
                if isinstance(each, Candidate):
                    rows.write(_candidate_row(each))
                else:
                    dropped[each.drop.reason] += 1
                    values = {name: getattr(each.drop, name).encode("utf-8", "replace").decode() for name in _DROP_STRINGS}
                    drops.write(values | {"image_shard": each.image_shard, "image_row": each.image_row})
        kept = rows.num_rows
    return task.finish(
        Record(counts={"in": num_in, "kept": kept}, dropped=dict(dropped)), "candidates.parquet", "drops.parquet"
    )


def candidate_schema() -> pa.Schema:
    """Return the schema of candidates."""
    pa = pyarrow()
    integers = ((name, pa.uint64() if name == "text_hash" else pa.uint32()) for name in _INTEGERS)
    return pa.schema(
        [*((name, pa.string()) for name in _STRINGS), *integers, ("score", pa.float64()), ("digest", pa.string())]
    )


def drop_schema() -> pa.Schema:
    """Return the schema of drops; `image_shard` is -1 without an image."""
    pa = pyarrow()
    return pa.schema(
        [*((name, pa.string()) for name in _DROP_STRINGS), ("image_shard", pa.int64()), ("image_row", pa.int64())]
    )


def opt_out_of(document: WebDocument, image_opt_out: str) -> tuple[str, str]:
    """Return reason and detail why an image of a document must not be used for training; empty if it may be."""
    if document.opt_out:
        return "training_opt_out", document.opt_out
    detail = document.metadata.get(IMAGES_OPT_OUT, "") or image_opt_out
    return ("image_opt_out", detail) if detail else ("", "")


def build_filters(config: PairsConfig) -> FilterSteps:
    """Return the filters of a config.

    Raises:
        OpenAFMError: a filter cannot run, such as one whose program is not installed.
    """
    return FilterSteps(
        tuple((type(each).__name__, each.build()) for each in config.text_filters),
        tuple((type(each).__name__, each.build()) for each in config.pair_filters),
    )


def _pairs(
    document: WebDocument,
    position: int,
    resolved: dict[tuple[int, int], tuple[int, int, int]],
    images: ImageRows,
    config: PairsConfig,
    steps: FilterSteps,
) -> Iterator[Candidate | _Rejected]:
    """Yield the pair, or the drop, of each image of a document."""
    seen: set[tuple[str, str]] = set()
    for number, media in enumerate(document.media):
        if media.kind != "image":
            continue
        outcome, shard, row = resolved[position, number]
        if outcome in (MISSING, ENDLESS):
            reason = "missing" if outcome == MISSING else "redirects"
            yield _Rejected(drop=Dropped(reason=reason, detail=f"on {document.url}", url=media.url))
            continue
        image = images.row(shard, row)
        drop = image_drop(document, image, config, url=media.url)
        result: Pair | Dropped = drop or pair_of(document, media, image, partial(images.pixels, shard, row))
        if isinstance(result, Pair):
            if (image["digest"], result.text) in seen:
                result = Dropped(reason="repeated_in_page", detail=document.url, url=media.url)
            else:
                seen.add((image["digest"], result.text))
                result = _filtered(result, document, steps)
        if isinstance(result, Dropped):
            is_decoded = image["state"] != DROPPED
            yield _Rejected(drop=result, image_shard=shard if is_decoded else -1, image_row=row if is_decoded else -1)
            continue
        yield Candidate(
            pair=result,
            document=document,
            image_shard=shard,
            image_row=row,
            opt_out=opt_out_of(document, image["opt_out"])[1],
            digest=image["digest"],
        )


def image_drop(document: WebDocument, image: dict[str, Any], config: PairsConfig, *, url: str) -> Dropped | None:
    """Return why an image is dropped before any filter: it was not decoded, or must not be used for training."""
    if image["state"] == DROPPED:
        return Dropped(reason=image["reason"], detail=image["detail"], url=url)
    reason, detail = opt_out_of(document, image["opt_out"])
    return Dropped(reason=reason, detail=detail, url=url) if reason and config.opt_outs == "drop" else None


def pair_of(document: WebDocument, media: Media, image: dict[str, Any], pixels: Callable[[], Pixels]) -> Pair:
    """Return an image of a document with its alt text and the text around it."""
    around = document.text[max(media.offset - NEARBY, 0) : media.offset + NEARBY]
    return Pair(
        text=" ".join(media.alt.split()),
        language=document.language,
        image_url=image["url"],
        page_url=document.url,
        width=image["width"],
        height=image["height"],
        caption=" ".join(media.caption.split()),
        title=document.title,
        nearby=around,
        pixels=pixels,
    )


@lru_cache(maxsize=4)
def _steps(text: str, plugins: tuple[str, ...]) -> FilterSteps:
    return build_filters(config_of(text, plugins))  # once in each worker


def _filtered(pair: Pair, document: WebDocument, steps: FilterSteps) -> Pair | Dropped:
    """Run the filters; an error of one drops the pair.

    Raises:
        OpenAFMError: a filter cannot run at all, such as one whose program is not installed.
    """
    running = ""
    try:
        text = WebDocument(
            id=document.id, url=pair.image_url, text=pair.text, language=pair.language, metadata=_declared(document)
        )
        for running, text_filter in steps.texts:  # noqa: B007
            result = text_filter.apply(text)
            if isinstance(result, Dropped):
                return result
            text = result
        pair = dataclasses.replace(pair, text=text.text, language=text.language)
        for running, pair_filter in steps.pairs:  # noqa: B007
            drop = pair_filter.check(pair)
            if drop is not None:
                return drop
    except OpenAFMError:
        raise
    except MemoryError:
        return Dropped(reason="memory", detail=running, url=pair.image_url)
    except Exception as error:  # a library failed on this pair
        return Dropped(reason="error", detail=f"{running}: {type(error).__name__}: {error}"[:500], url=pair.image_url)
    return pair


def _declared(document: WebDocument) -> dict[str, str]:
    """Return what text filters read of a document's metadata: its declared locale."""
    return {key: value for key, value in document.metadata.items() if key.startswith("language.")}


def _candidate_row(found: Candidate) -> dict[str, Any]:
    pair, document = found.pair, found.document
    identity = f"{document.id}\0{found.digest}\0{pair.text}".encode("utf-8", "surrogatepass")
    strings = {
        "id": hashlib.blake2b(identity, digest_size=16).hexdigest(),
        "text": pair.text,
        "language": pair.language,
        "caption": pair.caption,
        "title": pair.title,
        "page_url": document.url,
        "image_url": pair.image_url,
        "license": document.license,
        "opt_out": found.opt_out,
        "metadata": json_of(pair.metadata),
    }
    return strings | {
        "image_shard": found.image_shard,
        "image_row": found.image_row,
        "text_hash": hash64(normalized_text(pair.text)),
        "score": float(pair.metadata.get(SCORE_KEY, 0.0)),
        "digest": found.digest,
    }
