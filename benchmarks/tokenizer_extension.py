"""Benefit and cost of a vocabulary extension (report 4.1).

1. An English vocabulary is extended with text of many languages. Tokens per character are counted on held-out pages and
   compared with a vocabulary of the same size trained from scratch on the same text, which keeps no old id.
2. Time to extend a vocabulary of 100k to 150k on generated text, compared with training 150k from scratch.

    python benchmarks/tokenizer_extension.py [--quick] [--json]

The corpora are read from ../shared/data/corpora beside the repository (tldr, nltk). Without them only part 2 runs and the
exit code is 3. `--json` prints the last line only: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from openafm.core.files import write_json
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.extension import extend_tokenizer
from openafm.tokenizer.report import find_corpora, language_costs

CORPORA = Path(__file__).resolve().parents[2] / "shared" / "data" / "corpora"
EXIT_WITHOUT_CORPORA = 3
HELD_OUT_EVERY = 10
SAMPLING_TEMPERATURE = 0.5

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Vocabulary sizes, the maximum of pages per language, generated words per language and distinct words."""

    before: int
    after: int
    max_pages: int
    generated_before: int
    generated_after: int
    generated_words: int
    lexicon: int


FULL = Sizes(
    before=20_000,
    after=30_000,
    max_pages=10**9,
    generated_before=100_000,
    generated_after=150_000,
    generated_words=400_000,
    lexicon=40_000,
)
QUICK = Sizes(
    before=2_000,
    after=3_000,
    max_pages=300,
    generated_before=4_000,
    generated_after=6_000,
    generated_words=20_000,
    lexicon=2_000,
)


def corpora_figures(sizes: Sizes) -> dict[str, Any]:
    """Part 1: tokens per held-out character, by language."""
    pages = {language: list(corpus)[: sizes.max_pages] for language, corpus in find_corpora(CORPORA / "tldr").items()}
    speeches = [text for corpus in find_corpora(CORPORA / "nltk").values() for text in list(corpus)[: sizes.max_pages]]
    held_out = {language: texts[::HELD_OUT_EVERY] for language, texts in pages.items()}
    seen = {language: [t for i, t in enumerate(texts) if i % HELD_OUT_EVERY] for language, texts in pages.items()}
    english, all_languages = [*seen["en"], *speeches], list(_balanced(seen))

    before = train_tokenizer(TokenizerConfig(vocab_size=sizes.before), english)
    extension, seconds = _timed(lambda: extend_tokenizer(before, all_languages, sizes.after))
    scratch = train_tokenizer(TokenizerConfig(vocab_size=sizes.after), [*english, *all_languages])
    rows = {}
    costs = language_costs(before, extension.tokenizer, held_out)
    for cost, other in zip(costs, language_costs(before, scratch, held_out), strict=True):
        rows[cost.language] = {
            "before": round(cost.tokens_per_character_before, 4),
            "after": round(cost.tokens_per_character_after, 4),
            "from_scratch": round(other.tokens_per_character_after, 4),
        }
    return {"tokens_per_character": rows, "extension_seconds": round(seconds, 1)}


def _balanced(texts: dict[str, list[str]]) -> Iterator[str]:
    """Temperature sampling by repetition: a language s times smaller than the largest is repeated s^0.5 times."""
    num_characters = {language: sum(map(len, its_texts)) for language, its_texts in texts.items()}
    largest = max(num_characters.values())
    for language, its_texts in texts.items():
        for _ in range(round((largest / num_characters[language]) ** (1 - SAMPLING_TEMPERATURE))):
            yield from its_texts


