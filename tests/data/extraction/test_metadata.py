"""Metadata of pages."""

from __future__ import annotations

import json

import pytest

from openafm.data.extraction.dom import parse
from openafm.data.extraction.metadata import PageMetadata, iso_date, read_metadata


def metadata(html: str) -> PageMetadata:
    root = parse(html.encode())
    assert root is not None
    return read_metadata(root)


def test_json_ld_comes_before_meta_elements() -> None:
    data = {
        "@graph": [
            {"@type": "Organization", "name": "Publisher"},
            {
                "@type": "NewsArticle",
                "headline": "From data",
                "author": [{"name": "A. One"}, {"name": "B. Two"}],
                "datePublished": "2024-05-06T07:08:09Z",
                "inLanguage": "de",
            },
        ]
    }
    found = metadata(
        f"<html><head><meta name='author' content='Other'><title>T</title>"
        f"<script type='application/ld+json'>{json.dumps(data)}</script></head><body><h1>H</h1></body></html>"
    )
    assert (found.title, found.author, found.date, found.language) == ("From data", "A. One, B. Two", "2024-05-06", "de")
    assert found.more["schema_type"] == "NewsArticle"


def test_elements_are_read_without_json_ld() -> None:
    found = metadata(
        "<html lang='pt-BR'><head><title>Page - Site</title><meta property='article:published_time' content='2023-1-2'>"
        "<meta name='description' content=' short  text '></head><body><h1>Page</h1><a rel='author' href='/a'>Ana</a>"
        "<a rel='license' href='http://creativecommons.org/licenses/by/4.0/'>CC BY</a></body></html>"
    )
    assert (found.title, found.author, found.date, found.language) == ("Page", "Ana", "2023-01-02", "pt-BR")
    assert found.license == "https://creativecommons.org/licenses/by/4.0/"
    assert found.more["description"] == "short text"


@pytest.mark.parametrize(
    "script", ["{", "[" * 5000, '"text"', '{"@type": "Article", "author": 3}', "null", '{"@graph": {"@graph": {}}}']
)
def test_malformed_json_ld_is_ignored(script: str) -> None:
    html = (
        f"<html lang='x y'><head><script type='application/ld+json'>{script}</script></head><body><h1>H</h1></body></html>"
    )
    assert metadata(html) == PageMetadata(title="H", more=metadata(html).more)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2024-02-30", ""), ("on 2024-02-03", "2024-02-03"), ("20240203T1", "2024-02-03"), ("yesterday", ""), ("", "")],
)
def test_dates_must_exist(text: str, expected: str) -> None:
    assert iso_date(text) == expected
