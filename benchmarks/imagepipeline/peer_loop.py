"""Pairs from one WARC file in one plain loop, as img2dataset-like programs make them: the peer of image_pipeline.py.

    python peer_loop.py FILE.warc.gz OUT

Images and pages are held in memory. Steps: links and alt texts by resiliparse, language by py3langid, decoding by Pillow,
limits of size and aspect, the same tests of alt texts and overlap of words, exact and perceptual duplicates by imagehash,
and tar files by webdataset. The last line of the output is a JSON object with counts.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import imagehash
import webdataset
from fastwarc.warc import ArchiveIterator, WarcRecordType
from PIL import Image
from py3langid.langid import classify
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

LANGUAGES = {"en", "da", "nl", "fr", "de", "it", "no", "nb", "pt", "es", "sv", "tr", "zh", "ja", "ko", "vi"}
WORD = re.compile(r"[^\W_]+")
LETTERS = re.compile(r"[^\W\d_]")
MIN_SIDE, MAX_ASPECT, NEARBY = 100, 4.0, 800
SPACELESS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


def main(warc: Path, out: Path) -> dict[str, Any]:
    """Write the pairs of a WARC file as tar files and return the counts."""
    pages, images, opted_out = read(warc)
    dropped: Counter[str] = Counter()
    seen_pairs: set[tuple[str, str]] = set()
    out.mkdir(parents=True)
    num_in = kept = 0
    with webdataset.ShardWriter(str(out / "%05d.tar"), maxcount=1000, verbose=0) as writer:
        for url, html in pages:
            tree = HTMLTree.parse_from_bytes(html, "utf-8")
            text = extract_plain_text(tree, main_content=True, alt_texts=False)
            language = classify(text[:400])[0]
            title = tree.title or ""
            for element in tree.body.query_selector_all("img") if tree.body else []:
                num_in += 1
                source = urljoin(url, element["src"])
                alt = " ".join((element.getattr("alt") or "").split())
                caption = element.parent.query_selector("figcaption") if element.parent else None
                words = caption.text if caption else ""
                reason, sample = pair(source, alt, words, title, text, language, images, opted_out, seen_pairs)
                if reason:
                    dropped[reason] += 1
                    continue
                kept += 1
                writer.write(
                    {"__key__": f"{kept:09d}", **sample, "json": {"url": source, "page": url, "language": language}}
                )
    return {"in": num_in, "kept": kept, "dropped": dropped}


def read(warc: Path) -> tuple[list[tuple[str, bytes]], dict[str, bytes], set[str]]:
    """Return the HTML pages, the images by URL and the URLs that opted out."""
    pages, images, opted_out = [], {}, set()
    with warc.open("rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=True):
            url, kind = record.headers["WARC-Target-URI"], record.http_content_type or ""
            if (record.headers.get("WARC-Training-Use") or "").startswith("denied"):
                opted_out.add(url)
            if kind.startswith("image/"):
                images[url] = record.reader.read()
            elif url not in opted_out:
                pages.append((url, record.reader.read()))
    return pages, images, opted_out


def pair(
    source: str,
    alt: str,
    caption: str,
    title: str,
    text: str,
    language: str,
    images: dict[str, bytes],
    opted_out: set[str],
    seen: set[tuple[str, str]],
) -> tuple[str, dict[str, Any]]:
    """Return the reason for a drop, or the sample of a pair."""
    if language not in LANGUAGES:
        return "language", {}
    if source not in images:
        return "missing", {}
    if source in opted_out:
        return "opt_out", {}
    data = images[source]
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
        pixels = image.convert("RGB")
    except (OSError, SyntaxError, ValueError):
        return "damaged", {}
    if min(pixels.size) < MIN_SIDE or max(pixels.size) > MAX_ASPECT * min(pixels.size):
        return "size", {}
    letters = len(LETTERS.findall(alt))
    if (
        letters < (3 if language in ("zh", "ja", "ko") else 8)
        or letters < 0.5 * len(alt.replace(" ", ""))
        or len(alt) > 1000
    ):
        return "alt_text", {}
    place = max(text.find(caption[:40]), 0)
    name = unquote(urlsplit(source).path.rpartition("/")[2]).partition(".")[0]
    wanted = tokens(alt)
    found = tokens(f"{caption}\n{title}\n{name}\n{text[max(place - NEARBY // 2, 0) : place + NEARBY // 2]}")
    if not wanted or len(wanted & found) / len(wanted) < 0.1:
        return "alignment", {}
    key = str(imagehash.phash(pixels)), alt.lower()
    if key in seen:
        return "duplicate", {}
    seen.add(key)
    suffix = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}.get(image.format or "")
    if suffix is None:
        stream = io.BytesIO()
        pixels.save(stream, "PNG")
        suffix, data = "png", stream.getvalue()
    return "", {suffix: data, "txt": alt}


def tokens(text: str) -> set[str]:
    """Return the words of a text; of Chinese and Japanese, pairs of characters."""
    found: set[str] = set()
    for word in WORD.findall(text.lower()):
        if SPACELESS.search(word):
            found |= {run[at : at + 2] for run in SPACELESS.findall(word) for at in range(max(len(run) - 1, 1))}
        elif len(word) >= 3:
            found.add(word)
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
