"""The safety taxonomy: categories, subcategories, default actions, and codes of other taxonomies."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from openafm.core.errors import UsageError

AILUMINATE = ("vcr", "ncr", "src", "cse", "dfm", "spc", "prv", "ipv", "iwp", "hte", "ssh", "sxc")
LLAMA_GUARD = tuple(f"S{number}" for number in range(1, 15))


class UnknownSubcategoryError(UsageError):
    """A name is neither a category nor a subcategory of the taxonomy."""


class Action(StrEnum):
    """What an app does by default with a text of a subcategory."""

    BLOCK = "block"
    SUPPORT = "support"
    CARE = "care"
    WARN = "warn"
    MEASURE = "measure"


@dataclass(frozen=True, kw_only=True)
class Subcategory:
    """A kind of harm. `id` is CATEGORY.NAME; the codes are empty where the other taxonomy has no counterpart."""

    id: str
    definition: str
    action: Action
    ailuminate: tuple[str, ...]
    llama_guard: tuple[str, ...]

    @property
    def category(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Category:
    """A group of subcategories. `is_named_by_report` is True for the three areas that report 9 names."""

    id: str
    name: str
    is_named_by_report: bool
    subcategories: tuple[Subcategory, ...]


@dataclass(frozen=True, kw_only=True)
class LocaleNote:
    """What authors of lists and prompts must know about subcategories in some locales."""

    locales: tuple[str, ...]
    subcategories: tuple[str, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class Taxonomy:
    """The categories of one version of the taxonomy.

    Attributes:
        examples: the policy for example texts in data and tests.
        blocklist: the subcategory of each category of the built-in blocklist.
    """

    version: str
    examples: str
    categories: tuple[Category, ...]
    notes: tuple[LocaleNote, ...]
    blocklist: Mapping[str, str]

    @cached_property
    def subcategories(self) -> Mapping[str, Subcategory]:
        """All subcategories by id."""
        return {each.id: each for category in self.categories for each in category.subcategories}

    def subcategory(self, name: str) -> Subcategory:
        """Return the subcategory with this id.

        Raises:
            UnknownSubcategoryError: there is none.
        """
        found = self.subcategories.get(name)
        if found is None:
            raise UnknownSubcategoryError(
                f"unknown subcategory {name!r}; use CATEGORY.NAME, such as hate.slurs (`openafm safety taxonomy` lists all)"
            )
        return found

    def category_of(self, label: str) -> str:
        """Return the category of a category, a subcategory, a blocklist category or a code of another taxonomy.

        Raises:
            UnknownSubcategoryError: the label is none of these.
        """
        if label in {category.id for category in self.categories}:
            return label
        if label in self.blocklist:
            return self.subcategories[self.blocklist[label]].category
        if found := next(iter(self.with_code(label)), None):
            return found.category
        return self.subcategory(label).category

    def with_code(self, code: str) -> list[Subcategory]:
        """Return the subcategories with a code of AILuminate 1.0 (such as `hte`) or Llama Guard 3 (such as `S10`)."""
        return [each for each in self.subcategories.values() if code in each.ailuminate or code in each.llama_guard]

    def notes_for(self, locale: str, subcategories: Iterable[str] | None = None) -> list[LocaleNote]:
        """Return the notes for a locale; `de-AT` has those of `de`."""
        wanted = None if subcategories is None else set(subcategories)
        return [
            note
            for note in self.notes
            if any(locale == each or locale.startswith(f"{each}-") for each in note.locales)
            and (wanted is None or wanted & set(note.subcategories))
        ]


@lru_cache(maxsize=1)
def taxonomy() -> Taxonomy:
    """Return the taxonomy of this version of openafm."""
    text = files("openafm.safety.taxonomy").joinpath("taxonomy.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return Taxonomy(
        version=data["version"],
        examples=data["examples"],
        categories=tuple(_category(each) for each in data["category"]),
        notes=tuple(
            LocaleNote(locales=tuple(note["locales"]), subcategories=tuple(note["subcategories"]), text=note["text"])
            for note in data["note"]
        ),
        blocklist=data["blocklist"],
    )


def _category(data: Mapping[str, Any]) -> Category:
    subcategories = tuple(
        Subcategory(
            id=f"{data['id']}.{name}",
            definition=definition,
            action=Action(action),
            ailuminate=tuple(ailuminate),
            llama_guard=tuple(llama_guard),
        )
        for name, action, ailuminate, llama_guard, definition in data["subcategories"]
    )
    return Category(
        id=data["id"], name=data["name"], is_named_by_report=data["named_by_report"], subcategories=subcategories
    )
