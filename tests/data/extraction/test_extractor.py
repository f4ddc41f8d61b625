"""Extraction of generated pages with gold texts, rules, the fallback, unions and models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from openafm.core.config import ConfigError
from openafm.data.extraction import ExtractionConfig, extract, extractor
from openafm.data.extraction.blocks import NUM_BITS, PageBlocks, split_blocks
from openafm.data.extraction.dom import parse
from openafm.data.extraction.extractor import choose_blocks, with_opening
from openafm.data.extraction.rules import read_rules, rule_for
from openafm.data.sites import Site, SiteConfig
from openafm.data.web.documents import Dropped, Page, WebDocument

PLAIN = ExtractionConfig(structure=False, links=False, fallback_below=0.0)
ARTICLE = "".join(
    f"<p>This is paragraph number {number} of the article, and it holds some words, a comma and a full stop.</p>"
    for number in range(6)
)
PAGE = (
    "<html lang='en'><head><title>Title</title></head><body><nav><a href='/'>Home</a> <a href='/a'>About</a></nav>"
    f"<article><h1>Title</h1>{ARTICLE}<p><img src='/cat.png' alt='a cat'></p></article>"
    "<footer>Copyright 2024 <a href='/p'>Privacy</a></footer></body></html>"
)


@pytest.fixture(scope="module")
def site() -> Site:
    return SiteConfig(seed=91, num_pages=48, languages=("en", "ja"), script_share=0.0, charset_share=0.3).build()


def page_of(html: str, url: str = "https://example.org/page.html", **changes: object) -> Page:
    return Page(url=url, body=html.encode(), headers={"content-type": "text/html; charset=utf-8"}, **changes)  # type: ignore[arg-type]


def document_of(
    html: str, config: ExtractionConfig | None = None, url: str = "https://example.org/page.html"
) -> WebDocument:
    document = extract(page_of(html, url), config)
    assert isinstance(document, WebDocument), document
    return document


def f1(gold: str, found: str) -> float:
    wanted, given = (Counter(re.findall(r"\w+", text)) for text in (gold, found))
    return 2 * (wanted & given).total() / max(wanted.total() + given.total(), 1)


def test_generated_pages_of_another_seed_are_extracted(site: Site) -> None:
    plain = PLAIN.build()
    scores = []
    for page in site.articles:
        document = plain.extract(Page(url="https://example.org" + page.path, body=page.html, headers=page.headers))
        assert isinstance(document, WebDocument), (page.path, document)
        assert (document.title, document.author, document.date) == (page.title, page.author, page.date)
        assert document.language in ("", page.language)  # some pages declare none
        assert document.license == page.license
        scores.append(f1(page.text, document.text))
    assert sum(scores) / len(scores) > 0.95, sorted(scores)[:5]


def test_a_document_holds_markdown_media_and_where_it_comes_from() -> None:
    document = document_of(PAGE)
    assert document.text.count("\n\n") == 5
    assert "Home" not in document.text
    assert "Privacy" not in document.text
    assert [(media.url, media.alt) for media in document.media] == [("https://example.org/cat.png", "a cat")]
    assert document.title == "Title"
    assert len(document.id) == 32
    assert document.extractor == "classifier"
    assert 0.5 < document.confidence <= 1


def test_ids_depend_on_url_and_payload() -> None:
    ids = {document_of(PAGE).id, document_of(PAGE, url="https://example.org/other").id, document_of(PAGE + " ").id}
    assert len(ids) == 3
    assert document_of(PAGE).id in ids


def test_opt_outs_are_carried() -> None:
    document = extract(page_of(PAGE, opt_out="robots"))
    assert isinstance(document, WebDocument)
    assert document.opt_out == "robots"


def test_low_confidence_asks_trafilatura() -> None:
    document = document_of(PAGE, ExtractionConfig(fallback_below=1.0))
    assert document.extractor == "trafilatura"
    assert "paragraph number 5" in document.text


def test_trafilatura_is_not_asked_about_a_page_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(extractor, "trafilatura_text", lambda html, *_, **__: asked.append(html) or "")
    extract(page_of("<p><a href='/a'>A page of this site</a></p>" * 30), ExtractionConfig(fallback_below=1.0))
    assert not asked
    extract(page_of(PAGE), ExtractionConfig(fallback_below=1.0))
    assert asked


def test_a_text_of_trafilatura_keeps_the_images_at_their_places() -> None:
    figure = "<figure><img src='/plan.png' alt='a plan'><figcaption>The plan of the house.</figcaption></figure>"
    html = PAGE.replace("<p>This is paragraph number 3", figure + "<p>This is paragraph number 3")
    document = document_of(html, ExtractionConfig(fallback_below=1.0))
    assert document.extractor == "trafilatura"
    assert [media.url.rpartition("/")[2] for media in document.media] == ["plan.png", "cat.png"]
    plan, cat = document.media
    assert document.text[plan.offset :].startswith(("The plan", "This is paragraph number 3"))
    assert plan.caption == "The plan of the house."
    assert cat.offset == len(document.text)


def test_relative_urls_refer_to_the_base_element() -> None:
    link = "<p>Read <a href='rest.html'>the rest</a>, which has more words, commas and a full stop.</p></article>"
    html = PAGE.replace("<head>", "<head><base href='https://cdn.example/files/'>")
    document = document_of(html.replace("</article>", link).replace("/cat.png", "cat.png"))
    assert [media.url for media in document.media] == ["https://cdn.example/files/cat.png"]
    assert "[the rest](https://cdn.example/files/rest.html)" in document.text


def test_unknown_elements_have_the_kind_that_their_own_page_names() -> None:
    """Lexbor numbers unknown elements by address, and pages reuse addresses."""
    for _ in range(10):
        assert block_texts("<post>a</post><x-one>b</x-one>") == ["a", "b"]
        assert block_texts("<x-one>a</x-one><x-two>b</x-two>") == ["ab"]


def block_texts(html: str) -> list[str]:
    return [block.text for block in page_blocks(html).blocks]


def page_blocks(html: str) -> PageBlocks:
    root = parse(html.encode())
    assert root is not None
    return split_blocks(root)


@pytest.mark.parametrize(("first", "second"), [("article-body", "article body"), ("postContent", "post-post content")])
def test_a_name_of_two_nouns_of_content_has_a_bit_of_its_own(first: str, second: str) -> None:
    joined, apart = (page_blocks(f"<div class='{names}'>a</div>").containers.bits[-1] for names in (first, second))
    assert joined & ~apart
    assert joined & apart == apart
    assert joined < 1 << NUM_BITS


@pytest.mark.parametrize(
    ("scores", "chosen", "confidence"),
    [
        ((0.9, 0.2), [True, False], 3 * 0.9 / (1 + 2 * 1.1)),
        ((0.5, 0.4), [True, True], 3 * 0.9 / (2 + 2 * 0.9)),
        ((0.3, 0.02), [True, False], 3 * 0.3 / (1 + 2 * 0.32)),
        ((0.04, 0.03), [False, False], 3 * 0.04 / (1 + 2 * 0.07)),
    ],
)
def test_the_chosen_blocks_have_the_highest_expected_score(
    scores: tuple[float, float], chosen: list[bool], confidence: float
) -> None:
    root = parse(f"<p>{'a' * 100}</p><p>{'b' * 100}</p>".encode())
    assert root is not None
    found = choose_blocks(split_blocks(root), np.array(scores, dtype=np.float32), recall_weight=2.0)
    assert found == (chosen, pytest.approx(confidence, abs=1e-5))


OPENING = "What the article says in one sentence, which is longer than sixty characters."
ELSEWHERE = "Other pages say other things, also in sentences of more than sixty characters."


@pytest.mark.parametrize(
    ("html", "is_taken"),
    [
        (f"<h1>Title</h1><header><p class='lead'>{OPENING}</p><p>By A. Writer, 2026</p></header>", True),
        (f"<h1>Title</h1><h2>{OPENING}</h2><p>A date</p>", True),
        (f"<p>{OPENING}</p><h1>Title</h1>", False),
        (f"<p>{OPENING}</p>", False),
        (f"<h1>Title</h1><p>{OPENING[:-1]}</p>", False),
        ("<h1>Title</h1><p>A short sentence.</p>", False),
        (f"<h1>Title</h1><p><a href='/x'>{OPENING}</a></p>", False),
        (f"<h1>Title</h1><p class='caption'>{OPENING}</p>", False),
        (f"<h1>Title</h1><ul><li>{OPENING}</li></ul>", False),
        (f"<h1>Title</h1><p>{OPENING}</p>{'<p>Word</p>' * 12}", False),
    ],
)
def test_the_opening_between_headline_and_text_belongs_to_the_text(html: str, is_taken: bool) -> None:
    blocks = page_blocks(f"<body><p>{ELSEWHERE}</p>{html}<article>The text.</article><p>{ELSEWHERE}</p></body>")
    texts = [block.text for block in blocks.blocks]
    chosen = with_opening(blocks, [text == "The text." for text in texts])
    expected = {"The text."} | ({OPENING} if is_taken else set())
    assert {text for text, is_chosen in zip(texts, chosen, strict=True) if is_chosen} == expected


def test_a_page_without_main_content_has_no_opening() -> None:
    for html in ("<body></body>", f"<body><h1>Title</h1><p>{OPENING}</p></body>"):
        blocks = page_blocks(html)
        assert not any(with_opening(blocks, [False] * len(blocks.blocks)))


def test_a_union_holds_the_text_of_both_extractors_once() -> None:
    document = document_of(PAGE, ExtractionConfig(union=True))
    assert document.extractor == "union"
    assert document.text.count("paragraph number 3") == 1


def test_a_model_chooses_blocks_where_the_confidence_is_low() -> None:
    asked: list[Sequence[str]] = []

    def choose(texts: Sequence[str]) -> Sequence[int]:
        asked.append(texts)
        return [index for index, text in enumerate(texts) if "number 2" in text] + [9999]

    document = ExtractionConfig(model_below=1.0).build(choose).extract(page_of(PAGE))
    assert isinstance(document, WebDocument)
    assert (document.extractor, len(asked)) == ("model", 1)
    assert document.text.startswith("This is paragraph number 2")
    assert 0 < float(document.metadata["extraction.agreement"]) < 0.5
    ExtractionConfig(model_below=0.0).build(choose).extract(page_of(PAGE))
    assert len(asked) == 1


def test_rules_of_a_domain_decide(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('["example.org"]\nkeep = ["wanted"]\ndrop = ["unwanted"]\n')
    html = (
        "<body><p>Other text, outside of the element that counts.</p><div class='wanted big'><p>Inside of it is text.</p>"
        "<div id='unwanted'>Dropped here.</div><p>And more of the text.</p></div></body>"
    )
    config = ExtractionConfig(rules=str(rules))
    assert document_of(html, config).text == "Inside of it is text.\n\nAnd more of the text."
    assert document_of(html, config).extractor == "rule"
    assert document_of(PAGE, config).extractor == "rule"  # no such element: the classifier's choice
    assert "paragraph number 5" in document_of(PAGE, config).text
    assert rule_for("https://www.example.org:80/x", read_rules(str(rules))) is not None
    assert rule_for("https://WWW.EXAMPLE.ORG/x", read_rules(str(rules))) is not None
    assert rule_for("https://badexample.org/", read_rules(str(rules))) is None


def test_shipped_rules_are_read() -> None:
    assert rule_for("https://de.wikipedia.org/wiki/X", read_rules()) is not None


@pytest.mark.parametrize("text", ["not toml [", '["a.b"]\nkeep = "x"\n', '["a.b"]\nother = []\n', 'key = "value"\n'])
def test_wrong_rules_are_refused(tmp_path: Path, text: str) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(text)
    with pytest.raises(ConfigError, match=r"rules\.toml"):
        ExtractionConfig(rules=str(rules)).build()


@pytest.mark.parametrize("change", [{"recall_weight": 0.0}, {"min_chars": 0}, {"rules": "absent.toml"}])
def test_wrong_configs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ExtractionConfig(**change).build()  # type: ignore[arg-type]


def test_a_config_is_a_kind_of_the_pipeline() -> None:
    assert "no_text" in ExtractionConfig.REASONS
    assert isinstance(extract(page_of("<p></p>")), Dropped)
