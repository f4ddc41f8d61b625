"""What failed requests do to a page and its host: attempts, back-off, and hosts that are given up."""

from __future__ import annotations

import time

from openafm.data.web.crawl.config import CrawlConfig
from openafm.data.web.crawl.fetch import Fetched, retry_after_seconds
from openafm.data.web.frontier.frontier import Frontier, Outcome, Task

BACKOFF_S = 1.0
_CALM_ANSWERS = 0.7  # factor of the back-off after a good answer


class HostFailures:
    """Notes failures and good answers of hosts in the frontier."""

    def __init__(self, config: CrawlConfig, frontier: Frontier) -> None:
        self._config, self._frontier = config, frontier

    def failed(self, task: Task, reason: str, detail: str, now: float, *, retry: bool) -> None:
        """Note a failed request; retried ones count against the host."""
        again = retry and task.attempts + 1 < self._config.max_attempts
        outcome = Outcome(
            state="waiting" if again else "failed",
            reason=f"{reason}: {detail}" if detail else reason,
            not_before=now + BACKOFF_S * 2**task.attempts if again else 0.0,
        )
        self._frontier.finish(task.url, outcome, now, attempt=outcome.reason, counters={reason: 1})
        if retry:
            self.host_failed(task.host, outcome.reason)

    def overloaded(self, task: Task, answer: Fetched, delay: float) -> None:
        """Slow down after 429 or 503, at least for as long as Retry-After asks."""
        now = time.time()
        backoff = min(self._config.max_backoff_s, max(2 * delay, BACKOFF_S))
        wait = max(backoff, retry_after_seconds(answer.headers, now))
        self.failed(task, f"HTTP {answer.status}", "", now, retry=True)
        self._frontier.delay_host(task.host, answer.headers_at + wait, backoff=backoff)

    def host_failed(self, host: str, reason: str) -> None:
        """Count a failure in a row of a host; give the host up after `max_host_failures`."""
        failures = self._frontier.host(host).failures + 1
        self._frontier.delay_host(host, self._frontier.host(host).next_at, failed=True)
        if failures >= self._config.max_host_failures:
            self._frontier.close_host(host, f"the host failed {failures} times in a row, last with {reason}")

    def calm(self, host: str) -> None:
        """Note a good answer: failures start again at 0 and the back-off shrinks."""
        state = self._frontier.host(host)
        if state.failures or state.backoff:
            backoff = state.backoff * _CALM_ANSWERS
            self._frontier.delay_host(
                host, state.next_at, backoff=backoff if backoff > self._config.delay_s else 0.0, failed=False
            )
