"""Crawl sites by Scrapy with a delay, one connection per site and robots.txt; run by `crawl.py` in its own environment.

python scrapy_worker.py DELAY URL...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.linkextractors import LinkExtractor


class SiteSpider(Spider):
    """Follow every link inside the sites."""

    name = "sites"
    start_urls = sys.argv[2:]
    allowed_domains = tuple(urlsplit(url).hostname for url in sys.argv[2:])
    links = LinkExtractor()

    def parse(self, response: Any) -> Iterator[Request]:
        if "text/html" in response.headers.get("Content-Type", b"").decode():
            yield from (Request(link.url) for link in self.links.extract_links(response))


def main() -> None:
    delay = float(sys.argv[1])
    process = CrawlerProcess(
        {
            "ROBOTSTXT_OBEY": True,
            "DOWNLOAD_DELAY": delay,
            "RANDOMIZE_DOWNLOAD_DELAY": False,
            "CONCURRENT_REQUESTS": 32,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
            "LOG_LEVEL": "ERROR",
            "TELNETCONSOLE_ENABLED": False,
        }
    )
    process.crawl(SiteSpider)
    process.start()


if __name__ == "__main__":
    main()
