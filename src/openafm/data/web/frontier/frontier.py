"""The state of a crawl in one SQLite file: pages, hosts, files of origins, and how much of the WARC files is noted.

Every change is one transaction, so a killed process loses nothing. A capture is written to the WARC file first and noted
here second; after a kill, `Crawler` reads the captures that are not noted (`warc_reader.recover`). A request that was on its
way is noted as an attempt with the outcome `interrupted` and repeated.

Times are seconds since the epoch, so that delays hold across a restart.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openafm.data.web.frontier.database import FrontierDatabase
from openafm.data.web.urls import domain_of, host_of, template_of

STATES = ("waiting", "held", "active", "done", "failed", "denied")
"""A held page was claimed and not requested yet; an active one is being requested."""
_CANDIDATES = 8  # pages of a host among which the current priorities choose
_READY_HOSTS = 8


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A page, sitemap or image to be crawled. `source` is `seed`, `link`, `sitemap`, `redirect` or `image`.

    `kind` is `page`, `sitemap` or `image`.
    """

    url: str
    source: str = "link"
    kind: str = "page"
    parent: str = ""
    depth: int = 0
    redirects: int = 0
    score: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A page that waits, with what a conditional request needs."""

    url: str
    host: str
    domain: str
    template: str
    kind: str
    depth: int
    redirects: int
    attempts: int
    etag: str
    last_modified: str
    digest: str
    score: float


ScoreFunction = Callable[[Task], float]


@dataclass(frozen=True)
class HostState:
    """When a host may be asked again, its back-off in seconds, and its failures since the last success."""

    next_at: float = 0.0
    backoff: float = 0.0
    failures: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a visit changes in the frontier.

    `state` is the new state; `waiting` with `not_before` repeats the page. `reward` is (language, topic, reward) of a page.
    """

    state: str
    reason: str = ""
    status: int = 0
    not_before: float = 0.0
    etag: str = ""
    last_modified: str = ""
    digest: str = ""
    opt_out: str = ""
    warc: str = ""
    warc_lengths: Mapping[str, int] = field(default_factory=dict)
    reward: tuple[str, str, float] | None = None


