"""Check the hand-written files of languages: `python -m openafm.data.synthetic.validate [language ...] [--samples N]`.

See docs/corpus-authoring.md.
"""

from __future__ import annotations

import argparse
import datetime
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from openafm.data.synthetic.languages import LANGUAGES, text_folder
from openafm.data.synthetic.tasks.messages import draw_message
from openafm.data.synthetic.text_files.catalogs import Catalogs
from openafm.data.synthetic.text_files.frames import LanguageFrames
from openafm.data.synthetic.text_files.posters import PosterTexts
from openafm.data.synthetic.text_files.source_text import SourceTextError, read_sections, read_with_more
from openafm.data.synthetic.words import REQUIRED_SECTIONS

# The least number of lines of each file; of words.txt, of each section.
MINIMA = {
    "events": 400,
    "other": 400,
    "titles": 170,
    "places": 60,
    "instructions": 60,
    "labels": 320,
    "tools": 240,
    "forms": 120,
}
WORD_MINIMA = {"name": 60, "syllable": 40, "city": 60, "street": 8, "company": 12, "phone": 5}
FILES = tuple(f"{name}.txt" for name in (*MINIMA, "words", "dates", "times", "posters"))
OPTIONAL_FILES = ("arithmetic.txt",)
CONTINUATIONS = ("events_", "other_", "labels_", "tools_", "forms_")
_ALIKE = 0.75
_SHINGLE = 4


def problems(language: str) -> Iterator[str]:
    """Every mistake in the files of a language, with its line."""
    folder = text_folder() / language
    if not folder.is_dir():
        yield f"{language}: no such folder of texts; write the files of docs/corpus-authoring.md in {folder}"
        return
    yield from (f"{language}/{name} is missing" for name in FILES if not (folder / name).exists())
    for path in sorted(folder.iterdir()):
        if path.name not in (*FILES, *OPTIONAL_FILES) and not path.name.startswith(CONTINUATIONS):
            yield f"{language}/{path.name} is not read; continuations begin with {', '.join(CONTINUATIONS)}"
    errors: list[SourceTextError] = []
    try:
        frames = LanguageFrames(language, "train", errors)
        Catalogs(frames, errors)
        PosterTexts(language, "train")
    except SourceTextError as error:
        yield from map(str, (*errors, error))
        return
    yield from frames.calendar.ambiguities()
    yield from map(str, errors)
    for name in MINIMA:
        yield from _near_duplicates(folder / f"{name}.txt")


def shortfalls(language: str) -> Iterator[str]:
    """Every file or section of a language that holds fewer texts than the corpus needs."""
    folder = text_folder() / language
    for name, minimum in MINIMA.items():
        path = folder / f"{name}.txt"
        if path.exists() and (count := _count_texts(path)) < minimum:
            yield f"{language}/{name}.txt: {count} texts, expected {minimum} or more"
    if (folder / "words.txt").exists():
        sections = {section.name: len(section.lines) for section in read_sections(folder / "words.txt")}
        for name in REQUIRED_SECTIONS:
            count, minimum = sections.get(name, 0), WORD_MINIMA.get(name, 20)
            if count < minimum:
                yield f"{language}/words.txt: section '{name}' has {count} lines, expected {minimum} or more"


def near_duplicates(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Indices of two texts that share most of their runs of four characters, slots counted as one."""
    shingles = [_shingles(text) for text in texts]
    by_shingle: dict[str, list[int]] = {}
    for index, found in enumerate(shingles):
        shared: dict[int, int] = {}
        for shingle in found:
            for other in by_shingle.get(shingle, ()):
                shared[other] = shared.get(other, 0) + 1
            by_shingle.setdefault(shingle, []).append(index)
        for other, count in shared.items():
            if count / (len(found) + len(shingles[other]) - count) >= _ALIKE:
                yield other, index


def _shingles(text: str) -> set[str]:
    plain = re.sub(r"\{(\w)\w*?[\d]*(?:[:/=][^}]*)?\}", r"{\1}", text.casefold())
    plain = re.sub(r"[\s\[\].,!?]+", " ", plain).strip()
    return {plain[at : at + _SHINGLE] for at in range(max(1, len(plain) - _SHINGLE + 1))}


def _count_texts(path: Path) -> int:
    return sum(not line.text.startswith((":", "=")) for section in read_with_more(path) for line in section.lines)


def _near_duplicates(path: Path) -> Iterator[str]:
    if path.stem in ("titles", "places", "instructions"):
        return
    groups = [list(section.lines) for section in read_with_more(path)]
    if path.stem in ("events", "other"):
        groups = [[line for lines in groups for line in lines]]
    for group in groups:
        lines = [line for line in group if not line.text.startswith((":", "="))]
        for first, second in near_duplicates([line.text for line in lines]):
            near, line = lines[first], lines[second]
            yield f"{line.file}:{line.number}: nearly the same as line {near.number}" + (
                f" of {near.file}" if near.file != line.file else ""
            )


def samples(language: str, count: int) -> Iterator[str]:
    """Messages with their events."""
    frames, rng = LanguageFrames(language, "train"), random.Random(0)
    for _ in range(count):
        message = draw_message(rng, frames, datetime.date(2031, 5, 7))
        yield f"{message.text}\n    {message.event}"


def main(arguments: Sequence[str]) -> int:
    """Print the mistakes and missing texts; 1 if there are any."""
    parser = argparse.ArgumentParser(description="Check the hand-written files of the built-in corpus.")
    parser.add_argument("languages", nargs="*", default=list(LANGUAGES), metavar="language", help="all by default")
    parser.add_argument("--samples", type=int, default=0, help="messages to show of each language")
    options = parser.parse_args(arguments)
    found = [problem for language in options.languages for check in (problems, shortfalls) for problem in check(language)]
    for problem in found:
        print(problem)
    for language in options.languages if not found and options.samples else ():
        for sample in samples(language, options.samples):
            print(sample)
    print(f"{len(found)} problems")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
