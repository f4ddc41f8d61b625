"""Random words: letters, numbers, symbols, and words of messages, which cannot be guessed from those beside them."""

from __future__ import annotations

import functools
import random

from openafm.data.drawing.base import Split
from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.tasks.messages import draw_message, draw_other_message
from openafm.data.synthetic.text_files.posters import poster_texts

_MOST_LETTERS = 9
_NUMBERS = ("#", "##", "####", "#:##", "##:##", "#.##", "$##", "€#,##", "##/##", "##.##.####", "####-##-##", "##%", "(###)")
_MARKS = ".,:;!?"
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"), ('"', '"'), ("'", "'"), ("`", "`"), ("*", "*"))
_JOINTS = ("-", "_", "/", ".", "::", "@", "=", "#", "+", "|", "~", "\\", "->", "&", "$")
_NUM_MESSAGES = 300


def random_letters(rng: random.Random, language: str, split: Split) -> str:
    alphabet, _ = _language_of(language, split)
    return _styled(rng, "".join(rng.choices(alphabet, k=rng.randint(1, _MOST_LETTERS))))


def random_word(rng: random.Random, language: str, split: Split) -> str:
    _, vocabulary = _language_of(language, split)
    return _styled(rng, rng.choice(vocabulary))


def random_number(rng: random.Random) -> str:
    return "".join(str(rng.randrange(10)) if char == "#" else char for char in rng.choice(_NUMBERS))


def random_code(rng: random.Random, language: str, split: Split) -> str:
    """Return a word as in commands and addresses: parts that are joined by symbols, or in brackets."""
    parts = [random_letters(rng, language, split).strip(_MARKS)[:5] for _ in range(rng.randint(1, 2))]
    joined = rng.choice(_JOINTS).join(parts) if len(parts) > 1 else rng.choice(("-", "--", "/", "$", "#", ".")) + parts[0]
    if rng.random() < 0.4:
        opening, closing = rng.choice(_BRACKETS)
        joined = f"{opening}{joined}{closing}"
    return joined


def _styled(rng: random.Random, word: str) -> str:
    mark = rng.choice(_MARKS) if rng.random() < 0.1 else ""
    return rng.choice((str, str, str.capitalize, str.upper))(word) + mark


@functools.cache
def _language_of(language: str, split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the letters and the words of messages in a language."""
    rng, frames = random.Random(f"{language}:{split}"), poster_texts(language, split).frames
    messages = (
        rng.choice((draw_message, draw_other_message))(rng, frames, draw_reference_day(rng)) for _ in range(_NUM_MESSAGES)
    )
    words = {word for message in messages for word in message.text.split()}
    letters = {char.lower() for word in words for char in word if char.isalpha() and len(char.lower()) == 1}
    return tuple(sorted(letters)), tuple(sorted(word for word in words if word.isalpha() and len(word) <= 2 * _MOST_LETTERS))
