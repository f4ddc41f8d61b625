"""Override lists: obfuscated terms that are found, and hits on clean lines of real text.

    python benchmarks/overrides_evasion.py [--corpora FOLDER] [--quick] [--json]

Each term of the shipped lists is written in every disguise of DISGUISES and put into a sentence. Clean lines are lines of
the corpora (`tldr/LANGUAGE.jsonl.gz`, `nltk/*.jsonl.gz`: objects with `text`) that do not contain a term in plain spelling.
False hits are counted with the lists of the line's language. Without the corpora, `false_hits` is null.
A full run reads all lines, at most 200,000 a language, and writes docs/benchmarks/overrides_evasion.json.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.safety.overrides.lists import OverrideList, seed_lists
from openafm.safety.overrides.matcher import Overrides

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "overrides_evasion.json"
CORPORA = Path(__file__).parents[2] / "shared" / "data" / "corpora"
LINES, QUICK_LINES = 200_000, 20_000
CYRILLIC = str.maketrans("aceopxyijshkm", "асеорхуіјѕһкм")
GREEK = str.maketrans("aoeikntux", "αοεικητυχ")
LEET = str.maketrans("oieast", "013457")
SIGNS = str.maketrans("aslie", "@$|!€")
ACCENTS = str.maketrans("aeioucns", "âëïôüçñš")
SMALL_CAPITALS = str.maketrans("abcdefghijklmnoprtuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀᴛᴜᴠᴡʏᴢ")


def shifted(start: int) -> Callable[[str], str]:
    """Return a function that replaces a-z by the letters from `start` on."""
    return lambda word: "".join(chr(start + ord(c) - 97) if "a" <= c <= "z" else c for c in word)


def inner(word: str, masked: str) -> str:
    """Return the word with its second letter masked."""
    return word[0] + masked + word[2:]


DISGUISES: dict[str, Callable[[str], str]] = {
    "upper case": str.upper,
    "mixed case": lambda word: "".join(c.upper() if i % 2 else c for i, c in enumerate(word)),
    "full width": lambda word: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in word),
    "bold": shifted(0x1D41A),
    "script": shifted(0x1D4EA),
    "sans serif": shifted(0x1D5BA),
    "monospace": shifted(0x1D68A),
    "circled": shifted(0x24D0),
    "squared": shifted(0x1F130),
    "small capitals": lambda word: word.translate(SMALL_CAPITALS),
    "Cyrillic letters": lambda word: word.translate(CYRILLIC),
    "Greek letters": lambda word: word.translate(GREEK),
    "zero-width spaces": "\u200b".join,
    "zero-width joiners": "\u200d".join,
    "soft hyphens": "\u00ad".join,
    "variation selectors": "\ufe0f".join,
    "byte order marks": "\ufeff".join,
    "overlay strokes": lambda word: "".join(c + "\u0336" for c in word),
    "combining dots": lambda word: "".join(c + "\u0323" for c in word),
    "accents": lambda word: word.translate(ACCENTS),
    "digits": lambda word: word.translate(LEET),
    "signs": lambda word: word.translate(SIGNS),
    "spaces": " ".join,
    "dots": ".".join,
    "hyphens": "-".join,
    "underscores": "_".join,
    "bullets": " · ".join,
    "slashes": "/".join,
    "asterisks": "*".join,
    "one hyphen": lambda word: f"{word[:2]}-{word[2:]}",
    "one dot": lambda word: f"{word[:2]}.{word[2:]}",
    "masked letter": lambda word: inner(word, "*"),
    "hash mask": lambda word: inner(word, "#"),
    "repeated vowels": lambda word: re.sub("([aeiouäöüáéíóú])", r"\1\1\1", word),
    "repeated end": lambda word: word + word[-1] * 3,
    "digits and spaces": lambda word: " ".join(word.translate(LEET)),
    "capitals and dots": lambda word: ".".join(word.upper()),
    "Cyrillic and zero-width": lambda word: "\u200b".join(word.translate(CYRILLIC)),
    "full width and hyphens": lambda word: "-".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in word),
}
LATIN_ONLY = {"accents", "digits", "signs", "masked letter", "hash mask", "repeated vowels", "digits and spaces"}


def main() -> None:
    parser = benchmark_parser(__doc__, f"at most {QUICK_LINES:,} lines a language")
    parser.add_argument("--corpora", type=Path, default=CORPORA, help="folder with tldr/ and nltk/")
    options = parser.parse_args()
    hand_in(measure(options.corpora, QUICK_LINES if options.quick else LINES), REPORT, options)


def measure(corpora: Path, lines: int) -> dict[str, Any]:
    lists = seed_lists()
    overrides = Overrides(lists)
    missed = Counter[str]()
    evasions = list(obfuscations(lists))
    for kind, locale, text in evasions:
        if not overrides.find(text, locale):
            missed[kind] += 1
    figures: dict[str, Any] = {
        "caught": round(1 - missed.total() / len(evasions), 4),
        "obfuscations": len(evasions),
        "false_hits": None,
    }
    if not corpora.is_dir():
        print(f"overrides_evasion: no corpora at {corpora}; false_hits is null; pass --corpora", file=sys.stderr)
        return {"figures": figures, "missed": dict(missed)}
    by_language: dict[str, dict[str, Any]] = {}
    for language, path in sorted(clean_files(corpora)):
        row = by_language.setdefault(language, {"lines": 0, "false_hits": 0, "plain": 0, "examples": [], "seconds": 0.0})
        scan(path, language, overrides, row, lines)
        print(f"overrides_evasion: {language} {row}", file=sys.stderr, flush=True)
    figures["false_hits"] = sum(row["false_hits"] for row in by_language.values())
    figures["clean_lines"] = sum(row["lines"] for row in by_language.values())
    return {"figures": figures, "missed": dict(missed), "languages": by_language}


def obfuscations(lists: list[OverrideList]) -> Iterator[tuple[str, str | None, str]]:
    """Yield disguise, locale and text."""
    for each in lists:
        locale = None if each.locales[0] == "und" else each.locales[0]
        for term in each.terms:
            word = term.removesuffix("*")
            is_latin = word[0] < "\u0250"
            for kind, disguise in DISGUISES.items():
                text = disguise(word)
                has_changed = text != word and len(word) > 2
                if has_changed and (is_latin or kind not in LATIN_ONLY):
                    yield kind, locale, f"1) {text}, ..."


def clean_files(corpora: Path) -> Iterator[tuple[str, Path]]:
    for path in (corpora / "tldr").glob("*.jsonl.gz"):
        yield path.name.split(".")[0].split("_")[0], path
    for path in (corpora / "nltk").glob("*.jsonl*"):
        yield "en", path


def scan(path: Path, language: str, overrides: Overrides, row: dict[str, Any], most: int) -> None:
    """Add the lines of a file to `row`."""
    terms = [term for each in overrides.lists if each.is_for(language) for term in each.terms]
    patterns = [re.escape(term.removesuffix("*")) + (r"\w*" if term.endswith("*") else "") for term in terms]
    plain = re.compile(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)", re.IGNORECASE)
    unspaced = [term for term in terms if term[0] >= "\u3040"]
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in (line for document in file for line in json.loads(document)["text"].splitlines()):
            if row["lines"] >= most:
                return
            if not line.strip():
                continue
            if plain.search(line) or any(term in line for term in unspaced):
                row["plain"] += 1
                continue
            row["lines"] += 1
            start = time.perf_counter()
            hits = overrides.find(line, language)
            row["seconds"] += time.perf_counter() - start
            if hits:
                row["false_hits"] += 1
                row["examples"] = [*row["examples"], [hits[0].term, line[:100]]][:5]


if __name__ == "__main__":
    main()
