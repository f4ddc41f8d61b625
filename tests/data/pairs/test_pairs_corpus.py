"""From WARC files to an image corpus: what is kept, what is dropped and why, and that results are reproducible."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crawled import EARLY, LATE, TEXT, drops_of, html_page, image, pairs_of, paragraph, picture, redirect, write_warc
from deadly import DeadlyFilterConfig

from openafm.core.executors import LocalConfig, RayConfig
from openafm.data.images.documents import ImagePart, TextPart
from openafm.data.images.shards import ImageCorpus, open_image_corpus
from openafm.data.pairs.config import InterleavedConfig, PairsConfig, SelectionConfig
from openafm.data.pairs.filters import OverridesConfig
from openafm.data.pairs.pages import ImagePageConfig
from openafm.data.pairs.runner import run_pairs
from openafm.data.pipeline.config import ExtractionStageConfig
from openafm.data.pipeline.runner import CorpusFolderError
from openafm.data.sites import SiteConfig
from openafm.data.web.documents import Page
from openafm.recipes.pipelines.images import recipe

ONE = LocalConfig(num_workers=1)
ALT = "Fishing boats in the harbor"
LIGHT = replace(  # without models of languages, which each worker loads
    recipe(),
    pages=(ExtractionStageConfig(extraction=ImagePageConfig()),),
    interleaved=InterleavedConfig(),
    executor=ONE,
)


def made(tmp_path: Path, config: PairsConfig, *files: Path, name: str = "out") -> ImageCorpus:
    run_pairs(replace(config, executor=ONE), files, tmp_path / name)
    return open_image_corpus(tmp_path / name, verify=True)


def counts_of(corpus: ImageCorpus) -> dict[str, Any]:
    counts: dict[str, Any] = corpus.manifest.config["counts"]
    return counts


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> ImageCorpus:
    """A corpus of pages with images of every outcome."""
    folder = tmp_path_factory.mktemp("crawl")
    paths = (
        "good.png",
        "moved.png",
        "junk.png",
        "small.png",
        "cut.png",
        "gone.png",
        "loop.png",
        "noai.png",
        "off.png",
        "video.svg",
    )
    alts = {"junk.png": "IMG_2041.jpg", "off.png": "Quarterly revenue of solar startups"}
    figures = [f"/{path}|{alts.get(path, f'{ALT}, {path[:-4]} view')}|" for path in paths]
    pages = [
        html_page("/a.html", TEXT, *[part for i, figure in enumerate(figures) for part in (figure, paragraph(i))]),
        html_page(
            "/b.html",
            TEXT,
            "/good.png|The light at the end of the wall|",
            TEXT * 2,
            head='<meta name="robots" content="noimageai">',
        ),
        html_page(
            "/c.html", TEXT * 3, "/good.png|The light of the town at night|", head='<meta name="robots" content="noai">'
        ),
        html_page("/d.html", TEXT * 3, "/good.png|The light of the town at night|", rating="RTA-5042-1996-1400-1577-RTA"),
    ]
    images = [
        image("/good.png", picture(1)),
        redirect("/moved.png", "http://cdn.example/1"),
        redirect("/loop.png", "/loop2.png"),
        redirect("/loop2.png", "/loop.png"),
        image("http://cdn.example/1", picture(2)),
        image("/junk.png", picture(3)),
        image("/small.png", picture(4, 40, 30)),
        image("/cut.png", picture(5)[:-300]),
        image("/noai.png", picture(6), **{"x-robots-tag": "noimageai"}),
        image("/off.png", picture(7)),
        image("/video.svg", b"<svg><script>alert(1)</script></svg>", kind="image/svg+xml"),
        image("/unused.png", picture(8)),
    ]
    warc = write_warc(folder / "crawl", *pages, *images)
    run_pairs(replace(recipe(), executor=ONE), [warc], folder / "out")
    return open_image_corpus(folder / "out", verify=True)


def test_every_image_is_a_pair_or_has_a_reason(corpus: ImageCorpus) -> None:
    assert sorted(pairs_of(corpus)) == [f"{ALT}, good view", f"{ALT}, moved view"]
    reasons = [each.reason for each in corpus.dropped(0) if each.reason.startswith("pair.")]
    assert sorted(reasons) == sorted(
        f"pair.{reason}"
        for reason in (
            *("file_name", "too_small", "damaged", "missing", "redirects", "image_opt_out", "alignment", "svg"),
            "image_opt_out",  # of the page that declares noimageai
        )
    )
    counts = counts_of(corpus)
    assert all(each["in"] == each["kept"] + sum(each["dropped"].values()) for each in counts.values())
    assert counts["pages"]["dropped"]["adult_page"] == 1
    assert counts["pages"]["dropped"]["training_opt_out"] == 2  # the page and an image, which pages do not extract
    assert counts["images"] == {
        "in": 9,
        "kept": 6,
        "dropped": {"damaged": 1, "svg": 1, "too_small": 1},
        "referenced": 8,
    }


def test_a_pair_has_its_image_text_and_source(corpus: ImageCorpus) -> None:
    pair = pairs_of(corpus)[f"{ALT}, moved view"]
    stored = corpus.image(pair.digests[0])
    assert (stored.width, stored.height, stored.source) == (160, 120, "http://cdn.example/1")
    assert pair.source == "http://a.example/a.html"
    assert pair.captions == {"alt": pair.text}
    assert pair.metadata["alignment.scorer"] == "TextOverlapConfig"
    assert pair.language == "en"


def test_interleaved_documents_keep_images_at_their_place(corpus: ImageCorpus) -> None:
    (document,) = [each for each in corpus.documents() if each.kind == "interleaved"]
    kinds = [type(part) for part in document.parts]
    assert kinds[:4] == [TextPart, ImagePart, TextPart, ImagePart]
    assert len(document.digests) == 4  # good, moved, junk, off: alt texts do not matter here
    assert document.digests[:2] == tuple(pairs_of(corpus)[f"{ALT}, {name} view"].digests[0] for name in ("good", "moved"))


def test_drops_of_images_have_thumbnails(corpus: ImageCorpus) -> None:
    shown = {each.reason for each in corpus.dropped(0) if getattr(each, "thumbnail", b"")}
    assert shown == {"pair.file_name", "pair.alignment", "pair.image_opt_out"}


@pytest.mark.slow
def test_opt_outs_are_kept_marked_if_configured(tmp_path: Path) -> None:
    pages = html_page("/a.html", TEXT * 3, f"/a.png|{ALT}|"), image("/a.png", picture(1), **{"x-robots-tag": "noimageai"})
    corpus = made(tmp_path, replace(LIGHT, opt_outs="keep"), write_warc(tmp_path / "crawl", *pages))
    assert {each.kind: each.opt_out for each in corpus.documents()} == {
        "pair": "X-Robots-Tag: noimageai",
        "interleaved": "X-Robots-Tag: noimageai",
    }


def test_the_newest_response_counts(tmp_path: Path) -> None:
    old = write_warc(tmp_path / "old", image("/a.png", picture(1), at=LATE), image("/b.png", picture(3), at=LATE))
    optout = image("/b.png", picture(3), at="2026-03-01T00:00:00+00:00", **{"x-robots-tag": "noai"})
    new = write_warc(
        tmp_path / "new",
        html_page("/a.html", TEXT * 3, f"/a.png|{ALT}|", TEXT, f"/b.png|{ALT} again|"),
        image("/a.png", picture(2), at=EARLY),
        optout,
    )
    corpus = made(tmp_path, LIGHT, old, new)
    (pair,) = pairs_of(corpus).values()
    stored = corpus.image(pair.digests[0])
    assert stored.data == corpus.image(pair.digests[0]).data
    assert np.array_equal(_pixels(stored.data), _pixels(picture(1)))
    assert drops_of(corpus)["/b.png"] == "pair.image_opt_out"


def test_duplicates_and_repeated_texts(tmp_path: Path) -> None:
    numbers = ("one", "two", "three", "four", "five", "six")
    figures = [f"/same{index}.png|{ALT} number {number}|" for index, number in enumerate(numbers)]
    figures += [f"/same0.png|{ALT.upper()} number one|"] + [
        f"/other{index}.png|The light of the old town|" for index in range(4)
    ]
    pages = [html_page(f"/{index}.html", TEXT * 3, figure) for index, figure in enumerate(figures)]
    images = [image(f"/same{index}.png", picture(1)) for index in range(5)]
    images.append(image("/same5.png", picture(1, 200, 150, "JPEG"), kind="image/jpeg"))
    images += [image(f"/other{index}.png", picture(10 + index)) for index in range(4)]
    config = replace(LIGHT, selection=SelectionConfig(max_texts_per_image=3, max_images_per_text=2), interleaved=None)
    corpus = made(tmp_path, config, write_warc(tmp_path / "crawl", *pages, *images))
    assert counts_of(corpus)["pairs"]["dropped"] == {"duplicate_image": 3, "duplicate_pair": 1, "repeated_text": 2}
    assert counts_of(corpus)["pairs"]["kept"] == 5


def test_images_of_many_documents_are_taken_out(tmp_path: Path) -> None:
    sentences = [f"{TEXT} Boat number {index} is painted {color}." for index, color in enumerate(("red", "blue", "green"))]
    pages = [
        html_page(f"/{index}.html", text * 3, "/logo.png|The harbor|", text, f"/{index}.png||")
        for index, text in enumerate(sentences)
    ]
    images = [image("/logo.png", picture(9)), *(image(f"/{index}.png", picture(index)) for index in range(3))]
    config = replace(LIGHT, interleaved=InterleavedConfig(max_documents_per_image=2))
    corpus = made(tmp_path, config, write_warc(tmp_path / "crawl", *pages, *images))
    assert [len(each.digests) for each in corpus.documents() if each.kind == "interleaved"] == [1, 1, 1]
    assert counts_of(corpus)["interleaved_images"]["dropped"] == {"repeated_image": 3}


@pytest.mark.slow
def test_overrides_by_publisher(tmp_path: Path) -> None:
    listed = tmp_path / "overrides.toml"
    listed.write_text('[[publisher]]\ndomain = "example"\npath = "/bad"\nreason = "request 17"\n')
    pages = html_page("/a.html", TEXT * 3, f"/bad/a.png|{ALT}|", TEXT, f"/b.png|{ALT}|")
    warc = write_warc(tmp_path / "crawl", pages, image("/bad/a.png", picture(1)), image("/b.png", picture(2)))
    config = replace(LIGHT, pair_filters=(OverridesConfig(file=str(listed)), *LIGHT.pair_filters))
    corpus = made(tmp_path, config, warc)
    assert drops_of(corpus)["/bad/a.png"] == "pair.override"
    assert counts_of(corpus)["interleaved_images"]["dropped"] == {"override": 1}


def test_the_images_of_a_page_that_ends_its_worker_are_dropped(tmp_path: Path) -> None:
    pages = [
        html_page("/a.html", TEXT * 3, f"/a.png|{ALT} one|", TEXT, f"/deadly.png|{ALT} two|"),
        html_page("/b.html", TEXT * 3, f"/b.png|{ALT} three|"),
    ]
    images = [image(path, picture(seed)) for seed, path in enumerate(("/a.png", "/b.png", "/deadly.png"))]
    config = replace(LIGHT, pair_filters=(*LIGHT.pair_filters, DeadlyFilterConfig()), interleaved=None)
    corpus = made(tmp_path, config, write_warc(tmp_path / "crawl", *pages, *images))
    assert list(pairs_of(corpus)) == [f"{ALT} three"]
    assert counts_of(corpus)["pairs"]["dropped"] == {"killed": 2}


def test_nothing_to_read(tmp_path: Path) -> None:
    corpus = made(tmp_path, LIGHT, write_warc(tmp_path / "crawl", html_page("/a.html", TEXT * 3)))
    assert (corpus.manifest.num_documents, counts_of(corpus)["documents"]["dropped"]) == (0, {"too_few_images": 1})
    empty = Page(url="http://a.example/", body=b"<html><p>x</p></html>", headers={"content-type": "text/html"})
    filtered = replace(LIGHT, interleaved=recipe().interleaved)
    corpus = made(tmp_path, filtered, write_warc(tmp_path / "empty", empty), name="none")
    assert counts_of(corpus)["pages"] == {"in": 1, "kept": 0, "dropped": {"no_text": 1}}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(CorpusFolderError, match=r"notes\.txt"):
        made(tmp_path, LIGHT, tmp_path / "crawl", name="other")


def _site(tmp_path: Path) -> list[Path]:
    site = SiteConfig(seed=3, num_pages=24, pictures=True, traps=False, script_share=0.0, languages=("en", "ja")).build()
    pages = [
        html_page("/unused", TEXT),
        *(replace(html_page(path, TEXT), body=page.html, headers=dict(page.headers)) for path, page in site.pages.items()),
    ]
    pages += [image(path, each.body, kind=each.content_type, **each.headers) for path, each in site.assets.items()]
    half = len(pages) // 2
    return [write_warc(tmp_path / "a", *pages[:half]), write_warc(tmp_path / "b", *pages[half:])]


@pytest.mark.slow
def test_workers_names_and_order_change_no_byte(tmp_path: Path) -> None:
    texts = [paragraph(seed) for seed in range(4)]
    pages = [html_page(f"/{i}.html", text, f"/{i}.png|{text[:60]}|", text) for i, text in enumerate(texts)]
    images = [image(f"/{i}.png", picture(i)) for i in range(4)]
    files = [write_warc(tmp_path / "a", *pages[:2], *images[2:]), write_warc(tmp_path / "b", *images[:2], *pages[2:])]
    digest = run_pairs(LIGHT, files, tmp_path / "one").digest
    shutil.copy(files[0], tmp_path / "z.warc.gz")
    two = replace(LIGHT, executor=LocalConfig(num_workers=2))
    again = run_pairs(two, [files[1], tmp_path / "z.warc.gz"], tmp_path / "two")
    assert (again.digest, again.kinds) == (digest, {"interleaved": 4, "pair": 4})
    for file in (tmp_path / "one").glob("0*"):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


@pytest.mark.slow
def test_four_workers_and_ray_change_no_byte(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    files = _site(tmp_path)
    executors = (ONE, LocalConfig(num_workers=4), RayConfig(num_workers=2))
    digests = {
        run_pairs(replace(recipe(), executor=each), files, tmp_path / f"{i}").digest for i, each in enumerate(executors)
    }
    assert len(digests) == 1


@pytest.mark.slow
def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    files = _site(tmp_path)
    digest = run_pairs(replace(recipe(), executor=ONE), files, tmp_path / "whole").digest
    start = "from openafm.cli.main import main; main()"
    command = [sys.executable, "-c", start, "data", "images", *map(str, files), "--out", str(tmp_path / "cut")]
    stages = ("images", "candidates", "write")
    for stage in stages:  # killed as soon as a stage has its first result
        process = subprocess.Popen([*command, "--workers", "1"], stderr=subprocess.DEVNULL, start_new_session=True)
        while not list((tmp_path / "cut" / "stages" / stage).glob("*.json")):
            assert process.poll() is None, "the run ended before it was killed"
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "cut" / "manifest.json").exists()
    assert run_pairs(replace(recipe(), executor=ONE), files, tmp_path / "cut").digest == digest


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from openafm.cli.main import run

    warc = write_warc(tmp_path / "crawl", html_page("/a.html", TEXT * 3, f"/a.png|{ALT}|"), image("/a.png", picture(1)))
    arguments = [
        "data",
        "images",
        "--set",
        "pages.extract.filters=[]",
        "--set",
        "interleaved.stages=[]",
        f"{warc.parent}/*.warc.gz",
        "--out",
        str(tmp_path / "pairs"),
        "--workers",
        "1",
        "--json",
    ]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kinds"] == {"interleaved": 1, "pair": 1}
    assert found["counts"]["pairs"] == {"in": 1, "kept": 1, "dropped": {}}
    assert run([*arguments, "--overrides", str(tmp_path / "missing.toml")]) == 2
    assert "missing.toml is not a file of overrides" in capsys.readouterr().err
    assert run([*arguments, "--recipe", "images.recip"]) == 2
    assert "did you mean 'images.recipe'" in capsys.readouterr().err


def _pixels(data: bytes) -> Any:
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
