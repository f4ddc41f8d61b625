"""Explain what a crawl decided about a URL, from the facts stored in its frontier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openafm.core.errors import UsageError
from openafm.data.web.crawl.config import CrawlConfig, Rules, stored_config
from openafm.data.web.crawl.crawler import FRONTIER
from openafm.data.web.crawl.fetch import timestamp
from openafm.data.web.frontier.frontier import Frontier
from openafm.data.web.permissions.opt_out import crawl_agent
from openafm.data.web.permissions.robots import Robots
from openafm.data.web.urls import canonical_url, origin_of, template_of

_STATES = {
    "waiting": "waits to be fetched",
    "held": "waits to be fetched",
    "active": "is being fetched",
    "done": "was fetched",
    "failed": "could not be fetched",
    "denied": "must not be fetched",
}


def explain(url: str, folder: Path) -> dict[str, str]:
    """Return what a crawl decided about a URL and why, as text by topic.

    Raises:
        FrontierError: the folder holds no crawl.
        UsageError: `url` is not a web address.
    """
    canonical = canonical_url(url)
    if not canonical:
        raise UsageError(f"'{url}' is not a web address; expected one such as https://example.com/page")
    with Frontier(folder / FRONTIER, read_only=True) as frontier:
        config = stored_config(frontier)
        page = frontier.page(canonical)
        found = {"url": canonical}
        if page is None:
            found |= _unknown(canonical, config, frontier)
        else:
            found |= _known(page, frontier)
        return found | _robots(canonical, config, frontier)


def _known(page: dict[str, Any], frontier: Frontier) -> dict[str, str]:
    found = {"state": _STATES[page["state"]] + (f": {page['reason']}" if page["reason"] else "")}
    origin = f" on {page['parent']}" if page["parent"] else ""
    found["discovered"] = f"{page['source']}{origin}, {page['depth']} links from a seed"
    decision = json.loads(page["decision"] or "{}")
    found["priority"] = str(decision.get("score", f"{page['score']:.3f} when it was discovered"))
    if "delay_s" in decision:
        found["politeness"] = f"{decision['delay_s']:g} s to the next request of {page['host']}"
    attempts = [f"{timestamp(at)} {outcome}" for at, outcome in frontier.attempts(page["url"])]
    if attempts:
        found["requests"] = "; ".join(attempts)
    if page["warc"]:
        found["record"] = f"{page['warc']}, HTTP {page['status']}"
        found["training"] = f"opted out: {page['opt_out']}" if page["opt_out"] else "allowed"
    return found


def _unknown(url: str, config: CrawlConfig, frontier: Frontier) -> dict[str, str]:
    """Return why the crawl does not hold a URL."""
    refusal = Rules(config, json.loads(frontier.fact("seeds") or "[]")).refusal(url, depth=0)
    of_template = frontier.num_by_template().get(template_of(url), 0)
    if not refusal and of_template >= config.max_pages_per_template:
        refusal = f"the budget of {config.max_pages_per_template} pages of the template {template_of(url)} is spent"
    return {"state": f"is left out: {refusal}" if refusal else "was not discovered: no fetched page or sitemap links to it"}


def _robots(url: str, config: CrawlConfig, frontier: Frontier) -> dict[str, str]:
    """Return what the stored robots.txt decides for crawling and for training."""
    stored = frontier.file(f"{origin_of(url)}/robots.txt")
    if stored is None:
        return {"robots": "robots.txt was not fetched yet"}
    robots = Robots.of_response(stored[1], stored[2])
    agent = crawl_agent(robots, config.agent, config.fallback_agents)
    decision = robots.decide(agent, url)
    group = f"the group of {agent}" if robots.names(agent) else "the group of all agents"
    found = {"robots": f"{'allowed' if decision.allowed else 'disallowed'} by {group}: {decision}"}
    found["robots fetched"] = f"{timestamp(stored[0])}, HTTP {stored[1]}"
    return found
