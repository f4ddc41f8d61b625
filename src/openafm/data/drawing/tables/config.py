"""Config of the generator of tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openafm.core.files import file_digest
from openafm.data.drawing.base import Generator, GeneratorConfig


@dataclass(frozen=True, kw_only=True)
class TablesConfig(GeneratorConfig):
    """Tables of random data; with `pages`, a share of tables that are found on web pages.

    `pages` are HTML or WARC files. The texts of their tables are drawn as they are, in fonts of the document's language.
    `renderer` is `pillow`, or `chromium`, which lays the table out as HTML (needs the extra `render`).
    """

    pages: tuple[str, ...] = ()
    page_share: float = 0.5
    renderer: str = "pillow"

    def __post_init__(self) -> None:
        self.require(0 <= self.page_share <= 1, f"page_share must be from 0 to 1, got {self.page_share}")
        self.require(self.renderer in ("pillow", "chromium"), f"renderer must be pillow or chromium, got {self.renderer!r}")

    @property
    def name(self) -> str:
        return "tables"

    def input_digests(self) -> tuple[str, ...]:
        """Return the digests of the pages, which the drawings depend on."""
        return tuple(file_digest(Path(page)) for page in self.pages)

    def build(self) -> Generator:
        from openafm.data.drawing.tables.generator import TableGenerator

        return TableGenerator(self)
