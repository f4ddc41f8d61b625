"""Counts of the hand-written texts, by language and split: `python -m openafm.data.synthetic.card`."""

from __future__ import annotations

from collections.abc import Iterator

from openafm.data.synthetic.languages import LANGUAGES, Split
from openafm.data.synthetic.tasks.natural import ATTRIBUTIONS
from openafm.data.synthetic.text_files.catalogs import catalog_of
from openafm.data.synthetic.text_files.frames import frames_of


def counts(language: str, split: Split) -> dict[str, int]:
    """Return the number of hand-written lines of each kind in a language and split."""
    frames, catalog = frames_of(language, split), catalog_of(language, split)
    return {
        "events": len(frames.events),
        "others": len(frames.others),
        "titles": sum(map(len, frames.titles.values())) + len(frames.title_patterns),
        "places": len(frames.places),
        "dates": sum(map(len, frames.calendar.dates.values())),
        "times": len(frames.calendar.times),
        "instructions": sum(map(len, frames.instructions.values())),
        "label sets": len(catalog.label_sets),
        "texts": sum(len(label.texts) for labels in catalog.label_sets for label in labels.labels),
        "tools": len(catalog.tools),
        "requests": sum(len(tool.requests) for tool in catalog.tools),
        "forms": len(catalog.forms),
        "form texts": sum(len(form.texts) for form in catalog.forms),
        "words": sum(len(frames.words.list_of(kind)) for kind in frames.words.list_kinds),
    }


def card() -> Iterator[str]:
    """Yield the lines of a Markdown table, and the sources of natural requests."""
    names = list(counts("en", "train"))
    yield "| language | split | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(names)
    splits: tuple[Split, ...] = ("train", "held_out")
    for language in LANGUAGES:
        for split in splits:
            found = counts(language, split)
            yield f"| {language} | {split} | " + " | ".join(f"{found[name]:,}" for name in names) + " |"
    yield "\nRequests that people wrote, where their folder is given: " + "; ".join(ATTRIBUTIONS.values())


if __name__ == "__main__":
    print("\n".join(card()))
