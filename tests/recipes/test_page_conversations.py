"""Conversations about flyers and signs, as the reader of pages sees them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from openafm.bundle import open_bundle, shipped_bundle
from openafm.data.documents import DocumentFiles
from openafm.framework.schema.copied_lines import copied_lines
from openafm.reading.page import open_reader
from openafm.recipes.shipping.pages import SEED, SIGNS_SHARE, conversations

SHIPPED = shipped_bundle()


@pytest.mark.skipif(SHIPPED is None or open_bundle(SHIPPED).reader is None, reason="no reader ships")
def test_conversations_have_the_text_of_a_page_and_its_event_or_none(tmp_path: Path) -> None:
    assert SHIPPED is not None
    reader = open_reader(open_bundle(SHIPPED).reader)
    sign = next(number for number in range(100) if random.Random(f"{SEED}:{number}").random() < SIGNS_SHARE)
    rows = list(conversations(reader, range(sign - 3, sign + 1)))
    assert rows == list(conversations(reader, range(sign - 3, sign + 1)))
    assert rows[-2:] == list(conversations(reader, range(sign, sign + 1)))
    assert len(rows) > 2
    for row in rows:
        *before, answer = row["messages"]
        event = json.loads(answer["content"])
        schema = row["response_format"]["json_schema"]["schema"]
        if row in rows[-2:]:
            assert event is None
            assert {"type": "null"} in schema["anyOf"]
            continue
        assert {"title", "date", "time"} <= set(event)
        year = int(event["date"][:4])
        years = (str(year), str(year - 1))  # the reference day may be of the year before
        assert any(each in message["content"] for message in before for each in years)
        assert {event["title"], event.get("location", event["title"])} <= set(copied_lines(before[-1]["content"]))
    file = tmp_path / "pages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(list(DocumentFiles(file))) == len(rows)
