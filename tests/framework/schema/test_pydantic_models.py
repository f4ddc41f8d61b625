"""Pydantic models as types; openafm never imports pydantic."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest

import openafm as fm
from openafm.framework.schema.function_schema import FunctionSchema

pydantic = pytest.importorskip("pydantic")
from pydantic import AliasChoices, AnyUrl, BaseModel, Field, HttpUrl, RootModel, conint, field_validator  # noqa: E402


class Author(BaseModel):
    """Who wrote it."""

    name: str = Field(min_length=1, max_length=20, pattern="^[A-Z]", description="Full name")
    born: int | None = None


class Book(BaseModel):
    title: Annotated[str, Field(max_length=9, description="Short")]
    pages: int = Field(gt=0, le=999)
    price: Decimal = Field(ge=Decimal("0.5"), lt=10)
    rating: float = Field(default=0.5, gt=0, lt=1)
    authors: list[Author] = Field(min_length=1, max_length=3)
    tags: list[Annotated[str, Field(pattern="ab+")]] = Field(default_factory=list)
    scores: dict[str, conint(ge=0, le=5)] = {}  # type: ignore[valid-type]
    kind: Literal["novel", "poem"] = "novel"
    link: HttpUrl | None = None
    other: AnyUrl | None = None
    when: datetime | None = Field(default=None, alias="published")
    sequel: Book | None = Field(default=None, validation_alias=AliasChoices("next", "follows"))

    @field_validator("title")
    @classmethod
    def _not_shouted(cls, title: str) -> str:
        if title.isupper():
            raise ValueError("do not shout")
        return title


BOOK = {
    "title": "Emma",
    "pages": 474,
    "price": 7.5,
    "authors": [{"name": "Jane Austen", "born": 1775}],
    "scores": {"plot": 5},
    "link": "https://a.org/emma",
    "other": "http://b.org/",
    "when": "1815-12-23T00:00:00Z",
    "sequel": {"title": "More", "pages": 1, "price": 1, "authors": [{"name": "X"}]},
}


def test_fields_and_constraints_become_schema() -> None:
    schema = fm.GenerationSchema(Book).to_dict()
    assert schema["title"] == "Book"
    assert schema["required"] == ["title", "pages", "price", "authors"]
    properties = schema["properties"]
    assert properties["title"] == {"type": "string", "maxLength": 9, "description": "Short"}
    assert properties["pages"] == {"type": "integer", "minimum": 1, "maximum": 999}
    assert properties["price"] == {"type": "number", "minimum": 0.5, "exclusiveMaximum": 10}
    assert properties["rating"] == {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.5}
    assert properties["authors"] == {"type": "array", "items": {"$ref": "#/$defs/Author"}, "minItems": 1, "maxItems": 3}
    assert properties["tags"]["items"] == {"type": "string", "pattern": "^(?:.|\\x0a)*ab+(?:.|\\x0a)*$"}
    assert properties["scores"]["additionalProperties"] == {"type": "integer", "minimum": 0, "maximum": 5}
    assert properties["link"] == {"type": "string", "format": "uri"}
    assert properties["when"] == {"type": "string", "format": "date-time"}
    assert properties["sequel"] == {"$ref": "#"}
    assert schema["$defs"]["Author"]["description"] == "Who wrote it."
    assert schema["$defs"]["Author"]["properties"]["name"]["pattern"].startswith("^[A-Z]")


def test_values_pass_the_validators_of_the_model() -> None:
    content = fm.GeneratedContent(BOOK)
    book = content.value(Book)
    assert isinstance(book, Book)
    assert (book.price, book.kind, book.tags) == (Decimal("7.5"), "novel", [])
    assert book.when == datetime(1815, 12, 23, tzinfo=timezone(timedelta(0)))
    assert isinstance(book.sequel, Book)
    assert fm.GeneratedContent.of(book).value(Book) == book
    with pytest.raises(fm.DecodingFailureError, match=r"Book refused (.|\n)*do not shout"):
        fm.GeneratedContent(BOOK | {"title": "EMMA"}).value(Book)
    partial = fm.GeneratedContent.from_json('{"title":"Em').partial_value(Book)
    assert (partial.title, partial.pages) == ("Em", None)


def test_models_within_other_types() -> None:
    def lend(book: Book, days: Annotated[int, Field(ge=1, description="How long")] = 7) -> None: ...

    schema = FunctionSchema(lend)
    assert schema.schema.to_dict()["properties"]["days"] == {
        "type": "integer",
        "minimum": 1,
        "description": "How long",
        "default": 7,
    }
    assert schema.call_arguments(fm.GeneratedContent({"book": BOOK}))["book"].title == "Emma"
    either = fm.GeneratedContent({"Author": {"name": "Ann"}}).value(Author | Book)  # type: ignore[call-overload]
    assert either == Author(name="Ann")


class Stepped(BaseModel):
    n: int = Field(multiple_of=3)


class Digits(BaseModel):
    n: Decimal = Field(max_digits=3)


class Misplaced(BaseModel):
    n: datetime = Field(gt=datetime(2024, 1, 1))


class Wrapped(BaseModel):
    n: set[int]


class Root(RootModel[list[int]]):
    pass


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        (Stepped, fm.UnsupportedGuideError, "multiple_of"),
        (Digits, fm.UnsupportedGuideError, "max_digits"),
        (Misplaced, fm.UnsupportedGuideError, r"Misplaced\.n: .*exclusiveMinimum"),
        (Wrapped, fm.InvalidGenerationSchemaError, r"Wrapped\.n: invalid type set"),
        (Root, fm.InvalidGenerationSchemaError, "root model"),
    ],
)
def test_unenforceable_constraints_raise(model: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fm.GenerationSchema(model)


def test_pydantic_is_not_imported() -> None:
    code = (
        "import sys, openafm as fm; fm.GenerationSchema(list[dict[str, int]]).to_dict(); sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
