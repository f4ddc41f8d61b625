"""Conversations about flyers, as the reader of pages sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.bundle import open_bundle, shipped_bundle
from openafm.data.documents import DocumentFiles
from openafm.reading.page import open_reader
from openafm.recipes.shipping.pages import conversations

SHIPPED = shipped_bundle()


@pytest.mark.skipif(SHIPPED is None or open_bundle(SHIPPED).reader is None, reason="no reader ships")
def test_conversations_have_the_text_of_a_page_and_its_event(tmp_path: Path) -> None:
    assert SHIPPED is not None
    reader = open_reader(open_bundle(SHIPPED).reader)
    rows = list(conversations(reader, range(3)))
    assert rows == list(conversations(reader, range(3)))
    assert rows[2:] == list(conversations(reader, range(2, 3)))
    for row in rows:
        *before, answer = row["messages"]
        event = json.loads(answer["content"])
        assert set(event) == {"title", "date", "time", "location"}
        year = event["date"][:4]
        assert any(year in message["content"] for message in before)  # the week says the year
        title = "".join(event["title"].split()).casefold()
        text = "".join(before[-1]["content"].split()).casefold()
        assert sum(letter in text for letter in title) > 0.8 * len(title)
    file = tmp_path / "pages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(list(DocumentFiles(file))) == 3
