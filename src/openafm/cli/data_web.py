"""`openafm data crawl` and `openafm data why`: crawl web pages into WARC files, and explain what a crawl decided."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.options import SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from openafm.data.web.crawl_config import CrawlConfig
    from openafm.data.web.crawler import CrawlReport

CrawlFolder = Annotated[Path, typer.Option("--crawl", help="Folder of the crawl.")]


def crawl(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Pages from which the crawl starts.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for WARC files and the state of the crawl.")],
    config: Annotated[Path | None, typer.Option(help="TOML file with values of CrawlConfig.")] = None,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Crawl web pages into WARC files. The same command continues an interrupted crawl."""
    import asyncio

    from openafm.core.config import override
    from openafm.core.progress import progress
    from openafm.data.web.crawler import Crawler

    chosen = override(_read_config(config), parse_changes(changes))
    with progress("crawl", chosen.max_pages) as bar:
        report = asyncio.run(Crawler(chosen).run(urls, out, progress=bar))
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
    from openafm.data.web.explanation import explain

    found = explain(url, crawl)
    print_json(found) if json else print_table(("", ""), list(found.items()))


def _read_config(path: Path | None) -> CrawlConfig:
    """Return the config of a TOML file; the defaults without one.

    Raises:
        UsageError: the file is missing, or is not TOML.
    """
    import tomllib

    from openafm.core.config import from_dict
    from openafm.core.errors import UsageError
    from openafm.data.web.crawl_config import CrawlConfig

    if path is None:
        return CrawlConfig()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a config of a crawl: {error}; expected TOML such as delay_s = 2.0") from error
    return from_dict(CrawlConfig, values)


def _print_report(report: CrawlReport) -> None:
    from datetime import datetime

    rows: list[tuple[str, object]] = [
        ("fetched now", report.fetched),
        ("pages", report.done),
        ("opted out of training", report.opted_out),
        ("failed", report.failed),
        ("denied", report.denied),
        ("waiting", report.waiting),
    ]
    print_table(("", ""), rows)
    for reason, pages in list(report.reasons.items())[:10]:
        print(f"  {pages:,} {reason}")
    if report.next_at is not None:
        at = datetime.fromtimestamp(report.next_at).astimezone().isoformat(timespec="seconds")
        print(f"{report.waiting:,} pages wait until {at}; run the command again then")