def generated_figures(sizes: Sizes) -> dict[str, Any]:
    """Part 2: seconds to extend, on generated text of sixteen made-up languages, eight of which are old."""
    languages = [generated_language(seed, sizes) for seed in range(16)]
    old = [text for language in languages[:8] for text in language]
    every = [text for language in languages for text in language]
    before = train_tokenizer(TokenizerConfig(vocab_size=sizes.generated_before), old)
    extension, seconds = _timed(lambda: extend_tokenizer(before, every, sizes.generated_after))
    scratch, scratch_seconds = _timed(lambda: train_tokenizer(TokenizerConfig(vocab_size=sizes.generated_after), every))
    cost = language_costs(before, extension.tokenizer, {"all": every})[0]
    other = language_costs(before, scratch, {"all": every})[0]
    _check(before, extension.tokenizer, extension.pieces, every[:: max(1, len(every) // 50)])
    return {
        "extension_seconds": round(seconds, 1),
        "from_scratch_seconds": round(scratch_seconds, 1),
        "text_megabytes": round(sum(len(text.encode()) for text in every) / 1e6, 1),
        "tokens_per_character": {
            "before": round(cost.tokens_per_character_before, 4),
            "after": round(cost.tokens_per_character_after, 4),
            "from_scratch": round(other.tokens_per_character_after, 4),
        },
        "peak_memory_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


ALPHABETS = (
    ("bcdfghklmnprstvwz", "aeiou"),
    ("bcçdfgğhklmnprsştvyz", "aeıioöuü"),
    ("bcdđghklmnpqrstvx", "aăâeêioôơuưáàảãạ"),
    ("бвгджзклмнпрстфхцчшщ", "аеёиоуыэюя"),
    ("".join(map(chr, range(0x4E00, 0x5200))), ""),
    ("".join(map(chr, range(0xAC00, 0xB000))), ""),
    ("".join(map(chr, range(0x30A1, 0x30F7))), ""),
    ("ابتثجحخدذرزسشصضطظعغفقكلمنهوي", ""),
)


def generated_language(seed: int, sizes: Sizes) -> list[str]:
    """Texts of one made-up language: words of random syllables, frequencies by Zipf's law."""
    chooser, rng = random.Random(seed), np.random.default_rng(seed)
    consonants, vowels = ALPHABETS[seed % len(ALPHABETS)]
    syllables = [first + second for first in consonants for second in (vowels or " ")]
    syllables = [syllable.strip() for syllable in chooser.sample(syllables, min(len(syllables), 80))]
    lexicon = ["".join(chooser.choices(syllables, k=chooser.choice((1, 2, 2, 3, 3, 4)))) for _ in range(sizes.lexicon)]
    weights = 1 / np.arange(1, sizes.lexicon + 1)
    words = rng.choice(sizes.lexicon, size=sizes.generated_words, p=weights / weights.sum())
    return [" ".join(lexicon[word] for word in part) + "." for part in np.array_split(words, sizes.generated_words // 500)]


def _check(before: Tokenizer, after: Tokenizer, pieces: dict[int, tuple[int, ...]], texts: list[str]) -> None:
    for text in texts:
        if [old for id in after.encode(text) for old in pieces.get(id, (id,))] != before.encode(text):
            raise AssertionError("the old encoding cannot be read off the new one")


def _timed(work: Callable[[], ResultT]) -> tuple[ResultT, float]:
    start_s = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start_s


def _table(figures: dict[str, Any], sizes: Sizes) -> Iterator[str]:
    if "corpora" in figures:
        before, after = f"{sizes.before:,}", f"{sizes.after:,}"
        yield f"| language | {before} English | extended to {after} | after / before | {after} from scratch |"
        yield "|---|---|---|---|---|"
        for language, row in figures["corpora"]["tokens_per_character"].items():
            share = row["after"] / row["before"]
            yield f"| {language} | {row['before']:.3f} | {row['after']:.3f} | {share:.2f} | {row['from_scratch']:.3f} |"
        yield ""
    generated = figures["generated"]
    yield (
        f"Generated text, {generated['text_megabytes']} MB: {sizes.generated_before:,} to {sizes.generated_after:,} tokens "
        f"in {generated['extension_seconds']} s (from scratch, `tokenizers`: {generated['from_scratch_seconds']} s); "
        f"peak memory {generated['peak_memory_gigabytes']} GB."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code; claims nothing")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else FULL
    figures: dict[str, Any] = {}
    if CORPORA.is_dir():
        figures["corpora"] = corpora_figures(sizes)
    else:
        print(f"no corpora in {CORPORA}: tokens per character by language are not measured", file=sys.stderr)
    figures["generated"] = generated_figures(sizes)
    result = {
        "figures": figures,
        "peer": "tokenizers BpeTrainer, from scratch at the same size on the same text (keeps no old id)",
        "setting": {"quick": arguments.quick, "held_out": f"every {HELD_OUT_EVERY}th page", **vars(sizes)},
    }
    if not arguments.json:
        print("\n".join(_table(figures, sizes)))
    if arguments.out:
        write_json(arguments.out, result)
    print(json.dumps(result))
    return 0 if "corpora" in figures else EXIT_WITHOUT_CORPORA


if __name__ == "__main__":
    sys.exit(main())
