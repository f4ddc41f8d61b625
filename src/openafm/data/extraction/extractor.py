"""Extract the main content of a page: learned block classifier, rules by domain, trafilatura or a model if it is unsure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from openafm.core.libraries import needed
from openafm.data.extraction.base import PageExtractor, PageExtractorConfig
from openafm.data.extraction.blocks import PageBlocks, group_bits, split_blocks
from openafm.data.extraction.classifier import BlockClassifier, shipped_classifier
from openafm.data.extraction.dom import check_payload, parse, to_utf8
from openafm.data.extraction.markdown import MarkdownText, joined, media_in, write_markdown
from openafm.data.extraction.metadata import PageMetadata, read_metadata
from openafm.data.extraction.native_page import open_reader
from openafm.data.extraction.rules import DomainRule, apply_rule, read_rules, rule_for
from openafm.data.web.documents import Dropped, Page, WebDocument

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from selectolax.lexbor import LexborNode

    Matrix = NDArray[np.float32]

DROP_REASONS = ("http_status", "not_html", "too_large", "empty", "no_dom", "too_many_blocks", "no_text")
"""Reasons of `Extractor.extract`: the status is not 2xx, the payload is not HTML, above the limit, empty or without
elements; the page has more blocks than the limit; or no main content of `min_chars` characters was found."""

_MIN_SCORE = 0.15  # of a chosen block; no block of a page of menus reaches it
_MIN_OPENING_CHARS, _MAX_OPENING_LINKS, _MAX_OPENING_BLOCKS = 60, 0.3, 12
_NOT_OPENING_TAGS = frozenset(("figcaption", "li", "td", "th"))
_NOT_OPENING_BITS = group_bits(
    *("caption", "meta", "share", "consent", "comment", "navigation", "breadcrumb"),
    *("advert", "newsletter", "related", "legal", "login"),
)
_SENTENCE_ENDS = tuple('.!?…。！？"”“»)')
_MIN_FALLBACK_TEXT = 100  # characters outside links
_MAX_FALLBACK_CHARS, _MAX_FALLBACK_LINKS, _MAX_FALLBACK_BLOCKS = 2 << 20, 4000, 4000

ChooseBlocks: TypeAlias = Callable[[Sequence[str]], Sequence[int] | None]
"""A function of a model: texts of the blocks of a page -> the numbers of those that are main content. None keeps the
classifier's choice. `recipes/pipelines/block_choice.py` makes one from any language model."""


@dataclass(frozen=True, kw_only=True)
class ExtractionConfig(PageExtractorConfig):
    """Config of an extractor.

    The chosen blocks of a page are those with the highest expected F-score of their characters, in which recall weighs
    `recall_weight` times precision (the square of beta), and the opening before them. That score is the confidence of
    the page. Below `fallback_below`, trafilatura replaces the classifier's text (without its own fallbacks, which double
    its time). Below `model_below`, a model is asked if one is given to `build`. `union` adds the text that trafilatura
    finds and the classifier does not, for every page (arXiv 2602.19548: more tokens at equal quality). `metadata`
    of a document that a model extracted holds `extraction.agreement`: the share of characters on which the model
    and the classifier agree. `links` writes link targets in the Markdown. `rules` is a TOML file; without one,
    those of the package apply.
    """

    REASONS: ClassVar[tuple[str, ...]] = DROP_REASONS
    VERSION: ClassVar[int] = 9

    recall_weight: float = 2.0
    fallback_below: float = 0.5
    model_below: float = 0.0
    union: bool = False
    links: bool = True
    structure: bool = True
    min_chars: int = 25
    max_bytes: int = 8 << 20
    max_blocks: int = 20_000
    rules: str = ""

    def __post_init__(self) -> None:
        for name in ("fallback_below", "model_below"):
            value = getattr(self, name)
            self.require(0 <= value <= 1, f"{name} is {value}; use a number from 0 to 1")
        self.require(self.recall_weight > 0, f"recall_weight is {self.recall_weight}; use a number above 0")
        for name in ("min_chars", "max_bytes", "max_blocks"):
            self.require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; use 1 or more")

    def build(self, choose_blocks: ChooseBlocks | None = None) -> Extractor:
        """Return the extractor. `choose_blocks` asks a model where the confidence is below `model_below`."""
        return Extractor(self, shipped_classifier(), read_rules(self.rules), choose_blocks)


