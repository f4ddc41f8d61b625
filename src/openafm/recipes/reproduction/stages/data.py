"""Sections 2 to 4.1: the models' layout, web pages, images, captions, the tokenizer."""

from __future__ import annotations

from openafm.recipes.reproduction.sizes import bundle_of, by_size
from openafm.recipes.reproduction.stages.stage import Command, Stage

_WEB = ("module:fastwarc", "module:selectolax", "module:pyarrow")


def model_stages() -> tuple[Stage, ...]:
    """Return the stage of section 2, which trains nothing."""
    return (
        Stage(
            name="models",
            section="2",
            title="the models of the report's sizes, and the layout of their training",
            commands=(
                Command(name="on_device", words=("inspect", "on_device.base", "--json")),
                Command(name="server", words=("inspect", "server.full", "--json")),
                Command(name="plan", words=("plan", "server.full", "--devices", "8192", "--slices", "4", "--json")),
            ),
        ),
    )


def data_stages(size: str) -> tuple[Stage, ...]:
    """Return the stages of sections 3 and 4.1 that need no model."""
    pages = by_size(size, 40, 100, 100)
    return (
        Stage(
            name="web",
            section="3.1",
            title="web pages: crawled, extracted, filtered, deduplicated",
            requires=_WEB,
            serves_site=True,
            commands=(
                Command(
                    name="crawl",
                    words=(
                        *("data", "crawl", "{site}", "--out", "{here}/crawl", "--json", "--set", "images=true"),
                        *("--set", "delay_s=0", "--set", "allow_private_addresses=true"),
                    ),
                ),
                Command(
                    name="corpus",
                    words=("data", "run", "web.recipe", "-i", "{here}/crawl", "--out", "{here}/corpus", "--json"),
                ),
                Command(
                    name="rendered",
                    words=(
                        *("data", "crawl", "{site}", "--out", "{here}/rendered", "--render", "--json"),
                        *("--set", "delay_s=0", "--set", "allow_private_addresses=true", "--set", f"max_pages={pages}"),
                    ),
                    requires=("module:playwright", "program:chromium"),
                    lost="pages that scripts build are read as they were sent",
                ),
            ),
        ),
        Stage(
            name="pairs",
            section="3.2.1",
            title="crawled images with their alt texts, and interleaved documents",
            needs=("web",),
            requires=(*_WEB, "module:PIL"),
            commands=(
                Command(name="pairs", words=("data", "images", "{web}/crawl", "--out", "{here}/pairs", "--json")),
                Command(name="mixture", words=("data", "mixture", "--stage", "multimodal_adaptation", "--json")),
            ),
        ),
        Stage(
            name="images",
            section="3.2.3",
            title="text-rich images, drawn with their truth",
            requires=("module:PIL",),
            commands=(
                Command(
                    name="drawn",
                    words=(
                        *("data", "draw", "flyers", "charts", "tables", "documents", "signs", "scenes", "--check"),
                        *("--count", by_size(size, 4, 100, 1000), "--out", "{here}/drawn", "--json"),
                    ),
                ),
            ),
        ),
        _tokenizer(size),
    )


def _tokenizer(size: str) -> Stage:
    tokens = int(by_size(size, 700, 2000, 8000))
    languages = (("english", "texts/en.txt", "en"), ("german", "more/de.txt", "de"), ("japanese", "more/ja.txt", "ja"))
    texts = tuple(
        Command(
            name=name,
            words=("data", "sample", "--count", by_size(size, 200, 2000, 20000), "--language", language),
            file=file,
        )
        for name, file, language in languages
    )
    return Stage(
        name="tokenizer",
        section="4.1",
        title="a tokenizer of English, extended by half for other languages",
        commands=(
            *texts,
            Command(
                name="train",
                words=(
                    *("tokenizer", "train", "{here}/texts", "--vocab-size", str(tokens)),
                    *("--out", "{here}/english.json", "--json"),
                ),
            ),
            Command(
                name="extend",
                words=(
                    *("tokenizer", "extend", "{here}/english.json", "{here}/more", "--vocab-size", str(tokens * 3 // 2)),
                    *("--out", "{here}/extended.json", "--json"),
                ),
            ),
            Command(
                name="report",
                words=("tokenizer", "report", "{here}/english.json", "{here}/extended.json", "{here}/more", "--json"),
            ),
        ),
    )


def caption_stages(size: str) -> tuple[Stage, ...]:
    """Return the stage of section 3.2.2, which needs a model that sees."""
    return (
        Stage(
            name="captions",
            section="3.2.2",
            title="captions in levels by our own model",
            needs=("pairs", "fine_tuning"),
            requires=("module:PIL",),
            commands=(
                Command(
                    name="captions",
                    words=(
                        *("data", "caption", "{pairs}/pairs", "--out", "{here}/captioned", "--json"),
                        *(
                            "--levels",
                            "keywords,short" if size == "tiny" else "keywords,short,paragraph",
                            "--model",
                            bundle_of("on_device.multimodal_sft", size),
                        ),
                    ),
                ),
            ),
        ),
    )
