"""Override lists as files: JSON with terms, exceptions and actions, or plain text with one term a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

from openafm.core.config import Config, from_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.regular_files import read_document
from openafm.safety.taxonomy.taxonomy import taxonomy

ANY_LOCALE = "und"
_MAX_TERM_CHARACTERS = 100


class OverrideListError(OpenAFMError):
    """A file is not an override list."""


OverrideAction: TypeAlias = Literal["block", "warn", "special"]
"""What happens with a text that contains a term; `special` leaves it to the app."""


@dataclass(frozen=True, kw_only=True)
class ActionFor(Config):
    """The action for a locale or a feature."""

    name: str
    action: OverrideAction


@dataclass(frozen=True, kw_only=True)
class OverrideList(Config):
    """A list of terms with one subcategory and one source.

    Attributes:
        sequence: number of the edition. A signed update replaces only a list with a lower number.
        locales: languages or locales that the list is for; `und`: all.
        subcategory: id in the taxonomy.
        action: the action by default.
        by_locale: other actions for some locales.
        by_feature: other actions for some features of the app; they precede those of locales.
        attribution: source and license of the terms.
        terms: words and phrases; `*` ends a stem.
        allow: phrases that contain a term and are harmless, such as names of places.
    """

    name: str
    sequence: int = 1
    locales: tuple[str, ...] = (ANY_LOCALE,)
    subcategory: str
    action: OverrideAction = "block"
    by_locale: tuple[ActionFor, ...] = ()
    by_feature: tuple[ActionFor, ...] = ()
    attribution: str = ""
    terms: tuple[str, ...]
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.require(bool(self.terms), "a list needs at least one term")
        self.require(self.sequence > 0, f"sequence must be positive, got {self.sequence}")
        self.require(
            self.name.replace("-", "").replace("_", "").isalnum(),
            f"the name {self.name!r} must consist of letters, digits, '-' and '_'",
        )
        for term in (*self.terms, *self.allow):
            self.require(
                any(character.isalnum() for character in term) and len(term) <= _MAX_TERM_CHARACTERS,
                f"the term {term[:40]!r} must have a letter and at most {_MAX_TERM_CHARACTERS} characters",
            )
        taxonomy().subcategory(self.subcategory)

    def is_for(self, locale: str | None) -> bool:
        """Return True if the list applies to texts of a locale; all lists apply to texts of unknown locale."""
        return locale is None or any(
            each == ANY_LOCALE or locale == each or locale.startswith(f"{each}-") for each in self.locales
        )

    def action_for(self, locale: str | None, feature: str | None) -> OverrideAction:
        """Return the action for a feature in a locale; `de-AT` has that of `de` unless it has its own."""
        features = [each.action for each in self.by_feature if each.name == feature]
        locales = sorted(
            (each for each in self.by_locale if locale and (locale == each.name or locale.startswith(f"{each.name}-"))),
            key=lambda each: len(each.name),
        )
        return features[0] if features else locales[-1].action if locales else self.action


def read_list(path: Path) -> OverrideList:
    """Return the list in a file: JSON, or plain text with one term a line, named by its locale (`de.txt`).

    Raises:
        OverrideListError: the file cannot be read or is not a list.
    """
    try:
        data = read_document(path)
        if path.suffix == ".json":
            return parse_list(data)
        return plain_list(data.decode("utf-8"), name=path.stem, locale=path.stem)
    except (OSError, UnicodeDecodeError, OpenAFMError) as error:
        raise OverrideListError(f"{path}: {error}") from error


def parse_list(data: bytes) -> OverrideList:
    """Return the list in a JSON document.

    Raises:
        OverrideListError: it is not a list.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OverrideListError(f"the override list is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise OverrideListError("an override list is a JSON object with name, subcategory and terms")
    try:
        return from_dict(OverrideList, values)
    except UsageError as error:
        raise OverrideListError(f"the override list is malformed: {error}") from error


def plain_list(text: str, *, name: str, locale: str, subcategory: str = "hate.profanity") -> OverrideList:
    """Return a list of one term a line; lines with `#` are comments, and the first ones are its attribution."""
    lines = [line.strip() for line in text.lstrip("\ufeff").splitlines()]
    comments = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return OverrideList(
        name=name,
        locales=(locale,),
        subcategory=subcategory,
        action="warn",
        attribution=" ".join(comments),
        terms=tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#"))),
    )


def seed_lists() -> list[OverrideList]:
    """Return the small lists that come with openafm. They show the format and are far from complete."""
    folder = files("openafm.safety.overrides").joinpath("lists")
    documents = sorted((each for each in folder.iterdir() if each.name.endswith(".json")), key=lambda each: each.name)
    return [parse_list(each.read_bytes()) for each in documents]
