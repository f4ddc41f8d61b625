"""Knowledge domains: images found by key words in their texts, checked by a scorer, with questions by a teacher.

Report 5.1, "General knowledge". A document belongs to the domain with the most key words in its alt text, captions and text.
A scorer, if there is one, compares the image with prompts of all domains and of other things, as CLIP does. A teacher then
writes questions and answers. What is left out is counted with a reason.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from openafm.core.config import Config, to_dict
from openafm.data.captions import checks
from openafm.data.captions.cache import AnswerCache, NoAnswer
from openafm.data.captions.captioner import Captioner, ImageRequest
from openafm.data.captions.captioning import AnswerFolder, write_corpus
from openafm.data.captions.languages import answer_language
from openafm.data.captions.questions import FORMAT, SCHEMA, questions_check, read_questions
from openafm.data.images.documents import ImageDocument, StoredImage
from openafm.data.images.manifest import Manifest
from openafm.data.images.shard_writer import ShardItem
from openafm.data.images.shards import ImageCorpus
from openafm.data.web.documents import Dropped

VERSION = 1
REASONS = (*checks.REASONS, "opt_out", "several_images", "no_keyword", "other_category", "low_score")
"""`no_keyword`: no domain's key words; `other_category`: the image scores higher with a prompt of something else."""

_SPACELESS = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


class Scorer(ABC):
    """Scores how well texts describe an image, as CLIP does. Several threads call it at once."""

    @abstractmethod
    def scores(self, image: StoredImage, prompts: Sequence[str]) -> Sequence[float]:
        """Return a score for each prompt; larger is better."""


@dataclass(frozen=True, kw_only=True)
class ScorerConfig(Config, ABC):
    """Base of the scorers, also of those in plugins."""

    @abstractmethod
    def build(self) -> Scorer:
        """Return the scorer."""


@dataclass(frozen=True, kw_only=True)
class DomainConfig(Config):
    """A domain: key words in any languages, and prompts that describe its images."""

    name: str
    keywords: tuple[str, ...]
    prompts: tuple[str, ...]

    def __post_init__(self) -> None:
        self.require(bool(self.name) and bool(self.keywords), "a domain needs a name and key words")
        self.require(all(word.strip() for word in self.keywords), f"an empty key word of {self.name} matches every text")
        self.require(bool(self.prompts), f"the domain {self.name} needs a prompt, such as 'a photo of a {self.name}'")

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        words = sorted((word.casefold() for word in self.keywords), key=len, reverse=True)
        alternatives = (re.escape(word) if _SPACELESS.search(word) else rf"(?<!\w){re.escape(word)}(?!\w)" for word in words)
        return re.compile("|".join(alternatives))

    def found(self, text: str) -> tuple[str, ...]:
        """Return the key words in a text, each once, sorted. Chinese, Japanese, Korean, Thai: also inside words."""
        return tuple(sorted(set(self._pattern.findall(text.casefold()))))


DOMAINS = (
    DomainConfig(
        name="animals",
        keywords=("animal", "bird", "dog", "cat", "fish", "insect", "butterfly", "horse", "mammal", "reptile", "wildlife"),
        prompts=("a photo of an animal", "a photo of a bird", "a photo of an insect"),
    ),
    DomainConfig(
        name="plants",
        keywords=("plant", "flower", "tree", "leaf", "mushroom", "fern", "moss", "orchid", "forest", "botanical", "herb"),
        prompts=("a photo of a plant", "a photo of a flower", "a photo of a tree"),
    ),
    DomainConfig(
        name="food",
        keywords=("food", "dish", "recipe", "soup", "bread", "cake", "fruit", "vegetable", "meal", "cheese", "noodles"),
        prompts=("a photo of food", "a photo of a dish on a plate"),
    ),
    DomainConfig(
        name="places",
        keywords=("castle", "church", "bridge", "museum", "temple", "monument", "landmark", "cathedral", "tower", "palace"),
        prompts=("a photo of a landmark", "a photo of a building", "a photo of a city"),
    ),
    DomainConfig(
        name="maps",
        keywords=("map", "atlas", "topographic", "city map", "floor plan", "metro map", "cartography"),
        prompts=("a map", "a floor plan"),
    ),
    DomainConfig(
        name="art",
        keywords=("painting", "sculpture", "drawing", "etching", "fresco", "watercolor", "mosaic", "artwork", "engraving"),
        prompts=("a painting", "a photo of a sculpture", "a drawing"),
    ),
    DomainConfig(
        name="vehicles",
        keywords=("car", "train", "airplane", "aircraft", "ship", "boat", "bicycle", "motorcycle", "locomotive", "tractor"),
        prompts=("a photo of a vehicle", "a photo of a train", "a photo of an airplane"),
    ),
    DomainConfig(
        name="science",
        keywords=("microscope", "molecule", "galaxy", "nebula", "planet", "circuit", "experiment", "fossil", "crystal"),
        prompts=("a scientific diagram", "a photo taken with a telescope", "a photo taken through a microscope"),
    ),
)  # fmt: skip
OTHER_PROMPTS = ("a logo", "an advertisement", "a screenshot of a web page", "a photo of a person", "a plain background")


