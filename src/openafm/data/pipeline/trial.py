"""One page through every step of a pipeline, with the result of each step."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.core.errors import UsageError
from openafm.data.pipeline.config import PipelineConfig
from openafm.data.pipeline.inputs import WARC_SUFFIXES
from openafm.data.pipeline.steps import REDUCTIONS, run_step, steps_of
from openafm.data.web.documents import Dropped, Page, WebDocument
from openafm.data.web.permissions.opt_out import training_opt_out
from openafm.data.web.warc import warc_files
from openafm.data.web.warc_reader import read_pages

_MAX_LINES = 12
_MAX_WIDTH = 160


class TrialPageError(UsageError):
    """The page to try cannot be read."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step did: `outcome` is "kept", "changed" or the reason of the drop; `changes` are lines for a reader."""

    stage: str
    step: str
    outcome: str
    seconds: float
    changes: tuple[str, ...] = ()


def fetch_page(url: str, *, allow_private_addresses: bool = False) -> Page:
    """Fetch one page as the crawler does: within its robots.txt, from a public address.

    Raises:
        TrialPageError: the page was not fetched; the message has the reason.
    """
    from openafm.data.web.crawl.config import CrawlConfig
    from openafm.data.web.crawl.crawler import Crawler

    config = CrawlConfig(
        max_pages=1, max_depth=0, max_attempts=1, sitemaps=False, allow_private_addresses=allow_private_addresses
    )
    with tempfile.TemporaryDirectory(prefix="openafm-") as folder:
        report = asyncio.run(Crawler(config).run([url], Path(folder)))
        for path in warc_files(Path(folder)):
            for page in read_pages(path):
                if isinstance(page, Page):
                    return page
    reasons = ", ".join(report.reasons) or "no answer"
    raise TrialPageError(f"{url} was not fetched: {reasons}")


def open_page(place: str, url: str = "", *, allow_private_addresses: bool = False) -> Page:
    """Return the page of a URL or an HTML file, or the first page of a WARC file, or the one of `url` in it.

    Raises:
        TrialPageError: the file does not exist or has no such page, or the URL cannot be fetched.
    """
    if place.startswith(("http://", "https://")):
        return fetch_page(place, allow_private_addresses=allow_private_addresses)
    path = Path(place)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise TrialPageError(f"{place} {problem}; pass an HTML file, or a WARC file and --url")
    if not path.name.endswith(WARC_SUFFIXES):
        address, body = url or path.resolve().as_uri(), path.read_bytes()
        headers = {"content-type": "text/html"}
        return Page(url=address, body=body, headers=headers, opt_out=training_opt_out(address, headers, body))
    for page in read_pages(path):
        if isinstance(page, Page) and url in ("", page.url):
            return page
    raise TrialPageError(
        f"{place} has no page {url}".rstrip() + "; list the pages of a crawl with its report, or leave --url out"
    )


def try_steps(config: PipelineConfig, page: Page) -> Iterator[StepResult]:
    """Yield the result of each step until one drops the page. Deduplication needs all documents and is left out."""
    item: Any = page
    for stage, steps in steps_of(config):
        for step in steps:
            started = time.perf_counter()
            result = run_step(step, item)
            seconds = time.perf_counter() - started
            yield StepResult(
                stage=stage.name,
                step=step.name,
                outcome=_outcome(item, result),
                seconds=seconds,
                changes=tuple(_changes(item, result)),
            )
            if isinstance(result, Dropped):
                return
            item = result
    for stage in config.stages:
        if isinstance(stage, REDUCTIONS):
            name = type(getattr(stage, "deduplication", stage)).__name__
            yield StepResult(stage=stage.name, step=name, outcome="not tried: compares all documents", seconds=0.0)


def _outcome(before: Any, after: Any) -> str:
    if isinstance(after, Dropped):
        return f"dropped: {after.reason}"
    return "kept" if after == before else "changed"


def _changes(before: Any, after: Any) -> Iterator[str]:
    if isinstance(after, Dropped):
        yield from ([after.detail] if after.detail else [])
    elif isinstance(after, Page):
        yield f"{after.url}: status {after.status}, {after.content_type or 'no content type'}, {len(after.body):,} bytes"
    elif isinstance(after, WebDocument):
        was = before if isinstance(before, WebDocument) else None
        for field in dataclasses.fields(after):
            value = getattr(after, field.name)
            if field.name != "text" and value and (was is None or value != getattr(was, field.name)):
                yield _cut(f"{field.name}: {value}")
        if was is None or was.text != after.text:
            yield from _text_changes(was.text if was else "", after.text)


def _text_changes(before: str, after: str) -> Iterator[str]:
    """Yield the first lines that were added or removed."""
    yield f"text: {len(after):,} characters" + (f", {len(before):,} before" if before else "")
    lines = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] in ("+ ", "- ")]
    for line in lines[:_MAX_LINES]:
        yield _cut(line)
    if len(lines) > _MAX_LINES:
        yield f"... {len(lines) - _MAX_LINES:,} more lines"


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_WIDTH else f"{line[:_MAX_WIDTH]}..."
