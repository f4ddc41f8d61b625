"""Many tokens into a sequence, in chunks, so that it can be cancelled.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.batching.admission import PREFILL_CHUNK
from openafm.runtime.engines.base import ContextWindowError, Engine, LogitsOf, Sequence


def prefill(
    engine: Engine,
    sequence: Sequence,
    tokens: List[int],
    cancelled: Callable[[], bool] = lambda: False,
    beside: Callable[[], None] | None = None,
) -> NDArray[np.float32] | None:
    """Append tokens in chunks, so that it can be cancelled. Returns the logits [V] after the last; None when cancelled.

    All tokens are appended, or none when it is cancelled or something is raised. `beside` is done during the last step.

    Raises:
        ContextWindowError: they do not fit; nothing has been computed.
        TokenError: there are none.
    """
    start = sequence.length
    check_fits(engine, start + len(tokens))
    logits_V = None
    try:
        for chunk in range(0, max(len(tokens), 1), PREFILL_CHUNK):
            logits_V = None
            if cancelled():
                break
            is_last = chunk + PREFILL_CHUNK >= len(tokens)
            piece = tokens[chunk : chunk + PREFILL_CHUNK]
            logits_V = step_beside(engine, sequence, piece, "last", beside if is_last else None)
    finally:
        if logits_V is None:
            roll_back_to(engine, sequence, start)
    return logits_V


def step_beside(
    engine: Engine, sequence: Sequence, tokens: List[int], logits: LogitsOf, beside: Callable[[], None] | None
) -> NDArray[np.float32]:
    """The logits of a step of one sequence, with something done meanwhile where there is something to do."""
    if beside is None:
        return engine.step([(sequence, tokens)], logits)[0]
    with engine.begin([(sequence, tokens)], logits) as pending:
        beside()
        return pending.result()[0]


def num_prefill_steps(num_tokens: int) -> int:
    """How many steps `prefill` takes."""
    return -(-num_tokens // PREFILL_CHUNK)


def check_fits(engine: Engine, token_count: int) -> None:
    """Refuse more tokens than the context window holds.

    Raises:
        ContextWindowError: so many do not fit.
    """
    if token_count > engine.context_length:
        raise ContextWindowError(token_count, engine.context_length)


def roll_back_to(engine: Engine, sequence: Sequence, length: int) -> None:
    """Take back what came after the first `length` tokens, unless the sequence has been closed meanwhile."""
    if not sequence.is_closed:
        engine.rollback(sequence, sequence.length - length)