class Extractor(PageExtractor):
    """Extract documents from pages. One extractor serves any number of threads."""

    def __init__(
        self,
        config: ExtractionConfig,
        classifier: BlockClassifier,
        rules: Mapping[str, DomainRule],
        choose_blocks: ChooseBlocks | None = None,
    ) -> None:
        self._config, self._classifier, self._rules, self._choose_blocks = config, classifier, rules, choose_blocks
        self._reader = open_reader(classifier)

    def extract(self, page: Page) -> WebDocument | Dropped:
        """Return the document of a page, or the reason why it has none. No content of a page raises."""
        if (dropped := check_payload(page, self._config.max_bytes)) is not None:
            return dropped
        html = to_utf8(page.body, page.content_type)
        root = parse(html)
        if root is None:
            return Dropped(reason="no_dom", detail="the parser found no element", url=page.url)
        if (read := self._read(root, len(html))) is None:
            detail = f"more than {self._config.max_blocks} blocks, which is the limit"
            return Dropped(reason="too_many_blocks", detail=detail, url=page.url)
        metadata = read_metadata(root)
        base = joined(page.url, metadata.base) if metadata.base else page.url
        text, extractor, confidence, agreement = self._text(page, html, *read, base)
        if len(text.text) < self._config.min_chars:
            return Dropped(reason="no_text", detail=f"{len(text.text)} characters of main content", url=page.url)
        return _document(page, metadata, text, extractor, confidence, agreement)

    def _read(self, root: LexborNode, num_bytes: int) -> tuple[PageBlocks, Matrix] | None:
        """The blocks of a page and the classifier's scores of them; None if there are too many."""
        most = self._config.max_blocks
        found = self._reader.read(root, num_bytes, most) if self._reader is not None else None
        blocks = found.blocks if found is not None else split_blocks(root, most)
        if len(blocks.blocks) > most:
            return None
        return blocks, found.scores if found is not None else self._classifier.scores(blocks)

    def _text(
        self, page: Page, html: bytes, blocks: PageBlocks, scores: Matrix, base: str
    ) -> tuple[MarkdownText, str, float, str]:
        """The text, the name of its extractor, the confidence, and a model's agreement with the classifier.

        `base` is the URL that relative links refer to.
        """
        config, agreement = self._config, ""
        chosen, confidence = choose_blocks(blocks, scores, config.recall_weight)
        chosen = with_opening(blocks, chosen)
        name = "classifier"
        if (rule := rule_for(page.url, self._rules)) is not None:
            chosen, confidence, name = apply_rule(rule, blocks, chosen), 1.0, "rule"
        elif self._choose_blocks is not None and confidence < config.model_below:
            numbers = self._choose_blocks([block.text for block in blocks.blocks])
            if numbers is not None:
                wanted = frozenset(numbers)
                by_model = [index in wanted for index in range(len(chosen))]
                agreement = f"{_agreement(blocks, chosen, by_model):.3f}"
                chosen, name = by_model, "model"
        text = write_markdown(blocks, chosen, base, links=config.links, structure=config.structure)
        unsure = name == "classifier" and (config.union or confidence < config.fallback_below)
        if unsure and _is_in_reach(html, blocks):
            other = trafilatura_text(html.decode("utf-8", "replace"), base, links=config.links, structure=config.structure)
            if config.union:
                return replace(text, text=_union(text.text, other)), "union", confidence, agreement
            if other:
                return MarkdownText(text=other, media=media_in(other, blocks, base)), "trafilatura", confidence, agreement
        return text, name, confidence, agreement


def extract(page: Page, config: ExtractionConfig | None = None) -> WebDocument | Dropped:
    """Return the document of a page, or the reason why it has none."""
    return (config or ExtractionConfig()).build().extract(page)


