"""Main content of generated pages: paragraphs, headings, lists, tables, code, math, quotes and figures with gold text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from openafm.data.sites.texts import SentenceWriter

_CODE = (
    "def mean(values):\n    return sum(values) / len(values)",
    "for name in sorted(names):\n    print(name)",
    "SELECT city, count(*) FROM visits GROUP BY city;",
    "const total = items.reduce((sum, item) => sum + item.price, 0);\nconsole.log(`total: ${total}`);",
    "#!/bin/sh\nset -e\nmake test\nmake install",
    "if x < 3 and y > 4:\n    raise ValueError(x)",
)
_FORMULAS = ("E = m c^2", "a^2 + b^2 = c^2", "\\frac{n (n + 1)}{2}", "x = \\sqrt{2 g h}")


@dataclass(frozen=True, kw_only=True)
class ContentBlock:
    """One block of the main content: its HTML and its text as plain lines."""

    html: str
    text: str


def draw_article(rng: random.Random, writer: SentenceWriter, topic: str, num_blocks: int) -> tuple[ContentBlock, ...]:
    """Return an article: an opening paragraph, then paragraphs with other blocks between them."""
    blocks = [_paragraph(rng, writer, topic)]
    for _ in range(num_blocks - 1):
        draw = rng.choices(_KINDS, weights=_WEIGHTS)[0]
        blocks.append(draw(rng, writer, topic))
    return tuple(blocks)


def draw_reference_page(rng: random.Random, writer: SentenceWriter, topic: str, num_blocks: int) -> tuple[ContentBlock, ...]:
    """Return a documentation page: short paragraphs, code, tables, lists and formulas."""
    kinds = (_paragraph, _heading, _code, _table, _list, _math, _definitions)
    return (*(rng.choice(kinds)(rng, writer, topic) for _ in range(num_blocks)), _paragraph(rng, writer, topic))


def joined_text(blocks: Sequence[ContentBlock]) -> str:
    """Return the gold text of blocks, separated by blank lines."""
    return "\n\n".join(block.text for block in blocks if block.text)


def _paragraph(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    text = writer.paragraph(rng, topic, rng.choice((1, 2, 3, 3, 4, 5, 6)))
    return ContentBlock(html=f"<p>{_with_inline(rng, writer, text)}</p>", text=text)


def _heading(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    text = writer.heading(rng, topic)
    level = rng.choice((2, 2, 3))
    return ContentBlock(html=f"<h{level}>{escape(text)}</h{level}>", text=text)


def _list(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    tag = rng.choice(("ul", "ul", "ol"))
    items = [writer.sentence(rng, topic) for _ in range(rng.randint(2, 6))]
    html = "".join(f"<li>{_with_inline(rng, writer, item)}</li>" for item in items)
    return ContentBlock(html=f"<{tag}>{html}</{tag}>", text="\n".join(items))


def _table(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    kinds = rng.sample(("city", "food", "company", "person"), 2)
    rows = [[writer.word(rng, kind) for kind in kinds] + [str(rng.randint(1, 999))] for _ in range(rng.randint(2, 6))]
    header = [topic, writer.word(rng, "company"), "No."]
    html = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    text = "\n".join(" | ".join(row) for row in [header, *rows])
    return ContentBlock(html=f"<table><thead><tr>{html}</tr></thead><tbody>{body}</tbody></table>", text=text)


def _code(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    code = rng.choice(_CODE)
    return ContentBlock(html=f'<pre><code class="language-text">{escape(code)}</code></pre>', text=code)


def _math(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    formula = rng.choice(_FORMULAS)
    html = (
        '<p class="formula"><math><semantics><mrow><mi>x</mi></mrow>'
        f'<annotation encoding="application/x-tex">{escape(formula)}</annotation></semantics></math></p>'
    )
    return ContentBlock(html=html, text=formula)


def _quote(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    text = writer.paragraph(rng, topic, 2)
    return ContentBlock(html=f"<blockquote><p>{escape(text)}</p></blockquote>", text=text)


def _definitions(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    pairs = [(writer.word(rng, "food"), writer.sentence(rng, topic)) for _ in range(rng.randint(2, 4))]
    html = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in pairs)
    return ContentBlock(html=f"<dl>{html}</dl>", text="\n".join(f"{term}\n{text}" for term, text in pairs))


def _figure(rng: random.Random, writer: SentenceWriter, topic: str) -> ContentBlock:
    caption = writer.sentence(rng, topic)
    alt = writer.heading(rng, topic)
    html = (
        f'<figure><img src="/images/{rng.randrange(8)}.png" alt="{escape(alt)}" width="320" height="200">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
    return ContentBlock(html=html, text="")


def _with_inline(rng: random.Random, writer: SentenceWriter, text: str) -> str:
    """The text as HTML, in some cases with a link or emphasis around some words."""
    words = text.split(" ")
    if len(words) < 6 or rng.random() < 0.5:
        return escape(text)
    at = rng.randrange(1, len(words) - 3)
    inner = escape(" ".join(words[at : at + 2]))
    marked = rng.choice((f'<a href="/wiki/{rng.randrange(100)}">{inner}</a>', f"<b>{inner}</b>", f"<em>{inner}</em>"))
    return " ".join([*map(escape, words[:at]), marked, *map(escape, words[at + 2 :])])


_KINDS: tuple[Callable[[random.Random, SentenceWriter, str], ContentBlock], ...] = (
    _paragraph,
    _heading,
    _list,
    _table,
    _code,
    _quote,
    _figure,
)
_WEIGHTS = (12, 3, 2, 1, 0.5, 1, 1.5)
