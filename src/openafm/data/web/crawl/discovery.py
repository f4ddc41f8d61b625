"""What a crawl learns from its pages: new pages with their priority, budgets, and the outcome that the frontier stores."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping

from openafm.data.web.crawl.config import CrawlConfig, Rules
from openafm.data.web.crawl.inspection import Inspection, inspect_page
from openafm.data.web.documents import Page
from openafm.data.web.frontier.frontier import Candidate, Frontier, Outcome, Task
from openafm.data.web.permissions.opt_out import follows_links, image_opt_out
from openafm.data.web.urls import domain_of, template_of
from openafm.data.web.warc import Position

_SITEMAP_OR_IMAGE = ("sitemap", "image")
_IMAGE_SCORE = 15.0
"""Above pages and below sitemaps: a crawl that is ended early has the images of its pages."""


class Discovery:
    """The rules, priorities and budgets of a running crawl; all of it is rebuilt from the frontier."""

    def __init__(self, config: CrawlConfig, frontier: Frontier) -> None:
        self._config, self._frontier = config, frontier
        self.rules = Rules(config, json.loads(frontier.fact("seeds") or "[]"))
        self.priority = config.priority.build()
        for domain, template, language, topic, pages, reward in frontier.rewards():
            self.priority.learn(domain, template, language, topic, pages=pages, reward=reward)
        self._of_template = Counter(frontier.num_by_template())
        self._of_domain = Counter(frontier.done_by_domain())
        self.num_done = self._of_domain.total()

    def score(self, task: Task) -> float:
        """Return the current score of a waiting page."""
        return task.score if task.kind in _SITEMAP_OR_IMAGE else self.priority.score(task.url, task.domain, task.depth).total

    def explanation(self, task: Task) -> str:
        """Return the score with its parts."""
        if task.kind in _SITEMAP_OR_IMAGE:
            return f"{task.score:.3f}: {'a sitemap' if task.kind == 'sitemap' else 'an image of a page'}"
        return str(self.priority.score(task.url, task.domain, task.depth))

    def is_spent(self, domain: str) -> bool:
        """Return True if the budget of a domain is spent."""
        return self._of_domain[domain] >= self._config.max_pages_per_domain

    def add_seed(self, url: str) -> None:
        """Let the target of a seed's redirect belong to the crawl."""
        known = json.loads(self._frontier.fact("seeds") or "[]")
        if url not in known:
            self._frontier.set_fact("seeds", json.dumps([*known, url]))
            self.rules = Rules(self._config, [*known, url])

    def candidates(self, urls: Iterable[str], source: str, parent: str, depth: int) -> list[Candidate]:
        """Return the URLs that are new and belong to the crawl; each counts against its template."""
        found = []
        for url in self._frontier.unknown(urls):
            template = template_of(url)
            is_varied = template != url.partition("://")[2]
            if is_varied and self._of_template[template] >= self._config.max_pages_per_template:
                continue
            if not self.rules.refusal(url, depth):
                self._of_template[template] += 1
                score = self.priority.score(url, domain_of(url), depth).total
                found.append(Candidate(url=url, source=source, parent=parent, depth=depth, score=score))
        return found

    def inspect(self, page: Page, body: bytes) -> Inspection:
        """Return what a page links to; a page that cannot be inspected links to nothing."""
        try:
            return inspect_page(
                page.url,
                page.headers,
                body,
                identify=bool(self._config.priority.languages),
                images=self._config.images,
            )
        except (ValueError, LookupError, RecursionError, OverflowError):
            self._frontier.count("not_inspected")
            return Inspection()

    def note(self, page: Page, inspected: Inspection, at: float, depth: int, place: Position | str) -> None:
        """Store a captured page, what was learned from it and the pages that it links to.

        `place` is the position in the WARC files, or the file alone.
        """
        digest = hashlib.sha1(page.body, usedforsecurity=False).hexdigest() if page.body else ""
        domain, template = domain_of(page.url), template_of(page.url)
        topic = self.priority.topic(inspected.text)
        is_new = page.status != 304
        is_duplicate = bool(digest) and self._frontier.knows_digest(digest, page.url)
        reward = self.priority.reward(inspected.text, inspected.language, is_duplicate=is_duplicate)
        links = inspected.links if follows_links(page.headers, page.body) else ()
        found = [*links, inspected.canonical] if inspected.canonical else links
        outcome = Outcome(
            state="done",
            status=page.status,
            etag=page.headers.get("etag", ""),
            last_modified=page.headers.get("last-modified", ""),
            digest=digest,
            opt_out=page.opt_out,
            warc=place if isinstance(place, str) else f"{place.file}:{place.start}",
            warc_lengths={} if isinstance(place, str) else {place.file: place.end},
            reward=(inspected.language, topic, reward) if is_new else None,
        )
        new = self.candidates(found, "link", page.url, depth + 1)
        counters = dict(_counters(page, is_duplicate=is_duplicate))
        if inspected.images and (page.opt_out or image_opt_out(page.headers, page.body, self._config.training_agents)):
            counters["images_not_fetched"] = len(inspected.images)
        else:
            new += self._images(inspected.images[: self._config.max_images_per_page], page.url, depth)
        self._frontier.finish(page.url, outcome, at, attempt="answered", new=new, counters=counters)
        self._of_domain[domain] += 1
        self.num_done += 1
        if is_new:
            self.priority.learn(domain, template, inspected.language, topic, reward=reward)
            if self.priority.is_rescored(template):
                score = self.priority.score(page.url, domain, 0).total
                self._frontier.rescore(template, score, self._config.priority.depth_penalty)

    def note_image(self, page: Page, at: float, place: Position | str) -> None:
        """Store a captured image, or the redirect of one, of a page that was noted before. `place` is as in `note`."""
        outcome = Outcome(
            state="done",
            reason=f"redirect to {page.headers.get('location', '')[:200]}"
            if 300 <= page.status < 400 and page.status != 304
            else "",
            status=page.status,
            etag=page.headers.get("etag", ""),
            last_modified=page.headers.get("last-modified", ""),
            opt_out=page.opt_out,
            warc=place if isinstance(place, str) else f"{place.file}:{place.start}",
            warc_lengths={} if isinstance(place, str) else {place.file: place.end},
        )
        counted = {"images": page.status == 200, "image_bytes": len(page.body), "images_opted_out": bool(page.opt_out)}
        counters = {name: int(value) for name, value in counted.items() if value}
        self._frontier.finish(page.url, outcome, at, attempt="answered", counters=counters)

    def _images(self, urls: Iterable[str], parent: str, depth: int) -> list[Candidate]:
        return [
            Candidate(url=url, source="image", kind="image", parent=parent, depth=depth, score=_IMAGE_SCORE)
            for url in self._frontier.unknown(urls)
            if not self.rules.image_refusal(url)
        ]


def _counters(page: Page, *, is_duplicate: bool) -> Mapping[str, int]:
    is_new = page.status != 304
    counted = {
        "pages": is_new,
        "not_modified": not is_new,
        "bytes": len(page.body),
        "opted_out": is_new and bool(page.opt_out),
        "duplicates": is_duplicate,
    }
    return {name: int(value) for name, value in counted.items() if value}
