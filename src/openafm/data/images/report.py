"""Contact sheets of an image corpus: one HTML page with images, texts, boxes over the images, scores, and dropped images.

The page has no scripts and no references to other files; images are embedded as small JPEGs.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from openafm.core.files import atomic_file
from openafm.core.libraries import needed
from openafm.data.images.decoding import pixels
from openafm.data.images.documents import Box, ImageDocument, ImagePart, StoredImage
from openafm.data.images.grounding import boxes_of
from openafm.data.images.records import DroppedImage
from openafm.data.images.shards import ImageCorpus, open_image_corpus
from openafm.data.pipeline.report import bars

MAX_SHARDS = 8
SIDE_EDGES = (128, 256, 512, 1024, 2048, 4096)
"""Longer sides in pixels at which the histogram of sizes is divided."""
_COLORS = ("#e6194b", "#0082c8", "#3cb44b", "#f58231", "#911eb4", "#008080")
_GROUNDED_COLOR = "#b000b0"
_MAX_CHARACTERS = 1200


@dataclass(frozen=True, kw_only=True)
class ImageCorpusReport:
    """Counts of a corpus. `sides` counts the images by their longer side; `licenses` the documents."""

    num_documents: int
    num_held_out: int
    num_images: int
    image_bytes: int
    digest: str
    kinds: Mapping[str, int]
    languages: Mapping[str, int]
    dropped: Mapping[str, int]
    sides: Mapping[str, int] = field(default_factory=dict)


def image_corpus_report(path: Path) -> ImageCorpusReport:
    """Return the counts of an image corpus.

    Raises:
        ImageCorpusError: `path` is not a complete image corpus.
    """
    return _report(open_image_corpus(path))


def write_contact_sheets(path: Path, out: Path, *, num_samples: int = 12, side: int = 360) -> ImageCorpusReport:
    """Write the HTML page of an image corpus to `out` and return the counts.

    `num_samples` documents of each kind and drops of each reason are shown, the same ones each time; they are from up to
    `MAX_SHARDS` shards spread over the corpus. `side` is the longer side of the images on the page in pixels.

    Raises:
        ImageCorpusError: `path` is not a complete image corpus, or was changed.
    """
    corpus = open_image_corpus(path)
    report = _report(corpus)
    with atomic_file(out, "w") as file:
        file.write(_head(path, report))
        for kind, documents in _sampled(corpus, num_samples).items():
            file.write(f"<h2>{escape(kind)}</h2><div class=sheet>")
            for document in documents:
                file.write(_card(corpus, document, side))
            file.write("</div>")
        for reason, drops in _sampled_drops(corpus, num_samples).items():
            file.write(f"<h2>Dropped: {escape(reason)}</h2><div class=sheet>")
            for drop in drops:
                file.write(_drop_card(drop))
            file.write("</div>")
        file.write("</html>\n")
    return report


def _report(corpus: ImageCorpus) -> ImageCorpusReport:
    manifest = corpus.manifest
    sides = Counter[int]()
    for shard in range(len(manifest.shards)):
        index_I = corpus.index(shard)
        for longer in map(max, zip(index_I["width"].tolist(), index_I["height"].tolist(), strict=True)):
            sides[sum(longer >= edge for edge in SIDE_EDGES)] += 1
    names = [f"below {SIDE_EDGES[0]:,}", *(f"from {edge:,}" for edge in SIDE_EDGES)]
    return ImageCorpusReport(
        num_documents=manifest.num_documents,
        num_held_out=manifest.num_held_out,
        num_images=manifest.num_images,
        image_bytes=sum(shard.image_bytes for shard in manifest.shards),
        digest=manifest.digest,
        kinds=_largest_first(manifest.kinds),
        languages=_largest_first(manifest.languages),
        dropped=_largest_first(manifest.dropped),
        sides={name: sides[index] for index, name in enumerate(names) if sides[index]},
    )


def _shards(corpus: ImageCorpus) -> Iterator[int]:
    count = len(corpus.manifest.shards)
    yield from sorted({place * count // min(count, MAX_SHARDS) for place in range(min(count, MAX_SHARDS))})


def _sampled(corpus: ImageCorpus, num_samples: int) -> dict[str, list[ImageDocument]]:
    """Return documents of each kind, of as many languages as possible: the ones with the smallest hashes."""
    heaps: dict[str, dict[str, list[tuple[int, str, ImageDocument]]]] = defaultdict(lambda: defaultdict(list))
    for shard in _shards(corpus):
        for document in corpus.shard_documents(shard):
            heap = heaps[document.kind][document.language]
            heapq.heappush(heap, (-_hash(document.id), document.id, document))
            if len(heap) > num_samples:
                heapq.heappop(heap)
    return {kind: _alternating(by_language, num_samples) for kind, by_language in sorted(heaps.items())}


def _alternating(by_language: Mapping[str, list[tuple[int, str, ImageDocument]]], num_samples: int) -> list[ImageDocument]:
    ranked = [
        (place, language, document)
        for language, heap in by_language.items()
        for place, (_, _, document) in enumerate(sorted(heap, key=lambda entry: (-entry[0], entry[1])))
    ]
    return [document for _, _, document in sorted(ranked, key=lambda entry: entry[:2])[:num_samples]]


def _sampled_drops(corpus: ImageCorpus, num_samples: int) -> dict[str, list[DroppedImage]]:
    """Return drops of each reason, those with a picture first."""
    found: dict[str, list[DroppedImage]] = defaultdict(list)
    for shard in _shards(corpus):
        for drop in corpus.dropped(shard):
            kept = found[drop.reason]
            kept.append(drop)
            if len(kept) > num_samples:
                kept.sort(key=lambda each: not each.thumbnail)  # stable: the first ones stay
                kept.pop()
    return {reason: sorted(found[reason], key=lambda each: not each.thumbnail) for reason in sorted(found)}


def _head(path: Path, report: ImageCorpusReport) -> str:
    dropped = sum(report.dropped.values())
    counts = (
        f"{report.num_documents:,} documents ({report.num_held_out:,} held out) with {report.num_images:,} images, "
        f"{report.image_bytes / 1e6:,.1f} MB; {dropped:,} dropped. Digest <code>{escape(report.digest[:16])}</code>."
    )
    tables = (
        ("kind", report.kinds, "keep"),
        ("language", report.languages, "keep"),
        ("longer side in pixels", report.sides, "keep"),
        ("reason for the drop", report.dropped, "drop"),
    )
    return (
        f"<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>Image corpus</title><style>{_STYLE}</style>"
        f"<h1>Image corpus {escape(path.resolve().name)}</h1><p>{counts}</p><div class=tables>"
        + "".join(bars(*table) for table in tables)
        + "</div>"
    )


def _card(corpus: ImageCorpus, document: ImageDocument, side: int) -> str:
    """Return a document as HTML: its parts in order, then what is known about them."""
    parts = []
    for part in document.parts:
        if isinstance(part, ImagePart):
            parts.append(_picture(corpus.image(part.digest), document, side))
        elif part.text.strip() and part.text != document.transcription:
            parts.append(_text(part.text))
    facts = [("id", document.id), ("language", document.language), ("split", document.split), ("source", document.source)]
    facts += [("license", document.license), ("opt-out", document.opt_out), *document.metadata.items()]
    rows = [(level, _text(caption)) for level, caption in document.captions.items()]
    rows += [("transcription", _text(document.transcription))] if document.transcription else []
    rows += [
        (question.kind, f"{_text(question.question)}{_text(question.answer, 'answer')}") for question in document.questions
    ]
    known = "".join(f"<dt>{escape(name)}<dd>{value}" for name, value in rows)
    small = "".join(f"<span>{escape(name)}: {escape(value[:120])}</span>" for name, value in facts if value)
    return f"<article>{''.join(parts)}<dl>{known}</dl><footer>{small}</footer></article>"


def _picture(image: StoredImage, document: ImageDocument, side: int) -> str:
    """Return an image with the boxes of its regions, and of the grounded caption in dashes."""
    width, height = image.width, image.height
    kinds = sorted({region.kind for region in document.regions})
    shapes = [
        _rectangle(region.box, _COLORS[kinds.index(region.kind) % len(_COLORS)], f"{region.kind}: {region.label}")
        for region in document.regions
        if region.image in ("", image.digest)
    ]
    if len(document.digests) == 1:
        grounded = document.captions.get("grounded", "")
        for place, box in boxes_of(grounded, width, height):
            shapes.append(_rectangle(box, _GROUNDED_COLOR, grounded[max(place - 40, 0) : place], "dashed"))
    facts = f"{width} x {height} {image.format}, {len(image.data) / 1000:,.0f} kB"
    facts += "".join(f", {name}: {value}" for name, value in image.metadata.items())
    legend = "".join(
        f"<i style='color:{_COLORS[index % len(_COLORS)]}'>{escape(kind)}</i>" for index, kind in enumerate(kinds)
    )
    return (
        f"<figure><div><img src='{_data_url(_small_jpeg(image, side), 'jpeg')}' alt=''>"
        f"<svg viewBox='0 0 {width} {height}' preserveAspectRatio='none'>{''.join(shapes)}</svg></div>"
        f"<figcaption>{escape(facts)} {legend}</figcaption></figure>"
    )


def _rectangle(box: Box, color: str, label: str, style: str = "") -> str:
    left, top, right, bottom = box
    return (
        f"<rect class='{style}' x='{left:.1f}' y='{top:.1f}' width='{max(right - left, 0):.1f}' "
        f"height='{max(bottom - top, 0):.1f}' stroke='{color}'><title>{escape(label)}</title></rect>"
    )


def _drop_card(drop: DroppedImage) -> str:
    suffix = {b"\x89PN": "png", b"RIF": "webp"}.get(drop.thumbnail[:3], "jpeg")
    picture = f"<img class=small src='{_data_url(drop.thumbnail, suffix)}' alt=''>" if drop.thumbnail else ""
    return (
        f"<article class=dropped>{picture}{_text(drop.detail or 'no detail')}<footer>{escape(drop.url)}</footer></article>"
    )


def _text(text: str, style: str = "") -> str:
    cut = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + " ..."
    return f"<p class='text {style}' dir=auto>{escape(cut)}</p>"


def _small_jpeg(image: StoredImage, side: int) -> bytes:
    with needed("contact sheets", "Pillow", "images"):
        from PIL import Image
    small = Image.fromarray(pixels(image, side=side))
    small.thumbnail((side, side), reducing_gap=2.0)
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=85)
    return stream.getvalue()


def _data_url(data: bytes, suffix: str) -> str:
    return f"data:image/{suffix};base64,{base64.b64encode(data).decode()}"


def _largest_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _hash(identity: str) -> int:
    return int.from_bytes(hashlib.blake2b(identity.encode("utf-8", "replace"), digest_size=8).digest())


_STYLE = (
    "body{font:14px system-ui,'Noto Sans',sans-serif;max-width:100em;margin:2em auto;padding:0 1em;color:#222}"
    ".tables{display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start}"
    "table{border-collapse:collapse}td{padding:.1em .7em .1em 0;text-align:right}"
    "td:first-child{text-align:left}caption{text-align:left;color:#666}"
    ".bar{width:10em}.bar div{height:.9em;border-radius:2px}"
    ".keep{background:#2a7fba}.drop{background:#c4663a}"
    ".sheet{columns:24em;column-gap:1em}"
    "article{break-inside:avoid;border:1px solid #ddd;border-radius:6px;padding:.7em;margin:0 0 1em;overflow:hidden}"
    "figure{margin:0 0 .5em}figure div{position:relative}figure img{width:100%;display:block;background:#eee}"
    "svg{position:absolute;inset:0;width:100%;height:100%}"
    "rect{fill:transparent;stroke-width:1px;vector-effect:non-scaling-stroke}.dashed{stroke-dasharray:5 3}"
    "figcaption,footer{color:#777;font-size:12px}figcaption i{margin-left:.6em;font-style:normal}"
    "footer span{display:inline-block;margin-right:1em;overflow-wrap:anywhere}"
    "dl{margin:.4em 0}dt{color:#777;font-size:12px;margin-top:.4em}dd{margin:0}"
    ".text{margin:.1em 0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:16em;overflow:auto}.answer{color:#0a6a3a}"
    ".small{max-width:100%;max-height:14em;display:block}.dropped{background:#faf4f0}"
)
