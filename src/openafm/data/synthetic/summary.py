"""Summaries: two to four sentences in, one out."""

from __future__ import annotations

import random

from openafm.data.synthetic.lexicons import Lexicon
from openafm.data.synthetic.slots import Slots, pieces
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn

_DETAIL_SHARE = 0.6


def summary_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """A report and its summary; details of the report come and go."""
    report = rng.choice(words.summary.reports)
    slots = Slots(rng, words)
    kept = [piece.text for piece in pieces(report.text) if not piece.optional or rng.random() < _DETAIL_SHARE]
    return (
        Instructions(text=rng.choice(words.summary.instructions)),
        UserTurn(text=slots.fill("".join(kept))),
        AssistantTurn(text=slots.fill(report.summary)),
    )
