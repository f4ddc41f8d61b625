"""Rewriting: a message made formal, casual or shorter, or an enumeration written as a list."""

from __future__ import annotations

import random

from openafm.data.synthetic.lexicons import Lexicon
from openafm.data.synthetic.slots import Slots
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn

_STYLES = ("formal", "casual", "short", "list")


def rewrite_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """One message and what became of it."""
    style = rng.choice(_STYLES)
    if style == "list":
        return _list_turns(rng, words)
    wording = rng.choice(words.rewrite.wordings)
    before, after, instructions = {
        "formal": (wording.casual, wording.formal, words.rewrite.make_formal),
        "casual": (wording.formal, wording.casual, words.rewrite.make_casual),
        "short": (wording.formal, wording.short, words.rewrite.make_short),
    }[style]
    slots = Slots(rng, words, document=rng.choice(words.rewrite.documents))
    return (
        Instructions(text=rng.choice(instructions)),
        UserTurn(text=slots.fill(before)),
        AssistantTurn(text=slots.fill(after)),
    )


def _list_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    rewrite = words.rewrite
    items = rng.sample(rewrite.items, rng.randint(3, 5))
    enumeration = rewrite.comma.join(items[:-1]) + rewrite.last_comma + items[-1]
    return (
        Instructions(text=rng.choice(rewrite.make_list)),
        UserTurn(text=Slots(rng, words, items=enumeration).choose(rewrite.enumerations)),
        AssistantTurn(text="\n".join(f"- {item}" for item in items)),
    )
