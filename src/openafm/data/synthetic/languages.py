"""The sixteen languages of the corpus, and where their files are."""

from __future__ import annotations

import functools
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from openafm.core.libraries import needed

if TYPE_CHECKING:
    from babel import Locale

LANGUAGES = ("en", "da", "nl", "fr", "de", "it", "nb", "pt", "es", "sv", "tr", "zh-Hans", "zh-Hant", "ja", "ko", "vi")
Split: TypeAlias = Literal["train", "held_out"]


def text_folder() -> Path:
    """The folder of the hand-written files, one folder a language."""
    return Path(str(importlib.resources.files("openafm.data.synthetic").joinpath("text")))


@functools.cache
def locale_of(language: str) -> Locale:
    """The CLDR data of a language.

    Raises:
        MissingLibraryError: babel is not installed.
    """
    with needed("the built-in corpus", "babel and faker", "corpus"):
        from babel import Locale
    return Locale.parse(language.replace("-", "_"))


def source_file(language: str, name: str) -> Path:
    """Return a hand-written file of a language."""
    return text_folder() / language / name
