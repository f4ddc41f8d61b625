"""Answers of systems to a file of prompts: the items of a project."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from openafm.annotation.errors import AnnotationError
from openafm.annotation.grading.items import Item, item_of, json_lines, write_items
from openafm.annotation.grading.locales import check_locale
from openafm.annotation.grading.models import answer, image_paths
from openafm.core.errors import OpenAFMError
from openafm.framework.backends.language_model import LanguageModel

_SAVE_EVERY = 20


@dataclass(frozen=True, kw_only=True)
class GenerationReport:
    """Counts of `generate_answers`. `failed` has item, system and reason; such items are not written."""

    num_items: int
    num_answers: int
    num_reused: int
    failed: tuple[tuple[str, str, str], ...]


def read_prompts(path: Path, locales: Collection[str] = ()) -> list[Item]:
    """Return prompts: lines of items, with or without answers.

    Args:
        locales: keep these locales only; empty keeps all.

    Raises:
        AnnotationError: a line is wrong, or no prompt has one of the locales.
    """
    for locale in locales:
        check_locale(locale)
    prompts = [item_of(values, place, least_answers=0) for place, values in json_lines(path)]
    found = [prompt for prompt in prompts if not locales or prompt.locale in locales]
    if not found:
        known = ", ".join(sorted({prompt.locale for prompt in prompts})) or "no prompts"
        raise AnnotationError(f"{path} has {known}, none of {', '.join(locales)}; choose other locales")
    return found


def generate_answers(
    prompts: list[Item],
    systems: Mapping[str, LanguageModel],
    out: Path,
    *,
    folder: Path,
    max_tokens: int = 512,
    progress: Callable[[int], None] = lambda done: None,
) -> GenerationReport:
    """Write the prompts with the answers of all systems to `out`.

    Answers that `out` has from an earlier call to the same prompts are reused, so an interrupted call can be repeated.

    Args:
        folder: images of the prompts are paths below it.
        progress: receives the number of finished prompts.
    """
    earlier = _earlier(out)
    items: list[Item] = []
    failed: list[tuple[str, str, str]] = []
    num_reused = 0
    for number, prompt in enumerate(prompts, start=1):
        answers = dict(prompt.answers)
        for system, model in systems.items():
            if (text := _reused(earlier.get(prompt.id), prompt, system)) is not None:
                answers[system] = text
                num_reused += 1
                continue
            try:
                text = answer(model, prompt.prompt, images=image_paths(folder, prompt), max_tokens=max_tokens)
            except (OpenAFMError, OSError) as error:  # one prompt; the others may work
                failed.append((prompt.id, system, str(error)))
                continue
            if text.strip():
                answers[system] = text
            else:
                failed.append((prompt.id, system, "the answer is empty"))
        items.append(replace(prompt, answers=answers))
        progress(number)
        if number % _SAVE_EVERY == 0:
            write_items(out, items)
    complete = [item for item in items if len(item.answers) >= 2 and set(systems) <= set(item.answers)]
    write_items(out, complete)
    num_answers = sum(len(systems) for _ in complete)
    return GenerationReport(num_items=len(complete), num_answers=num_answers, num_reused=num_reused, failed=tuple(failed))


def _earlier(path: Path) -> dict[str, Item]:
    if not path.exists():
        return {}
    items = (item_of(values, place, least_answers=0) for place, values in json_lines(path))
    return {item.id: item for item in items}


def _reused(before: Item | None, prompt: Item, system: str) -> str | None:
    """Return the answer of an earlier call to the same prompt."""
    is_same = before is not None and before.prompt == prompt.prompt and before.images == prompt.images
    return before.answers.get(system) if is_same and before is not None else None
