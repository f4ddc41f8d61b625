"""Draw image corpora: any number of workers, equal bytes; a run that was killed continues.

Document `number` of a generator is drawn from the seed, the split, the generator's name and the number alone. So a larger
count adds documents and changes none, and shards are independent of each other.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from openafm.core.config import Config, dump, from_dict, to_dict
from openafm.core.executors import ExecutorConfig, LocalConfig
from openafm.core.files import file_digest
from openafm.core.registry import load_plugins
from openafm.core.worker_process import LimitsConfig
from openafm.data.drawing.base import Drawn, DrawnImage, Generator, GeneratorConfig, Split
from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.fonts import FontMissingError, installed_fonts
from openafm.data.drawing.pdf import PdfConfig, pdf_pages
from openafm.data.images.building import ShardSource, Unit, build_image_corpus
from openafm.data.images.documents import ImageDocument, ImagePart, Part, StoredImage, TextPart
from openafm.data.images.manifest import Manifest
from openafm.data.images.shard_writer import ShardItem
from openafm.data.pipeline.store import config_key, key_of, modules_of
from openafm.data.synthetic.languages import LANGUAGES
from openafm.data.web.documents import Dropped

REASONS = ("font_missing", "drawing_failed", "wrong_truth")
"""Reasons for which a drawing is dropped: no font of the language, no legible layout, the check found an error."""
LICENSE = "Apache-2.0"
_PDFS = 10  # files of one shard


@dataclass(frozen=True, kw_only=True)
class DrawingConfig(Config):
    """A corpus to draw: `count` documents of each generator, in languages by turns.

    `check` runs the independent check of each drawing and drops those with errors.
    """

    generators: tuple[GeneratorConfig, ...] = ()
    pdfs: tuple[str, ...] = ()
    """PDF files; their pages are added to the corpus."""
    pdf: PdfConfig = field(default_factory=PdfConfig)
    languages: tuple[str, ...] = LANGUAGES
    count: int = 1000
    seed: int = 0
    split: Split = "train"
    check: bool = False
    shard_size: int = 100
    limits: LimitsConfig = field(default_factory=lambda: LimitsConfig(cpu_seconds=120))
    """Limits of one drawing."""

    def __post_init__(self) -> None:
        self.require(bool(self.generators or self.pdfs), "name at least one kind of drawings, or a PDF file")
        unknown = sorted(set(self.languages) - set(LANGUAGES))
        self.require(bool(self.languages) and not unknown, f"languages must be of {', '.join(LANGUAGES)}, got {unknown}")
        self.require(self.count >= 1, f"count must be 1 or more, got {self.count}")
        self.require(self.shard_size >= 1, f"shard_size must be 1 or more, got {self.shard_size}")
        names = [generator.name for generator in self.generators]
        self.require(len(set(names)) == len(names), f"a kind is listed twice: {', '.join(names)}")


def draw_corpus(config: DrawingConfig, folder: Path, executor: ExecutorConfig | None = None) -> Manifest:
    """Draw a corpus into a folder, and return its manifest. Shards that an earlier call completed are kept.

    Raises:
        ForeignFilesError: the folder has files of something else.
        MissingLibraryError: a library that draws is not installed.
    """
    values = to_dict(config) | {"fonts": _fonts_digest()}
    source = _DrawingSource(dump(config), modules_of(config))
    return build_image_corpus(folder, values, source, executor or LocalConfig(), config.limits)


def draw_document(generator: Generator, name: str, language: str, split: Split, seed: int, number: int) -> Drawn:
    """Return the drawing of a number. It depends on nothing but the arguments and the installed fonts."""
    return generator.draw(random.Random(f"{seed}:{split}:{name}:{number}"), language, split)


def image_document(drawn: Drawn, name: str, split: Split) -> tuple[ImageDocument, tuple[StoredImage, ...]]:
    """Return a drawing as a document of an image corpus, and its images. The transcription is the text."""
    images = tuple(_stored(image, name) for image in drawn.images)
    regions = [
        replace(region, image=stored.digest if len(images) > 1 else "")
        for image, stored in zip(drawn.images, images, strict=True)
        for region in image.regions
    ]
    parts: list[Part] = [ImagePart(digest=image.digest) for image in images]
    digest = hashlib.sha256("".join(image.digest for image in images).encode()).hexdigest()
    document = ImageDocument(
        id=f"{name}/{digest[:16]}",
        kind=drawn.kind,
        parts=(*parts, *([TextPart(text=drawn.transcription)] if drawn.transcription else [])),
        language=drawn.language,
        captions=drawn.captions,
        transcription=drawn.transcription,
        regions=tuple(regions),
        questions=drawn.questions,
        split=split,
        source=drawn.metadata.get("page", f"openafm:{name}"),  # texts of a page have the license of the page
        license="" if "page" in drawn.metadata else LICENSE,
        metadata=drawn.metadata,
    )
    return document, images


@dataclass(frozen=True)
class _DrawingSource(ShardSource):
    """Shards of equal numbers of documents of one generator. Workers read the config from JSON, after the plugins."""

    values: str
    plugins: tuple[str, ...]

    @property
    def config(self) -> DrawingConfig:
        return _read_config(self.values, self.plugins)

    @property
    def num_shards(self) -> int:
        return len(self.config.generators) * self._shards_each + -(-len(self.config.pdfs) // _PDFS)

    def _pdfs(self, shard: int) -> tuple[str, ...]:
        """Return the PDF files of a shard; none if it has drawings."""
        at = (shard - len(self.config.generators) * self._shards_each) * _PDFS
        return self.config.pdfs[at : at + _PDFS] if at >= 0 else ()

    @property
    def _shards_each(self) -> int:
        return -(-self.config.count // self.config.shard_size)

    def key(self, shard: int) -> str:
        if files := self._pdfs(shard):
            return key_of(config_key(self.config.pdf), self.config.split, [file_digest(Path(file)) for file in files])
        generator, numbers = self._part(shard)
        config = self.config
        drawn = (config.languages, config.seed, config.split, config.check, numbers.start, numbers.stop)
        return key_of(config_key(generator), *drawn, _fonts_digest())

    def units(self, shard: int) -> Iterator[Unit]:
        if files := self._pdfs(shard):
            for file in files:
                yield functools.partial(_pages, self.config, file)
            return
        generator, numbers = self._part(shard)
        for number in numbers:
            yield functools.partial(_draw, self.config, generator, number)

    def _part(self, shard: int) -> tuple[GeneratorConfig, range]:
        position, part = divmod(shard, self._shards_each)
        start = part * self.config.shard_size
        return self.config.generators[position], range(start, min(start + self.config.shard_size, self.config.count))


@functools.lru_cache(maxsize=8)
def _read_config(values: str, plugins: tuple[str, ...]) -> DrawingConfig:
    load_plugins(plugins)
    return from_dict(DrawingConfig, json.loads(values))


def _pages(config: DrawingConfig, file: str) -> list[ShardItem]:
    """Return the pages of a PDF file. Its name is the source; its language is not known."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        return [Dropped(reason="pdf_broken", detail=str(error), url=Path(file).name)]
    return list(pdf_pages(data, config.pdf, source=Path(file).name))


