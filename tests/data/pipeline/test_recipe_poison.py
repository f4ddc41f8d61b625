"""Pages that break parsers, through web.recipe itself: they cost themselves only."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest

from openafm.core.executors import LocalConfig
from openafm.core.worker_process import LimitsConfig
from openafm.data.pipeline.parquet import read_drops
from openafm.data.pipeline.runner import run_pipeline
from openafm.data.web.documents import Page
from openafm.data.web.warc import Capture, capture_bytes
from openafm.recipes.pipelines.web import recipe

HTML = {"content-type": "text/html; charset=utf-8"}
TEXT = (
    "The council of the town met on Monday to discuss the new bridge over the river. Few people expected the long debate "
    "that followed, because the plan had been on the table for years. In the end the vote was postponed. "
)


def article(number: int) -> bytes:
    text = TEXT.replace("Monday", f"the {number}th of May").replace("bridge", f"bridge of {number} meters") * 2
    return f"<html><body><article><h1>Report {number}</h1><p>{text}</p></article></body></html>".encode()


def response(url: str, body: bytes, *headers: str) -> bytes:
    """A gzipped WARC response record as other crawlers write it."""
    http = "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: text/html", *headers, f"Content-Length: {len(body)}", "", ""])
    block = http.encode() + body
    fields = {"WARC-Type": "response", "WARC-Target-URI": url, "WARC-Date": "2026-01-01T00:00:00Z"}
    fields |= {"WARC-Record-ID": f"<urn:uuid:{url[-36:]:0>36}>", "Content-Type": "application/http; msgtype=response"}
    head = "WARC/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return gzip.compress(f"{head}Content-Length: {len(block)}\r\n\r\n".encode() + block + b"\r\n\r\n", 6)


@pytest.mark.slow
def test_pages_that_break_parsers_cost_themselves_only(tmp_path: Path) -> None:
    poison = {
        "nested": b"<div>" * 300_000 + b"text" + b"</div>" * 300_000,
        "binary": b"<html><body><p>" + os.urandom(200_000) + b"</p></body></html>",
        "encoding": TEXT.encode("utf-16") + b"\xff\xfe\xfd" * 1000,
        "attributes": b"<p " + b"a=1 " * 300_000 + b">text</p>",
        "entities": b"<p>" + b"&amp;lt;" * 200_000 + b"</p>",
        "one-line": b"<p>" + b"word" * 1_000_000 + b"</p>",
        "nul": b"<p>\0\0\0" + TEXT.encode() + b"\0</p>",
    }
    records = [
        capture_bytes(Capture(page=Page(url=f"https://a.example/{name}", body=body, headers=HTML)))
        for name, body in poison.items()
    ]
    bomb = gzip.compress(b"<p>" + b"x" * (1 << 30), 9)
    records.append(response("https://a.example/bomb", bomb, "Content-Encoding: gzip"))
    records.append(response("https://a.example/huge", b"<p>" + b"text " * (20 << 20)))
    records[4:4] = [
        capture_bytes(Capture(page=Page(url=f"https://a.example/good/{i}", body=article(i), headers=HTML))) for i in range(9)
    ]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(records))
    config = replace(
        recipe(),
        executor=LocalConfig(num_workers=1),
        limits=LimitsConfig(cpu_seconds=20.0, wall_seconds=240.0, memory_mb=2048),
        max_quarantined=1.0,
    )
    manifest = run_pipeline(config, [path], tmp_path / "corpus")
    assert manifest.num_in == 18
    drops = {
        drop.url: drop.reason
        for stage in manifest.stages
        for shard in stage.shards
        for drop in read_drops(tmp_path / "corpus" / shard.drops.path)
    }
    assert drops["https://a.example/bomb"] == drops["https://a.example/huge"] == "too_large"
    kept = [row for row in range(9) if f"https://a.example/good/{row}" not in drops]
    near = [url for url, reason in drops.items() if reason == "near_duplicate"]
    assert len(kept) + len([url for url in near if "/good/" in url]) == 9
    assert manifest.num_kept + len(drops) == 18
