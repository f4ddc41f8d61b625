"""`openafm data crawl` and `openafm data why`: crawl web pages into WARC files, and explain what a crawl decided."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.options import SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from openafm.core.progress import Progress
    from openafm.data.rendering import RenderConfig
    from openafm.data.web.crawl.config import CrawlConfig
    from openafm.data.web.crawl.report import CrawlReport

CrawlFolder = Annotated[Path, typer.Option("--crawl", help="Folder of the crawl.")]


def crawl(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Pages from which the crawl starts.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for WARC files and the state of the crawl.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with values of CrawlConfig, and of RenderConfig in the table render.")
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Render pages that need JavaScript; needs Chromium (docs/data.md).")
    ] = False,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Crawl web pages into WARC files. The same command continues an interrupted crawl."""
    import asyncio

    from openafm.core.progress import progress

    chosen, rendering = _read_configs(config, parse_changes(changes))
    with progress("crawl", chosen.max_pages) as bar:
        report = asyncio.run(_crawl(chosen, rendering if render else None, urls, out, bar))
    if json:
        print_json(asdict(report))
        return
    _print_report(report)
    print(f"wrote {out}")


def why(
    url: Annotated[str, typer.Argument(help="Address of a page.")],
    crawl: CrawlFolder,
    json: JsonOption = False,
) -> None:
    """Explain what a crawl decided about a page: robots, priority, requests, training use."""
    from openafm.data.web.crawl.explanation import explain

    found = explain(url, crawl)
    print_json(found) if json else print_table(("", ""), list(found.items()))


async def _crawl(
    config: CrawlConfig, rendering: RenderConfig | None, urls: list[str], out: Path, bar: Progress
) -> CrawlReport:
    """Run a crawl; without Chromium, pages are kept as they are fetched."""
    from contextlib import AsyncExitStack

    from openafm.data.rendering.renderer import RenderingUnavailableError
    from openafm.data.web.crawl.crawler import Crawler

    async with AsyncExitStack() as stack:
        renderer = None
        if rendering is not None:
            try:
                renderer = await stack.enter_async_context(rendering.build())
            except RenderingUnavailableError as error:
                print(f"no page is rendered: {error}", file=sys.stderr)
        return await Crawler(config).run(urls, out, renderer=renderer, progress=bar)


def _read_configs(path: Path | None, changes: dict[str, str]) -> tuple[CrawlConfig, RenderConfig]:
    """Return the configs of a TOML file with changes; the defaults without one. The table `render` is a RenderConfig.

    A renderer sends the User-Agent of the crawl and keeps its rules of addresses and connections.

    Raises:
        UsageError: the file is missing, or is not TOML.
    """
    import tomllib

    from openafm.core.config import from_dict, override
    from openafm.core.errors import UsageError
    from openafm.data.rendering import RenderConfig
    from openafm.data.web.crawl.config import CrawlConfig

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8")) if path is not None else {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a config of a crawl: {error}; expected TOML such as delay_s = 2.0") from error
    rendering = from_dict(RenderConfig, values.pop("render", {}))
    of_render = {key: value for key, value in changes.items() if key.startswith("render.")}
    crawl = override(from_dict(CrawlConfig, values), {key: changes[key] for key in changes.keys() - of_render.keys()})
    rendering = override(rendering, {key.removeprefix("render."): value for key, value in of_render.items()})
    return crawl, replace(
        rendering,
        user_agent=crawl.user_agent,
        allow_private_addresses=crawl.allow_private_addresses,
        connections_per_host=crawl.connections_per_host,
    )


def _print_report(report: CrawlReport) -> None:
    from datetime import datetime

    rows: list[tuple[str, object]] = [
        ("fetched now", report.fetched),
        ("pages", report.done),
        ("opted out of training", report.opted_out),
        ("failed", report.failed),
        ("denied", report.denied),
        ("images", report.images),
        ("waiting", report.waiting),
    ]
    print_table(("", ""), rows)
    for reason, pages in list(report.reasons.items())[:10]:
        print(f"  {pages:,} {reason}")
    if report.next_at is not None:
        at = datetime.fromtimestamp(report.next_at).astimezone().isoformat(timespec="seconds")
        print(f"{report.waiting:,} pages wait until {at}; run the command again then")
