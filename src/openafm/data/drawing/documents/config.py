"""Config of the generator of documents."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.data.drawing.base import Generator, GeneratorConfig

DOCUMENTS = ("receipt", "invoice", "menu", "form", "poster", "infographic", "letter")


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig(GeneratorConfig):
    """Documents of seven types. `documents` limits them; empty for all."""

    documents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = sorted(set(self.documents) - set(DOCUMENTS))
        self.require(not unknown, f"unknown documents {', '.join(unknown)}; known: {', '.join(DOCUMENTS)}")

    @property
    def name(self) -> str:
        return "documents"

    def build(self) -> Generator:
        from openafm.data.drawing.documents.generator import DocumentGenerator

        return DocumentGenerator(self)