def trafilatura_text(html: str, url: str = "", *, links: bool = False, structure: bool = True) -> str:
    """Return the main content that trafilatura finds; empty if it finds none or fails on the page.

    Raises:
        MissingLibraryError: trafilatura is not installed.
    """
    with needed("the fallback of extraction", "trafilatura", "data"):
        import trafilatura
    try:
        return (
            trafilatura.extract(
                html,
                url=url or None,
                output_format="markdown" if structure else "txt",
                include_comments=False,
                include_formatting=structure,
                include_links=links and structure,
                favor_precision=True,
                fast=True,
            )
            or ""
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return ""  # a page that its rules do not expect; the page then has no fallback text


def choose_blocks(blocks: PageBlocks, scores: Matrix, recall_weight: float) -> tuple[list[bool], float]:
    """Return the choice of blocks with the highest expected F-score, and that score; 0 without a block.

    For any number of blocks the best are those with the highest scores. So a page of which the classifier is unsure gets a
    lower threshold than one of which it is sure, but not one below `_MIN_SCORE`. A block counts as its characters, up to
    400.
    """
    import numpy as np

    if not blocks.blocks:
        return [], 0.0
    order = np.argsort(-scores, kind="stable")
    sizes = np.minimum(blocks.num_chars, 400)[order]
    found = np.cumsum(sizes * scores[order])
    expected = (1 + recall_weight) * found / (np.cumsum(sizes) + recall_weight * found[-1])
    best = int(np.argmax(expected))
    chosen: list[bool] = (scores >= max(float(scores[order[best]]), _MIN_SCORE)).tolist()
    return chosen, float(expected[best])


def with_opening(blocks: PageBlocks, chosen: list[bool]) -> list[bool]:
    """Return the choice with the opening of the text: paragraphs between the headline and the first chosen block.

    Sites have the opening apart from the text, beside the date, the author and the picture, so the classifier rejects it.
    """
    if True not in chosen:
        return chosen
    first = chosen.index(True)
    tags, bits = blocks.containers.tags, blocks.containers.bits
    places = blocks.container_of[: first + 1].tolist()
    headline = next((index for index in range(first, -1, -1) if tags[places[index]] == "h1"), first)
    result = list(chosen)
    for index in range(max(headline + 1, first - _MAX_OPENING_BLOCKS), first):
        place, num_chars = places[index], int(blocks.num_chars[index])
        is_prose = num_chars >= _MIN_OPENING_CHARS and blocks.link_chars[index] < _MAX_OPENING_LINKS * num_chars
        if is_prose and tags[place] not in _NOT_OPENING_TAGS and not bits[place] & _NOT_OPENING_BITS:
            result[index] = blocks.blocks[index].text.endswith(_SENTENCE_ENDS)
    return result


def _is_in_reach(html: bytes, blocks: PageBlocks) -> bool:
    """True if trafilatura can find a text in a bounded time.

    A page of links has none. 60,000 links in one paragraph take it 30 s, 20,000 paragraphs 5 s.
    """
    if len(html) > _MAX_FALLBACK_CHARS or len(blocks.blocks) > _MAX_FALLBACK_BLOCKS:
        return False
    if int((blocks.num_chars - blocks.link_chars).sum()) < _MIN_FALLBACK_TEXT:
        return False
    return int(blocks.num_links.sum()) <= _MAX_FALLBACK_LINKS


def _agreement(blocks: PageBlocks, first: Sequence[bool], second: Sequence[bool]) -> float:
    """The share of the characters of a page on which two choices agree."""
    lengths: list[int] = blocks.num_chars.tolist()
    equal = sum(length for length, one, other in zip(lengths, first, second, strict=True) if one == other)
    return equal / max(sum(lengths), 1)


def _union(first: str, second: str) -> str:
    """The first text, then the lines that only the second has."""
    known = {_bare(line) for line in first.splitlines()}
    more = [line for line in second.splitlines() if (bare := _bare(line)) and bare not in known]
    return "\n\n".join([first, *more]) if more else first


def _bare(line: str) -> str:
    return "".join(filter(str.isalnum, line))


def _document(
    page: Page, metadata: PageMetadata, text: MarkdownText, extractor: str, confidence: float, agreement: str
) -> WebDocument:
    digest = hashlib.blake2b(page.url.encode("utf-8", "surrogatepass") + b"\x00", digest_size=16)
    digest.update(page.body)
    return WebDocument(
        id=digest.hexdigest(),
        url=page.url,
        text=text.text,
        language=metadata.language,
        title=metadata.title,
        author=metadata.author,
        date=metadata.date,
        license=metadata.license,
        media=text.media,
        opt_out=page.opt_out,
        extractor=extractor,
        confidence=round(confidence, 4),
        metadata={**metadata.more, **({"extraction.agreement": agreement} if agreement else {})},
    )
