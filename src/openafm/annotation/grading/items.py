"""Items of a grading project: a prompt, the answers of two or more systems, a category and a locale. One JSON line each:

    {"id": "gb-01", "prompt": P, "images": ["images/menu.png"], "answers": {"system a": "...", "system b": "..."},
     "category": "Open QA", "locale": "en-GB", "gold": "system a"}

P is a text or a list of messages (`role`, `content`) that ends with the user's. `gold` marks a test of attention: the system
whose answer is clearly better, or "tie"; such an item has two systems.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from openafm.annotation.errors import AnnotationError
from openafm.annotation.grading.locales import check_locale
from openafm.core.config import nearest
from openafm.core.regular_files import read_document

CATEGORIES = (
    "Analytical Reasoning",
    "Brainstorming",
    "Chat",
    "Classification",
    "Closed QA",
    "Coding",
    "Creative Writing",
    "Extraction",
    "Mathematical Reasoning",
    "Open QA",
    "Rewriting",
    "Summarization",
    "Tool-use",
)
"""The categories of the report's human evaluation of text."""
IMAGE_CATEGORIES = ("Infographics",)
TIE = "tie"
_KEYS = {"id", "prompt", "images", "answers", "category", "locale", "gold"}
_ROLES = ("system", "user", "assistant", "tool")
_MAX_TEXT = 100_000


@dataclass(frozen=True, kw_only=True)
class Item:
    """Hold an item; see the head of this module. `prompt` is a tuple of (role, text)."""

    id: str
    prompt: tuple[tuple[str, str], ...]
    answers: Mapping[str, str]
    category: str
    locale: str
    images: tuple[str, ...] = ()
    gold: str = ""

    @cached_property
    def digest(self) -> str:
        """Identifies the content that people see, so that judgments of an edited item are noticed."""
        content = [self.prompt, sorted(self.answers.items()), self.images]
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:16]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs of systems, each in alphabetical order."""
        return tuple(itertools.combinations(sorted(self.answers), 2))

    def to_dict(self) -> dict[str, Any]:
        """Return the item as JSON."""
        messages = [{"role": role, "content": text} for role, text in self.prompt]
        is_text = len(messages) == 1 and messages[0]["role"] == "user"
        values: dict[str, Any] = {"id": self.id, "prompt": messages[0]["content"] if is_text else messages}
        values |= {"images": list(self.images)} if self.images else {}
        values |= {"answers": dict(self.answers), "category": self.category, "locale": self.locale}
        return values | ({"gold": self.gold} if self.gold else {})


def read_items(path: Path) -> list[Item]:
    """Return the items of a JSONL file. Images are paths below its folder.

    Raises:
        AnnotationError: a line is wrong, an id occurs twice, or an image is missing; the message has the line.
    """
    items: dict[str, Item] = {}
    for place, values in json_lines(path):
        item = item_of(values, place)
        if item.id in items:
            raise AnnotationError(f"{place}: the id '{item.id}' occurs twice; rename one of the items")
        for image in item.images:
            if not (path.parent / image).is_file():
                raise AnnotationError(f"{place}: the image {image} is not in {path.parent}; copy it there")
        items[item.id] = item
    return list(items.values())


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place (file and line) and the value of each line that is not empty.

    Raises:
        AnnotationError: the file is missing, not UTF-8, or a line is not JSON.
    """
    try:
        lines = read_document(path).decode("utf-8-sig").split("\n")  # not splitlines: texts may have U+2028
    except OSError as error:
        raise AnnotationError(f"{path} cannot be read ({error.strerror or error}); pass a JSONL file") from error
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{path} is not UTF-8: {error}; convert it") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield f"{path.name}:{number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise AnnotationError(f"{path.name}:{number}: not JSON: {error}") from error


def item_of(values: Any, place: str, *, least_answers: int = 2) -> Item:
    """Return the item of a JSON object.

    Args:
        least_answers: 0 for files of prompts, whose answers are generated.

    Raises:
        AnnotationError: a key is missing, unknown or wrong; the message starts with `place`.
    """
    try:
        return _item(values, least_answers)
    except AnnotationError as error:
        raise AnnotationError(f"{place}: {error}") from error


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write items as JSONL, atomically."""
    from openafm.core.files import atomic_file

    with atomic_file(path, "w") as file:
        for item in items:
            file.write(json.dumps(item.to_dict(), ensure_ascii=False) + "\n")


def _item(values: Any, least_answers: int) -> Item:
    if not isinstance(values, dict):
        raise AnnotationError(f"expected an object, got {values!r:.100}")
    if unknown := sorted(set(values) - _KEYS):
        raise AnnotationError(f"unknown key '{unknown[0]}'{nearest(unknown[0], sorted(_KEYS))}")
    known = {"category": values.get("category"), "locale": values.get("locale"), "id": values.get("id")}
    for name, value in known.items():
        if not isinstance(value, str) or not value or len(value) > 200 or not value.isprintable():
            raise AnnotationError(f"'{name}' is a short text, got {value!r:.100}")
    categories = CATEGORIES + IMAGE_CATEGORIES
    if values["category"] not in categories:
        raise AnnotationError(f"unknown category '{values['category']}'{nearest(values['category'], list(categories))}")
    check_locale(values["locale"])
    answers = _answers(values.get("answers", {}), least_answers)
    gold = values.get("gold", "")
    if gold and (len(answers) != 2 or gold not in (*answers, TIE)):
        raise AnnotationError(f"'gold' is the name of one of two systems, or 'tie', got {gold!r:.100}")
    return Item(
        id=values["id"],
        prompt=_prompt(values.get("prompt")),
        answers=answers,
        category=values["category"],
        locale=values["locale"],
        images=_images(values.get("images", [])),
        gold=gold,
    )


def _prompt(value: Any) -> tuple[tuple[str, str], ...]:
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(messages, list) or not messages:
        raise AnnotationError("'prompt' is a text or a list of messages")
    turns = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise AnnotationError(f"a message has a 'role' of {', '.join(_ROLES)}, got {message!r:.100}")
        turns.append((message["role"], _text(message.get("content"), "content")))
    if turns[-1][0] != "user":
        raise AnnotationError("the prompt ends with a message of the user")
    return tuple(turns)


def _answers(value: Any, least: int) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) < least:
        raise AnnotationError("'answers' is an object: the names of two or more systems and their answers")
    if wrong := [name for name in value if not name or name == TIE or len(name) > 100 or not name.isprintable()]:
        raise AnnotationError(f"{wrong[0]!r:.100} cannot name a system; use up to 100 printable characters, not 'tie'")
    return {name: _text(text, f"answers.{name}") for name, text in value.items()}


def _images(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise AnnotationError("'images' is a list of paths")
    for path in value:
        parts = PurePosixPath(path).parts
        if not parts or ".." in parts or path.startswith("/") or "\\" in path:
            raise AnnotationError(f"the image {path!r:.100} is not a path below the project's folder")
    return tuple(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_TEXT:
        raise AnnotationError(f"'{name}' is a text of 1 to {_MAX_TEXT:,} characters, got {value!r:.60}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise AnnotationError(f"'{name}' has half of a surrogate pair; send whole characters") from None
    return value
