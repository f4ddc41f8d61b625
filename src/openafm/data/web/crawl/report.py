"""The state of a crawl after a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from openafm.data.web.crawl.config import CrawlError
from openafm.data.web.frontier.frontier import Frontier


@dataclass(frozen=True, kw_only=True)
class CrawlReport:
    """The state of a crawl after a run. `fetched` counts this run, the others the whole crawl."""

    fetched: int
    done: int
    failed: int
    denied: int
    waiting: int
    opted_out: int
    seconds: float
    reasons: dict[str, int]
    next_at: float | None = None
    images: int = 0


def report_of(frontier: Frontier, num_fetched: int, seconds: float, next_at: float | None) -> CrawlReport:
    """Return the state of a crawl after a run that fetched `num_fetched` pages.

    Raises:
        CrawlError: no page was ever fetched.
    """
    states, counters = frontier.states(), frontier.counters()
    reasons = Counter({f"{state}: {reason}": pages for state, reason, pages in frontier.reasons()})
    report = CrawlReport(
        fetched=num_fetched,
        done=counters.get("pages", 0),
        failed=states["failed"],
        denied=states["denied"],
        waiting=states["waiting"] + states["held"] + states["active"],
        opted_out=counters.get("opted_out", 0),
        seconds=seconds,
        images=counters.get("images", 0),
        reasons=dict(reasons.most_common(20)),
        next_at=next_at,
    )
    if not report.done:
        causes = "; ".join(f"{reason} ({pages})" for reason, pages in reasons.most_common(3)) or "no page is left"
        raise CrawlError(f"no page was fetched: {causes}. Check the addresses and the network, then run the command again")
    return report
