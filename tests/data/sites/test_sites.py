"""Generated sites: determinism, gold texts, scripts, encodings and the local server."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest

from openafm.core.config import ConfigError
from openafm.data.sites import CMS_LAYOUTS, FailurePhase, Site, SiteConfig, SiteServer, serve, trap_links
from openafm.data.sites.texts import chrome_words
from openafm.data.synthetic.languages import LANGUAGES

CONFIG = SiteConfig(
    seed=3, num_pages=48, languages=("en", "ja"), script_share=0.3, charset_share=0.3, opt_out_share=0.2, duplicate_share=0.3
)


@pytest.fixture(scope="module")
def site() -> Site:
    return CONFIG.build()


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[SiteServer]:
    with serve(site) as running:
        yield running


def _get(url: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))


def test_equal_configs_give_equal_bytes(site: Site) -> None:
    assert CONFIG.build() == site
    assert SiteConfig(seed=4, num_pages=48, languages=("en", "ja")).build().pages != site.pages


def test_pages_in_layouts_of_content_management_systems_hold_their_gold_text() -> None:
    site = SiteConfig(seed=3, num_pages=40, languages=("en", "de"), layouts=CMS_LAYOUTS, script_share=0.0).build()
    assert {page.layout for page in site.articles} == set(CMS_LAYOUTS)
    for page in site.articles:
        charset = re.search(rb'<meta charset="([^"]+)"', page.html)
        assert charset is not None
        plain = _words(unescape(re.sub(r"<[^>]+>", " ", page.html.decode(charset[1].decode()))))
        positions = [plain.find(_words(line)) for line in page.text.splitlines() if " | " not in line]
        assert min(positions) >= 0, (page.path, page.layout)
        assert len(plain) > 1.2 * len(_words(page.text)), "nothing is around the main text"


def test_gold_text_is_in_the_html_unless_a_script_adds_it(site: Site) -> None:
    for page in site.articles:
        charset = re.search(rb'<meta charset="([^"]+)"', page.html)
        assert charset is not None
        html = page.html.decode(charset[1].decode())
        plain = _words(unescape(re.sub(r"<[^>]+>", " ", html)))
        missing = [line for line in page.text.splitlines() if _words(line) not in plain]
        assert bool(missing) == (page.needs_script and page.script != "inline") or "No." in str(missing), page.path


def test_shares_are_kept(site: Site) -> None:
    pages = site.articles
    assert {page.language for page in pages} == {"en", "ja"}
    assert 4 < sum(page.needs_script for page in pages) < 24
    assert 3 < sum(page.opt_out for page in pages) < 20
    assert any(b'charset="shift_jis"' in page.html or b'charset="euc-jp"' in page.html for page in pages)
    copies = [page for page in pages if page.copy_of]
    assert copies
    assert all((page.text and page.text in site.pages[page.copy_of].text) or page.script for page in copies)


def test_every_language_has_the_same_words_of_navigation() -> None:
    keys = set(chrome_words("en"))
    assert all(set(chrome_words(language)) == keys for language in LANGUAGES)


def test_server_serves_pages_with_validators_and_logs_requests(site: Site, server: SiteServer) -> None:
    page = site.articles[0]
    status, body, headers = _get(server.url + page.path, **{"User-Agent": "tester/1"})
    assert (status, body) == (200, page.html)
    assert headers["last-modified"].endswith("GMT")
    assert _get(server.url + page.path, **{"If-None-Match": headers["etag"]})[0] == 304
    assert _get(server.url + "/absent.html")[0] == 404
    assert (server.requests[0].path, server.requests[0].user_agent) == (page.path, "tester/1")


def test_sitemap_and_robots_name_the_server(site: Site, server: SiteServer) -> None:
    robots = _get(server.url + "/robots.txt")[1].decode()
    assert f"Sitemap: {server.url}/sitemap.xml" in robots
    locations = re.findall(r"<loc>([^<]+)</loc>", _get(server.url + "/sitemap.xml")[1].decode())
    assert {server.url + page.path for page in site.articles} <= set(locations)
    assert not any("/private/" in location for location in locations)


def test_failure_phases_count_requests(site: Site) -> None:
    path = site.articles[0].path
    with serve(site, phases=(FailurePhase(start=1, stop=3, status=429, retry_after="2"),)) as server:
        answers = [_get(server.url + path) for _ in range(4)]
    assert [answer[0] for answer in answers] == [200, 429, 429, 200]
    assert answers[1][2]["Retry-After"] == "2"


@pytest.mark.parametrize(("robots", "status"), [("missing", 404), ("error", 503), ("redirect", 200)])
def test_robots_variants(robots: str, status: int) -> None:
    with serve(SiteConfig(num_pages=1, languages=("en",), robots=robots).build()) as server:
        assert _get(server.url + "/robots.txt")[0] == status


def test_traps_never_end() -> None:
    seen, frontier = set(), ["/calendar/2026/1", "/filter?page=1", "/session?sid=0"]
    for _ in range(200):
        frontier += [link for link in trap_links(frontier.pop(0)) if link not in seen]
        seen |= set(frontier)
    assert len(seen) > 400
    assert trap_links("/en/0.html") == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"languages": ("xx",)}, "language"), ({"robots": "none"}, "robots"), ({"num_pages": 0}, "num_pages")],
)
def test_wrong_configs_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SiteConfig(**change)  # type: ignore[arg-type]


@pytest.mark.long
def test_figures_have_pictures_of_their_own() -> None:
    config = SiteConfig(seed=4, num_pages=40, languages=("en", "ja"), pictures=True, script_share=0.0, charset_share=0.0)
    site = config.build()
    assert site == config.build()
    figures = [
        match for page in site.articles for match in re.findall(r'<img src="(/pictures/[^"]+)" alt=', page.html.decode())
    ]
    stored = [path for path in figures if path in site.assets]
    assert len(set(figures)) == len(figures) > 10
    assert 0.8 * len(figures) < len(stored) <= len(figures)
    assert {site.assets[path].content_type for path in stored} >= {"image/jpeg", "image/png"}
    without = replace(config, pictures=False).build()
    assert [page.text for page in without.articles] == [page.text for page in site.articles]
