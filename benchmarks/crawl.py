"""Crawl: broken rules and lost pages under kills, pages per second at a fixed delay, and Scrapy beside it.

    python benchmarks/crawl.py [--peer PYTHON] [--quick] [--json]

Generated sites (`openafm.data.sites`) answer on loopback addresses, one address per site. `--peer` is the Python of an
environment with scrapy; it crawls equal sites with equal delays and one connection per site, and only reads links.

- violations: requests of disallowed paths, and requests that the server received before the delay was over
- lost: pages that are not in the WARC files after ten kills (SIGKILL) and a last run
- doubled: pages that are there twice, and requests repeated without an interruption
- pages_s, pages_s_scrapy, ratio: pages per second, with the delay and with none (`_free`)

A full run writes docs/benchmarks/crawl.json.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.data.sites import SiteConfig, generate_site
from openafm.data.sites.server import SiteServer, serve
from openafm.data.web.crawl.crawler import FRONTIER
from openafm.data.web.documents import Page
from openafm.data.web.frontier.frontier import Frontier
from openafm.data.web.permissions.robots import Robots
from openafm.data.web.warc import warc_files
from openafm.data.web.warc_reader import read_pages

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "crawl.json"
PEER = Path(__file__).parent / "crawling" / "scrapy_worker.py"
OWN_FILES = ("/robots.txt", "/.well-known/tdmrep.json", "/sitemap.xml")
DELAY_S = 0.1
KILL_DELAY_S = 0.02
COMMAND = "from openafm.cli.main import main; main()"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--peer", type=Path, help="Python of an environment with scrapy")
    options = parser.parse_args()
    num_kills, num_sites, num_pages = (2, 2, 20) if options.quick else (10, 8, 100)
    figures = kills(num_kills, 30 * num_kills)
    for name, delay in (("", DELAY_S), ("_free", 0.0)):
        row = speed(num_sites, num_pages, delay, options.peer)
        figures["violations"] += row.pop("violations")
        figures |= {f"{key}{name}": value for key, value in row.items()}
    settings = {"delay_s": DELAY_S, "sites": num_sites, "pages_per_site": num_pages, "kills": num_kills}
    hand_in({"figures": figures, "settings": settings}, REPORT, options)


def kills(num_kills: int, num_pages: int) -> dict[str, Any]:
    """Kill a crawl again and again, finish it, and count what the server and the WARC files show."""
    with tempfile.TemporaryDirectory() as name, sites(1, num_pages, seed=1) as (server,):
        folder, rng = Path(name), random.Random(0)
        changes = {"delay_s": KILL_DELAY_S, "max_attempts": 2 * num_kills, "max_pages_per_template": 10 * num_pages}
        done = 0
        for _ in range(num_kills):
            process = start(folder, [server], changes)
            enough = len(server.requests) + rng.randint(3, num_pages // num_kills)
            while len(server.requests) < enough and process.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.random() * KILL_DELAY_S)
            done += process.poll() is None
            process.kill()
            process.wait()
        if start(folder, [server], changes).wait() != 0:
            raise SystemExit("crawl: the last run failed")
        found = Counter(page.url for path in warc_files(folder) for page in read_pages(path) if isinstance(page, Page))
        expected = {f"{server.url}{path}" for path in site(num_pages, 1).pages if not path.startswith("/private/")}
        requests = Counter(f"{server.url}{each.path}" for each in server.requests if each.path not in OWN_FILES)
        with Frontier(folder / FRONTIER) as frontier:
            interrupted = Counter(
                url for url in requests for _, outcome in frontier.attempts(url) if outcome == "interrupted"
            )
        repeated = requests - Counter(requests.keys()) - interrupted
        return {
            "violations": violations(server, KILL_DELAY_S),
            "lost": len(expected - found.keys()),
            "doubled": (found - Counter(found.keys())).total() + repeated.total(),
            "interrupted": interrupted.total(),
            "kills_during_crawl": done,
        }


def speed(num_sites: int, num_pages: int, delay: float, peer: Path | None) -> dict[str, Any]:
    """Crawl equal sites by openafm and by Scrapy; count pages between the first and the last request."""
    with tempfile.TemporaryDirectory() as name, sites(num_sites, num_pages, seed=2) as servers:
        changes = {"delay_s": delay, "sitemaps": "false", "tdm_file": "false"}
        start(Path(name), servers, changes).wait()
        broken = sum(violations(server, delay) for server in servers)
        row = {"violations": broken, "pages_s": round(rate(servers), 2), "pages": count(servers)}
    if peer is not None:
        with sites(num_sites, num_pages, seed=2) as servers:
            urls = [server.url for server in servers]
            subprocess.run([str(peer), str(PEER), str(delay), *urls], check=True, capture_output=True)
            row |= {"pages_s_scrapy": round(rate(servers), 2), "pages_scrapy": count(servers)}
            row["violations_scrapy"] = sum(violations(server, delay) for server in servers)
            row["ratio"] = round(row["pages_s"] / row["pages_s_scrapy"], 3)
    return row


def site(num_pages: int, seed: int) -> Any:
    return generate_site(SiteConfig(seed=seed, num_pages=num_pages, languages=("en", "de", "fr"), traps=False))


@contextmanager
def sites(number: int, num_pages: int, seed: int) -> Iterator[Sequence[SiteServer]]:
    """Serve sites on 127.0.0.2, 127.0.0.3, ...: crawlers keep one delay per address."""
    with ExitStack() as stack:
        generated = [site(num_pages, seed + index) for index in range(number)]
        yield [stack.enter_context(serve(each, host=f"127.0.0.{index}")) for index, each in enumerate(generated, start=2)]


def start(folder: Path, servers: Sequence[SiteServer], changes: dict[str, Any]) -> subprocess.Popen[bytes]:
    values = {"allow_private_addresses": "true", **changes}
    options = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-c", COMMAND, "data", "crawl", *(server.url for server in servers), "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def violations(server: SiteServer, delay: float) -> int:
    """The number of requests that robots.txt disallows or that came before the delay was over."""
    rules = Robots.parse(b"User-agent: *\nDisallow: /private/")
    times = sorted(each.time for each in server.requests)
    early = sum(after - before < delay for before, after in pairwise(times))
    return early + sum(not rules.allows("OpenAFMBot", f"{server.url}{each.path}") for each in server.requests)


def count(servers: Sequence[SiteServer]) -> int:
    return sum(urlsplit(each.path).path not in OWN_FILES for server in servers for each in server.requests)


def rate(servers: Sequence[SiteServer]) -> float:
    times = sorted(each.time for server in servers for each in server.requests)
    return count(servers) / (times[-1] - times[0])


if __name__ == "__main__":
    main()