class Frontier(FrontierDatabase):
    """The frontier of one crawl. One process uses it at a time; the crawler holds the lock of the folder."""

    def add(self, candidates: Iterable[Candidate]) -> int:
        """Add pages that are not known yet and return how many they were."""
        with self._transaction():
            return self._add(candidates)

    def claim(
        self, now: float, connections_per_host: int, score: ScoreFunction, *, images_only: bool = False
    ) -> Task | None:
        """Hold the best page that may be fetched now and return it; None if every host is busy or in its delay.

        Among the hosts that wait longest, the best pages by stored score are scored again by `score`. `images_only` leaves
        pages and sitemaps waiting.
        """
        kinds = "image" if images_only else "*"
        hosts = self._all(
            "SELECT host FROM hosts h WHERE waiting > 0 AND active < ? AND next_at <= ? AND EXISTS (SELECT 1 FROM pages p"
            " WHERE p.host = h.host AND state = 'waiting' AND not_before <= ? AND kind GLOB ?)"
            " ORDER BY next_at, host LIMIT ?",
            connections_per_host,
            now,
            now,
            kinds,
            _READY_HOSTS,
        )
        tasks = [task for row in hosts for task in self._best_of_host(str(row["host"]), now, kinds)]
        best = max(tasks, key=lambda task: (score(task), task.url), default=None)
        if best is not None:
            self._set_state(best.url, "held")
        return best

    def release(self, task: Task) -> None:
        """Let a held page wait again."""
        self._set_state(task.url, "waiting")

    def next_time(self, connections_per_host: int, *, images_only: bool = False) -> float | None:
        """Return the earliest time at which a waiting page may be fetched; None if none waits on a free host."""
        hosts = self._database.execute(
            "SELECT host, next_at FROM hosts WHERE waiting > 0 AND active < ? ORDER BY next_at", (connections_per_host,)
        )
        earliest: float | None = None
        for host in hosts:  # few of them: the search ends at the first host that is too late anyway
            if earliest is not None and host["next_at"] >= earliest:
                break
            query = "SELECT min(not_before) AS at FROM pages WHERE host = ? AND state = 'waiting' AND kind GLOB ?"
            page = self._one(query, host["host"], "image" if images_only else "*")
            if page is not None and page["at"] is not None:
                at = max(float(host["next_at"]), float(page["at"]))
                earliest = at if earliest is None else min(earliest, at)
        return earliest

    def start(self, task: Task, now: float, next_at: float, decision: Mapping[str, Any]) -> None:
        """Note that a page is about to be requested, and when its host may be asked again."""
        with self._transaction():
            self._database.execute(
                "UPDATE pages SET state = 'active', attempts = attempts + 1, fetched_at = ?, decision = ? WHERE url = ?",
                (now, json.dumps(decision), task.url),
            )
            self._database.execute("UPDATE hosts SET next_at = max(next_at, ?) WHERE host = ?", (next_at, task.host))

    def delay_host(self, host: str, next_at: float, *, backoff: float | None = None, failed: bool | None = None) -> None:
        """Note when a host may be asked again, its back-off in seconds, and whether its answer was a failure."""
        with self._transaction():
            self._database.execute(
                "INSERT INTO hosts (host, next_at) VALUES (?, ?)"
                " ON CONFLICT (host) DO UPDATE SET next_at = excluded.next_at",
                (host, next_at),
            )
            if backoff is not None:
                self._database.execute("UPDATE hosts SET backoff = ? WHERE host = ?", (backoff, host))
            if failed is not None:
                self._database.execute(
                    "UPDATE hosts SET failures = CASE WHEN ? THEN failures + 1 ELSE 0 END WHERE host = ?", (failed, host)
                )

    def host(self, host: str) -> HostState:
        """Return the state of a host."""
        row = self._one("SELECT * FROM hosts WHERE host = ?", host)
        if row is None:
            return HostState()
        return HostState(next_at=row["next_at"], backoff=row["backoff"], failures=row["failures"])

    def finish(
        self,
        url: str,
        outcome: Outcome,
        now: float,
        *,
        attempt: str = "",
        new: Sequence[Candidate] = (),
        counters: Mapping[str, int] | None = None,
    ) -> int:
        """Note the outcome of a visit together with the pages that it discovered; return how many are new.

        `attempt` is the outcome of a request; empty if none was made.
        """
        with self._transaction():
            self._database.execute(
                "UPDATE pages SET state = ?, reason = ?, status = ?, not_before = ?,"
                " etag = CASE WHEN ? != '' THEN ? ELSE etag END,"
                " last_modified = CASE WHEN ? != '' THEN ? ELSE last_modified END,"
                " digest = CASE WHEN ? != '' THEN ? ELSE digest END,"
                " opt_out = CASE WHEN ? != '' OR ? != 304 THEN ? ELSE opt_out END,"
                " warc = CASE WHEN ? != '' THEN ? ELSE warc END WHERE url = ?",
                (
                    *(outcome.state, outcome.reason, outcome.status, outcome.not_before),
                    *(outcome.etag, outcome.etag, outcome.last_modified, outcome.last_modified),
                    *(outcome.digest, outcome.digest, outcome.opt_out, outcome.status, outcome.opt_out),
                    *(outcome.warc, outcome.warc, url),
                ),
            )
            if attempt:
                self._database.execute("INSERT INTO attempts VALUES (?, ?, ?)", (url, now, attempt))
            for file, length in outcome.warc_lengths.items():
                self._database.execute("INSERT OR REPLACE INTO warc VALUES (?, ?)", (file, length))
            if outcome.reward is not None:
                language, topic, reward = outcome.reward
                self._database.execute(
                    "INSERT INTO rewards VALUES (?, ?, ?, ?, 1, ?) ON CONFLICT (domain, template, language, topic)"
                    " DO UPDATE SET pages = pages + 1, reward = reward + excluded.reward",
                    (domain_of(url), template_of(url), language, topic, reward),
                )
            for name, value in (counters or {}).items():
                self._count(name, value)
            return self._add(new)

    def close_host(self, host: str, reason: str) -> None:
        """Give up the waiting pages of a host."""
        with self._transaction():
            self._database.execute(
                "UPDATE pages SET state = 'failed', reason = ? WHERE host = ? AND state IN ('waiting', 'held')",
                (reason, host),
            )

    def done_by_domain(self) -> dict[str, int]:
        """Return the number of fetched pages by domain."""
        rows = self._all(
            "SELECT domain, count(*) AS n FROM pages WHERE state = 'done' AND warc != '' AND kind = 'page' GROUP BY domain"
        )
        return {str(row["domain"]): int(row["n"]) for row in rows}

    def num_by_template(self) -> dict[str, int]:
        """Return the number of known pages by template."""
        rows = self._all("SELECT template, count(*) AS n FROM pages WHERE kind != 'image' GROUP BY template")
        return {str(row["template"]): int(row["n"]) for row in rows}

    def rescore(self, template: str, score: float, depth_penalty: float) -> None:
        """Replace the stored scores of the waiting pages of a template; `score` is that of depth 0."""
        with self._transaction():
            self._database.execute(
                "UPDATE pages SET score = ? - ? * depth WHERE template = ? AND state = 'waiting' AND kind = 'page'",
                (score, depth_penalty, template),
            )

    def interrupted(self, now: float, delay: float, max_attempts: int) -> list[str]:
        """Let pages wait again whose visit was cut off, and return the URLs whose request was on its way.

        Their hosts wait for the delay again, because the server may have received the request just before the kill. Pages
        with `max_attempts` fail: they may be what ends the process.
        """
        with self._transaction():
            rows = self._all("SELECT url, host, state, decision FROM pages WHERE state IN ('held', 'active')")
            urls = [str(row["url"]) for row in rows if row["state"] == "active"]
            for row in rows:
                wait = max(delay, json.loads(row["decision"] or "{}").get("delay_s", 0.0))
                self._database.execute(
                    "UPDATE hosts SET next_at = max(next_at, ?) WHERE host = ?", (now + wait, row["host"])
                )
            self._database.execute(
                "UPDATE pages SET state = 'failed', reason = 'interrupted ' || attempts || ' times'"
                " WHERE state = 'active' AND attempts >= ?",
                (max_attempts,),
            )
            self._database.execute("UPDATE pages SET state = 'waiting', not_before = 0 WHERE state IN ('held', 'active')")
            self._database.executemany("INSERT INTO attempts VALUES (?, ?, 'interrupted')", [(url, now) for url in urls])
            self._count("interrupted", len(urls))
        return urls

    def refetch(self, before: float) -> int:
        """Let pages wait again that were fetched before a time, and return how many they are."""
        with self._transaction():
            cursor = self._database.execute(
                "UPDATE pages SET state = 'waiting', attempts = 0, not_before = 0 WHERE state = 'done' AND fetched_at < ?"
                " AND status IN (200, 304)",
                (before,),
            )
            return cursor.rowcount

    def count(self, name: str, value: int = 1) -> None:
        """Add to a counter."""
        with self._transaction():
            self._count(name, value)

    def counters(self) -> dict[str, int]:
        """Return all counters."""
        return {str(row["name"]): int(row["value"]) for row in self._all("SELECT * FROM counters ORDER BY name")}

    def states(self) -> dict[str, int]:
        """Return the number of pages in each state."""
        rows = self._all("SELECT state, count(*) AS n FROM pages WHERE kind = 'page' GROUP BY state")
        return dict.fromkeys(STATES, 0) | {str(row["state"]): int(row["n"]) for row in rows}

    def reasons(self) -> list[tuple[str, str, int]]:
        """Return (state, reason, pages) of all pages that have a reason, the most frequent first."""
        rows = self._all(
            "SELECT state, reason, count(*) AS n FROM pages WHERE reason != ''"
            " GROUP BY state, reason ORDER BY n DESC, reason"
        )
        return [(str(row["state"]), str(row["reason"]), int(row["n"])) for row in rows]

    def unknown(self, urls: Iterable[str]) -> list[str]:
        """Return the URLs that the frontier does not hold, without repetition."""
        found = dict.fromkeys(urls)
        return [url for url in found if self._one("SELECT 1 FROM pages WHERE url = ?", url) is None]

    def knows_digest(self, digest: str, url: str) -> bool:
        """Return True if another page has this content."""
        return self._one("SELECT 1 FROM pages WHERE digest = ? AND url != ? LIMIT 1", digest, url) is not None

    def rewards(self) -> list[tuple[str, str, str, str, int, float]]:
        """Return (domain, template, language, topic, pages, summed reward) of what was fetched."""
        return [tuple(row) for row in self._all("SELECT * FROM rewards")]

    def put_file(self, url: str, status: int, body: bytes, now: float) -> None:
        """Store a robots.txt or another file of an origin, with the status of its answer."""
        with self._transaction():
            values = (url, now, status, zlib.compress(body, 1))
            self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", values)

    def file(self, url: str) -> tuple[float, int, bytes] | None:
        """Return time, status and body of a stored file; None without one."""
        row = self._one("SELECT * FROM files WHERE url = ?", url)
        return None if row is None else (row["fetched_at"], row["status"], zlib.decompress(row["body"]))

    def warc_lengths(self) -> dict[str, int]:
        """Return the noted length of each WARC file."""
        return {str(row["file"]): int(row["length"]) for row in self._all("SELECT * FROM warc")}

    def set_warc_length(self, file: str, length: int) -> None:
        """Note the length of a WARC file."""
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO warc VALUES (?, ?)", (file, length))

    def page(self, url: str) -> dict[str, Any] | None:
        """Return everything known about a page; None if it is not known."""
        row = self._one("SELECT * FROM pages WHERE url = ?", url)
        return None if row is None else dict(row)

    def attempts(self, url: str) -> list[tuple[float, str]]:
        """Return time and outcome of the requests for a page."""
        rows = self._all("SELECT at, outcome FROM attempts WHERE url = ? ORDER BY rowid", url)
        return [(float(row["at"]), str(row["outcome"])) for row in rows]

    def _set_state(self, url: str, state: str) -> None:
        with self._transaction():
            self._database.execute("UPDATE pages SET state = ? WHERE url = ?", (state, url))

    def _best_of_host(self, host: str, now: float, kinds: str) -> list[Task]:
        rows = self._all(
            "SELECT url, host, domain, template, kind, depth, redirects, attempts, etag, last_modified, digest, score"
            " FROM pages INDEXED BY pages_by_host WHERE host = ? AND state = 'waiting' AND not_before <= ?"
            " AND kind GLOB ? ORDER BY score DESC LIMIT ?",
            host,
            now,
            kinds,
            _CANDIDATES,
        )
        return [Task(**dict(row)) for row in rows]

    def _add(self, candidates: Iterable[Candidate]) -> int:
        added = 0
        for each in candidates:
            cursor = self._database.execute(
                "INSERT INTO pages (url, host, domain, template, kind, source, parent, depth, redirects, state, score)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting', ?) ON CONFLICT (url) DO NOTHING",
                (
                    *(each.url, host_of(each.url), domain_of(each.url), template_of(each.url), each.kind, each.source),
                    *(each.parent, each.depth, each.redirects, each.score),
                ),
            )
            added += cursor.rowcount
        return added

    def _count(self, name: str, value: int) -> None:
        self._database.execute(
            "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            (name, value),
        )
