"""The config of a crawl, which URLs belong to it, and the check that a folder holds a crawl of the same config."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from openafm.core.config import Config, from_dict, to_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.data.web.crawl.priority import PriorityConfig
from openafm.data.web.frontier.frontier import Frontier
from openafm.data.web.permissions.opt_out import CRAWL_AGENT, FALLBACK_AGENTS, TRAINING_AGENTS
from openafm.data.web.permissions.robots import is_product_token
from openafm.data.web.urls import canonical_url, domain_of, host_of, trap_reason

if TYPE_CHECKING:
    from openafm.data.web.crawl.crawler import Crawler

_MAY_CHANGE = ("max_pages", "max_wait_s", "refetch_after_days")


class CrawlError(OpenAFMError):
    """The crawl cannot start or cannot fetch anything."""


@dataclass(frozen=True, kw_only=True)
class CrawlConfig(Config):
    """A crawl. `contact` is a URL or mail address in the User-Agent, for publishers.

    `scope` limits links: to the hosts of the seeds, to their domains with subdomains, or not at all. A crawl ends when the
    next page may be fetched in more than `max_wait_s`. `exceptions` is a TOML file (`opt_out.read_exceptions`).

    `images` fetches the images of fetched pages too, right after their page. Images may be on any host, under the delay and
    the robots.txt of that host; they do not count as pages. Pages that opted out of training have none fetched.
    """

    contact: str = ""
    agent: str = CRAWL_AGENT
    fallback_agents: tuple[str, ...] = FALLBACK_AGENTS
    training_agents: tuple[str, ...] = TRAINING_AGENTS
    scope: Literal["host", "domain", "web"] = "domain"
    delay_s: float = 1.0
    connections_per_host: int = 1
    max_connections: int = 32
    max_pages: int = 10_000
    max_pages_per_domain: int = 10_000
    max_pages_per_template: int = 500
    max_depth: int = 20
    max_redirects: int = 5
    max_attempts: int = 3
    max_host_failures: int = 6
    max_backoff_s: float = 600.0
    max_crawl_delay_s: float = 300.0
    max_wait_s: float = 120.0
    timeout_s: float = 30.0
    max_page_bytes: int = 10 << 20
    images: bool = False
    max_images_per_page: int = 50
    max_image_bytes: int = 10 << 20
    max_warc_bytes: int = 1 << 30
    refetch_after_days: float | None = None
    allow_private_addresses: bool = False
    sitemaps: bool = True
    tdm_file: bool = True
    exceptions: str = ""
    priority: PriorityConfig = field(default_factory=PriorityConfig)

    def __post_init__(self) -> None:
        for agent in (self.agent, *self.fallback_agents, *self.training_agents):
            self.require(is_product_token(agent), f"the agent {agent!r} may have letters, '-' and '_' only")
        self.require(self.delay_s >= 0, f"delay_s is {self.delay_s}; use 0 or more")
        counts = (
            "connections_per_host",
            "max_connections",
            "max_pages",
            "max_attempts",
            "max_host_failures",
            "max_page_bytes",
            "max_images_per_page",
            "max_image_bytes",
        )
        for name in counts:
            self.require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; use 1 or more")

    def build(self) -> Crawler:
        """Return the crawler."""
        from openafm.data.web.crawl.crawler import Crawler

        return Crawler(self)

    @property
    def user_agent(self) -> str:
        """The User-Agent header."""
        return f"{self.agent}/{version('openafm')}" + (f" (+{self.contact})" if self.contact else "")


class Rules:
    """Which discovered URLs belong to a crawl."""

    def __init__(self, config: CrawlConfig, seeds: Sequence[str]) -> None:
        self._config = config
        self._hosts = {host_of(url) for url in seeds}
        self._domains = {domain_of(url) for url in seeds}
        self._latest_year = time.gmtime().tm_year + 1

    def refusal(self, url: str, depth: int) -> str:
        """Return why a canonical URL does not belong to the crawl; empty if it does."""
        if depth > self._config.max_depth:
            return f"deeper than {self._config.max_depth} links"
        if self._config.scope == "host" and host_of(url) not in self._hosts:
            return f"{host_of(url)} is not a host of the seeds"
        if self._config.scope == "domain" and not self._is_in_domains(domain_of(url)):
            return f"{domain_of(url)} is not below a domain of the seeds"
        return self.image_refusal(url)

    def image_refusal(self, url: str) -> str:
        """Return why a canonical URL of an image, on any host, does not belong to the crawl; empty if it does."""
        return trap_reason(url, self._latest_year)

    def _is_in_domains(self, domain: str) -> bool:
        parts = domain.split(".")
        return any(".".join(parts[index:]) in self._domains for index in range(len(parts)))


def stored_config(frontier: Frontier) -> CrawlConfig:
    """Return the config of the crawl that a frontier holds."""
    return from_dict(CrawlConfig, json.loads(frontier.fact("config") or "{}"))


def check_config(frontier: Frontier, config: CrawlConfig, folder: Path) -> None:
    """Store the config of a new crawl, or compare it with the stored one; its limits of pages and time may change.

    Raises:
        CrawlError: another value differs.
    """
    values = to_dict(config)
    text = frontier.fact("config")
    if text is not None:
        stored = to_dict(stored_config(frontier))  # with the defaults of values that are newer than the crawl
        changed = [name for name in values if name not in _MAY_CHANGE and stored[name] != values[name]]
        if changed:
            listed = ", ".join(f"{name} {stored[name]!r} -> {values[name]!r}" for name in changed)
            raise CrawlError(f"{folder} holds a crawl of another config ({listed}); use that config or another folder")
    frontier.set_fact("config", json.dumps(values))


def seed_url(url: str) -> str:
    """Return the canonical form of a seed."""
    canonical = canonical_url(url if urlsplit(url).scheme else f"https://{url}")
    if not canonical:
        raise UsageError(f"'{url}' is not a web address; expected one such as https://example.com/")
    return canonical
