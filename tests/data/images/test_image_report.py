"""Contact sheets: a page without references to other files, with boxes in place and texts escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from openafm.data.images.decoding import png, stored_image
from openafm.data.images.documents import ImageDocument, ImagePart, Question, Region, StoredImage, TextPart
from openafm.data.images.records import DroppedImage
from openafm.data.images.report import image_corpus_report, write_contact_sheets
from openafm.data.images.shard_writer import ShardItem, finish_corpus, write_image_shard
from openafm.data.web.documents import Dropped


def corpus(folder: Path, count: int) -> Path:
    items: list[ShardItem] = []
    for number in range(count):
        data = png(np.random.default_rng(number).integers(0, 256, (60, 200, 3), dtype=np.uint8))
        image = stored_image(data)
        assert isinstance(image, StoredImage)
        document = ImageDocument(
            id=f"d{number}",
            kind="sign",
            language="ja" if number == count - 1 else "en",
            parts=(ImagePart(digest=image.digest), TextPart(text="<script>alert(1)</script>")),
            captions={"grounded": "a red sign [100,500,200,1000]"},
            regions=(Region(label="'quoted'", box=(10, 20, 30.5, 40), kind="word"),),
            questions=(Question(question="What?", answer="A <sign>.", kind="what"),),
            metadata={"score.alignment": "0.31"},
        )
        items.append((document, (image,)))
        items.append(Dropped(reason="too_small", detail=f"small {number}"))
    items.append(DroppedImage(reason="too_small", detail="pictured", thumbnail=data))
    finish_corpus(folder, {}, [write_image_shard(folder, 0, items)])
    return folder


class Tags(HTMLParser):
    """Collects tags and the addresses that they load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_shows_samples_with_boxes_and_drops(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "corpus", 6)
    report = write_contact_sheets(folder, tmp_path / "report.html", num_samples=3)
    text = (tmp_path / "report.html").read_text()
    parsed = Tags()
    parsed.feed(text)
    assert parsed.tags.count("article") == 3 + 3
    assert "script" not in parsed.tags
    assert len(parsed.loaded) == 4
    assert all(address.startswith("data:image/") for address in parsed.loaded)
    assert "<rect class='' x='10.0' y='20.0' width='20.5' height='20.0'" in text
    assert "<rect class='dashed' x='20.0' y='30.0' width='20.0' height='30.0'" in text
    assert "A &lt;sign&gt;." in text
    assert "0.31" in text
    assert "pictured" in text
    assert "id: d5" in text  # the only document in its language
    assert re.search(r"too_small<td>7<", text)
    assert report == image_corpus_report(folder)
    assert (report.kinds, report.dropped, report.sides) == ({"sign": 6}, {"too_small": 7}, {"from 128": 6})