def _draw(config: DrawingConfig, generator_config: GeneratorConfig, number: int) -> list[ShardItem]:
    generator, name = _built(generator_config), generator_config.name
    language = config.languages[number % len(config.languages)]
    where = f"{name} {number} in {language}"
    try:
        drawn = draw_document(generator, name, language, config.split, config.seed, number)
    except FontMissingError as error:
        return [Dropped(reason="font_missing", detail=f"{where}: {error}")]
    except DrawingFailedError as error:
        return [Dropped(reason="drawing_failed", detail=f"{where}: {error}")]
    errors = generator.check(drawn) if config.check else ()
    if errors:
        return [Dropped(reason="wrong_truth", detail=f"{where}: {'; '.join(errors[:3])}")]
    return [image_document(drawn, name, config.split)]


@functools.lru_cache(maxsize=64)
def _built(config: GeneratorConfig) -> Generator:
    return config.build()


@functools.cache
def _fonts_digest() -> str:
    """Digest of the installed fonts by name, which drawings depend on."""
    return hashlib.sha256("\n".join(font.name for font in installed_fonts()).encode()).hexdigest()[:16]


def _stored(image: DrawnImage, name: str) -> StoredImage:
    return StoredImage(
        digest=hashlib.sha256(image.data).hexdigest(),
        data=image.data,
        format="png" if image.data.startswith(b"\x89PNG") else "jpeg",
        width=image.width,
        height=image.height,
        source=f"openafm:{name}",
        license=LICENSE,
    )