@dataclass(frozen=True, kw_only=True)
class DomainsConfig(Config):
    """Which images are collected, and the questions about them.

    Without a `scorer`, key words alone decide, and the documents say so. `{topic}`, `{language}`, `{count}` and `{text}` in
    the prompt become the domain, the language, the number of questions and the alt text.
    """

    domains: tuple[DomainConfig, ...] = DOMAINS
    scorer: ScorerConfig | None = None
    other_prompts: tuple[str, ...] = OTHER_PROMPTS
    min_score: float = 0.0
    min_keywords: int = 1
    prompt: str = (
        "This image belongs to the topic {topic}. Its page says: {text}\nWrite {count} questions of different kinds about"
        " the image (what is shown, names, counts, colors, places, knowledge about the topic), in {language}, each with a"
        " short answer that is certainly correct. The answers must need the image. " + FORMAT
    )
    count: int = 3
    max_tokens: int = 600
    seconds: float = 120.0
    language: str = "English"

    def __post_init__(self) -> None:
        names = [domain.name for domain in self.domains]
        self.require(bool(names) and len(set(names)) == len(names), f"domains need different names, got {names}")
        self.require(self.count > 0 and self.min_keywords > 0, "count and min_keywords must be at least 1")
        self.require(self.max_tokens > 0 and self.seconds > 0, "max_tokens and seconds must be above 0")


def collect_domains(
    corpus: ImageCorpus, out: Path, teacher: Captioner, config: DomainsConfig, *, num_threads: int = 1
) -> Manifest:
    """Write a corpus of the images of the domains, with questions. The result does not depend on `num_threads`.

    Raises:
        UsageError, ForeignFilesError, FolderInUseError: as `caption_corpus`.
        OpenAFMError: the teacher failed; repeat the call to continue.
    """
    recorded = {"version": VERSION, "model": teacher.model, "sampling": teacher.sampling, "domains": to_dict(config)}
    with AnswerFolder(out, teacher, corpus) as cache:
        collector = DomainCollector(corpus, cache, teacher, config)
        return write_corpus(corpus, out, recorded, collector.collected, num_threads)


class DomainCollector:
    """Takes documents of a corpus into domains. Several threads may share it."""

    def __init__(self, corpus: ImageCorpus, cache: AnswerCache, teacher: Captioner, config: DomainsConfig) -> None:
        self._corpus, self._cache, self._teacher, self._config = corpus, cache, teacher, config
        self._scorer = None if config.scorer is None else config.scorer.build()

    def collected(self, document: ImageDocument) -> ShardItem:
        """Return a document with its domain and questions, or the reason why it is left out."""
        digests = tuple(dict.fromkeys(document.digests))
        if document.opt_out or len(digests) != 1:
            reason = "opt_out" if document.opt_out else "several_images"
            return Dropped(reason=reason, detail=document.opt_out, url=document.source)
        text = "\n".join([*document.captions.values(), document.text])
        domain, words = self.matched(text)
        if domain is None:
            return Dropped(reason="no_keyword", url=document.source)
        image = self._corpus.image(digests[0])
        if image.opt_out:
            return Dropped(reason="opt_out", detail=image.opt_out, url=document.source)
        metadata = {"domain": domain.name, "domain.keywords": ", ".join(words), "domain.scorer": "none"}
        if self._scorer is not None:
            score, prompt, is_own = self._scored(image, domain)
            detail = f"{domain.name} by key words; best prompt '{prompt}', score {score:.3f}"
            if not is_own or not score >= self._config.min_score:
                reason = "low_score" if is_own else "other_category"
                return Dropped(reason=reason, detail=detail, url=document.source)
            metadata |= {"domain.scorer": type(self._config.scorer).__name__, "domain.score": f"{score:.4f}"}
        request = self._request(image, domain, document)
        outcome = self._cache.ask(request, questions_check(request.prompt, self._config.count))
        if isinstance(outcome, NoAnswer):
            return Dropped(reason=outcome.reason, detail=outcome.detail, url=document.source)
        metadata |= {"teacher.model": self._teacher.model, "teacher.sampling": self._teacher.sampling}
        return replace(
            document,
            kind=f"domain.{domain.name}",
            questions=(*document.questions, *read_questions(outcome, f"domain.{domain.name}")),
            metadata={**document.metadata, **metadata},
        ), [image]

    def matched(self, text: str) -> tuple[DomainConfig | None, tuple[str, ...]]:
        """Return the domain with the most different key words in a text, the first of several, and these words."""
        found = [(domain, domain.found(text)) for domain in self._config.domains]
        domain, words = max(found, key=lambda each: len(each[1]))
        return (domain, words) if len(words) >= self._config.min_keywords else (None, ())

    def _scored(self, image: StoredImage, domain: DomainConfig) -> tuple[float, str, bool]:
        """Return the best score, its prompt, and whether that is a prompt of the domain."""
        assert self._scorer is not None
        prompts = [*(prompt for each in self._config.domains for prompt in each.prompts), *self._config.other_prompts]
        scores = self._scorer.scores(image, prompts)
        best = max(range(len(prompts)), key=lambda index: scores[index])
        return float(scores[best]), prompts[best], prompts[best] in domain.prompts

    def _request(self, image: StoredImage, domain: DomainConfig, document: ImageDocument) -> ImageRequest:
        config = self._config
        values = {
            "{topic}": domain.name,
            "{language}": answer_language(config.language, document.language),
            "{count}": str(config.count),
            "{text}": (document.captions.get("alt") or document.text)[:500],
        }
        prompt = re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], config.prompt)
        return ImageRequest(
            image=image.data, prompt=prompt, max_tokens=config.max_tokens, seconds=config.seconds, schema=SCHEMA
        )
