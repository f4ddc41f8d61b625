"""The order of a crawl, from the three signals of report section 3.1; every score is explained by its parts.

- language: the languages identified on a domain so far, against the wanted shares
- topics: the distribution of topics over what was fetched; rare topics score higher
- URL patterns: the average reward of a template, such as `/news/N`, with an exploration term (UCB1), and rules on paths

The reward of a fetched page is between 0 and 1: its amount of text, zero if its content is known already. Pages of
languages that are not wanted count for a tenth.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from openafm.core.config import Config
from openafm.data.web.urls import template_of

_ARTICLE = re.compile(
    r"/(?:19|20)\d\d/|/[^/]+(?:-[^/-]+){3,}/?$|/(?:article|story|news|blog|post|wiki|docs?)s?/", re.IGNORECASE
)
_NO_ARTICLE = re.compile(
    r"/(?:tags?|categor(?:y|ies)|search|login|signin|register|cart|basket|checkout|account|share|print|feed|embed|wp-admin)(?:/|$)"
    r"|[?&](?:replytocom|share|print|sort|order|action|filter|lang)=",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{4,}")
_ENOUGH_CHARACTERS = 2000.0
_UNWANTED_LANGUAGE = 0.1
_TOPIC_WORDS = 24
_TOPIC_OVERLAP = 0.2


@dataclass(frozen=True, kw_only=True)
class PriorityConfig(Config):
    """Weights of the signals. `languages` maps wanted language codes to shares; empty means every language alike."""

    languages: dict[str, float] = field(default_factory=dict)
    language_weight: float = 1.0
    topic_weight: float = 0.5
    pattern_weight: float = 1.0
    exploration: float = 0.5
    depth_penalty: float = 0.05
    max_topics: int = 64

    def __post_init__(self) -> None:
        self.require(all(share > 0 for share in self.languages.values()), "shares of languages must be above 0")
        self.require(self.max_topics > 0, "max_topics must be 1 or more")

    def build(self) -> Priority:
        """Return the scorer of a new crawl."""
        return Priority(self)


@dataclass(frozen=True)
class Score:
    """A score and its parts, in the order in which they are added."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        return f"{self.total:.3f} = " + " + ".join(f"{name} {value:.3f}" for name, value in self.parts.items())


class Priority:
    """Scores pages by what was learned from the pages fetched so far."""

    def __init__(self, config: PriorityConfig) -> None:
        self._config = config
        self._num_pages = 0
        self._of_template: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # pages, summed reward
        self._of_domain: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._languages: Counter[str] = Counter()
        self._languages_of_domain: dict[str, Counter[str]] = defaultdict(Counter)
        self._topics: Counter[str] = Counter()
        self._topics_of_domain: dict[str, Counter[str]] = defaultdict(Counter)

    def learn(self, domain: str, template: str, language: str, topic: str, *, pages: int = 1, reward: float = 0.0) -> None:
        """Add fetched pages and their summed reward."""
        self._num_pages += pages
        for table, key in ((self._of_template, template), (self._of_domain, domain)):
            table[key][0] += pages
            table[key][1] += reward
        self._languages[language] += pages
        self._languages_of_domain[domain][language] += pages
        if topic:
            self._topics[topic] += pages
            self._topics_of_domain[domain][topic] += pages

    def is_rescored(self, template: str) -> bool:
        """Return True if the stored scores of a template are to be replaced: after 1, 2, 4, 8, ... of its pages."""
        pages = int(self._of_template[template][0])
        return pages & (pages - 1) == 0

    def reward(self, text: str, language: str, *, is_duplicate: bool) -> float:
        """Return the reward of a fetched page."""
        if is_duplicate:
            return 0.0
        wanted = not self._config.languages or language in self._config.languages
        return min(1.0, len(text) / _ENOUGH_CHARACTERS) * (1.0 if wanted else _UNWANTED_LANGUAGE)

    def topic(self, text: str) -> str:
        """Return the topic of a text: that of the known topics with the most common words, or a new one.

        A topic is named by its most frequent words. It is found in the order of the crawl, so it serves the crawl only.
        """
        counts = Counter(_WORD.findall(text.lower()))
        words = sorted(counts, key=lambda word: (-counts[word] * len(word), zlib.crc32(word.encode())))[:_TOPIC_WORDS]
        if len(words) < 4:
            return ""
        name = " ".join(words)
        overlaps = {known: _overlap(words, known.split()) for known in self._topics}
        nearest = max(overlaps, key=lambda known: (overlaps[known], known), default="")
        if nearest and (overlaps[nearest] >= _TOPIC_OVERLAP or len(self._topics) >= self._config.max_topics):
            return nearest
        return name

    def score(self, url: str, domain: str, depth: int) -> Score:
        """Return the score of a page that was not fetched yet."""
        config = self._config
        template = template_of(url)
        pages, reward = self._of_template.get(template, (0.0, 0.0))
        domain_pages, domain_reward = self._of_domain.get(domain, (0.0, 0.0))
        prior = (domain_reward + 0.5) / (domain_pages + 1)
        mean = (reward + prior) / (pages + 1)
        explored = math.sqrt(math.log(2 + self._num_pages) / (1 + pages))
        return Score(
            {
                "pattern": config.pattern_weight * (mean + _path_rule(url)),
                "exploration": config.exploration * explored,
                "language": config.language_weight * self._language_signal(domain),
                "topic": config.topic_weight * self._topic_signal(domain),
                "depth": -config.depth_penalty * depth,
            }
        )

    def _language_signal(self, domain: str) -> float:
        """Return the share of wanted languages on a domain; languages that are below their wanted share count more."""
        wanted = self._config.languages
        if not wanted:
            return 0.0
        found = self._languages_of_domain.get(domain, Counter())
        total_wanted, total = sum(wanted.values()), max(1, self._languages.total())
        value = 0.0
        for language, share in wanted.items():
            target = share / total_wanted
            lack = min(2.0, target / max(self._languages[language] / total, target / 4))
            value += (found[language] + target) / (found.total() + 1) * lack
        return value

    def _topic_signal(self, domain: str) -> float:
        """Return how rare the topics of a domain are in the crawl: 0 for the only topic, up to 1."""
        found = self._topics_of_domain.get(domain)
        if not found:
            return 0.5
        total, of_domain = self._topics.total(), found.total()
        return sum(count / of_domain * (1 - self._topics[topic] / total) for topic, count in found.items())


def _path_rule(url: str) -> float:
    """Return the prior of a URL: articles score above lists, forms and copies of pages."""
    if _NO_ARTICLE.search(url):
        return -0.3
    return 0.2 if _ARTICLE.search(url) else 0.0


def _overlap(one: Iterable[str], other: Iterable[str]) -> float:
    """Return the Jaccard similarity of two sets of words."""
    first, second = set(one), set(other)
    return len(first & second) / max(1, len(first | second))
