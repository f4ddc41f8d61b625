"""Small WARC files of pages with images; helper of the tests of image data."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np

from openafm.data.images.documents import ImageDocument
from openafm.data.images.shards import ImageCorpus
from openafm.data.sites.texts import SentenceWriter
from openafm.data.web.documents import Page
from openafm.data.web.permissions.opt_out import training_opt_out
from openafm.data.web.warc import Capture, WarcWriter

SITE = "http://a.example"
EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
TEXT = (
    "The harbor of the old town has a long wall of gray stone, and at its end a light turns all night. "
    "Fishing boats leave before the sun is up and come back at noon with crates of mackerel on the deck. "
)


def paragraph(seed: int) -> str:
    """Sentences of the synthetic corpus."""
    writer, rng = SentenceWriter("en"), random.Random(seed)
    return writer.paragraph(rng, writer.topics[0], 5)


def picture(seed: int, width: int = 160, height: int = 120, format: str = "PNG") -> bytes:
    """A picture of large squares in random colors."""
    from PIL import Image

    colors = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(colors).resize((width, height), Image.Resampling.NEAREST).save(stream, format)
    return stream.getvalue()


def html_page(path: str, *parts: str, head: str = "", **headers: str) -> Page:
    """A page of paragraphs and figures. A part `path|alt|caption` is a figure, another one a paragraph; one more follows."""
    body = "".join(_figure(part) if "|" in part else f"<p>{part}</p>" for part in (*parts, TEXT))
    html = f"<html lang='en'><head><title>The harbor</title>{head}</head><body><article>{body}</article></body></html>"
    url, all_headers = f"{SITE}{path}", {"content-type": "text/html; charset=utf-8", **headers}
    opt_out = training_opt_out(url, all_headers, html.encode())
    return Page(url=url, body=html.encode(), headers=all_headers, fetched_at=EARLY, opt_out=opt_out)


def image(path: str, body: bytes, *, at: str = EARLY, kind: str = "image/png", **headers: str) -> Page:
    """The response with an image."""
    url = path if "://" in path else f"{SITE}{path}"
    all_headers = {"content-type": kind, **headers}
    return Page(
        url=url, body=body, headers=all_headers, fetched_at=at, opt_out=training_opt_out(url, all_headers, is_image=True)
    )


def redirect(path: str, target: str) -> Page:
    """A redirect of an image."""
    return Page(url=f"{SITE}{path}", body=b"", headers={"location": target}, status=302, fetched_at=EARLY)


def write_warc(folder: Path, *pages: Page) -> Path:
    """Write pages and images as one WARC file."""
    with WarcWriter(folder) as writer:
        for page in pages:
            writer.write(Capture(page=page))
    return folder / "crawl-00000.warc.gz"


def pairs_of(corpus: ImageCorpus) -> dict[str, ImageDocument]:
    """The pairs of a corpus by text."""
    return {each.text: each for each in corpus.documents() if each.kind == "pair"}


def drops_of(corpus: ImageCorpus) -> dict[str, str]:
    """The reasons of drops by the path of the image."""
    drops = [each for shard in range(len(corpus.manifest.shards)) for each in corpus.dropped(shard)]
    return {each.url.removeprefix(SITE): each.reason for each in drops if each.reason.startswith(("pair.", "document."))}


def _figure(part: str) -> str:
    path, alt, caption = part.split("|")
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure><img src="{path}" alt="{alt}">{below}</figure>'
