"""Many tokens into a sequence, in chunks, so that it can be cancelled.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.engine import PREFILL_CHUNK as PREFILL_CHUNK
from openafm.runtime.engine import ContextWindowError, Engine, Sequence


def prefill(
    engine: Engine, sequence: Sequence, tokens: List[int], cancelled: Callable[[], bool] = lambda: False
) -> NDArray[np.float32] | None:
    """Append tokens in chunks, so that it can be cancelled. Returns the logits [V] after the last; None when cancelled.

    All tokens are appended, or none when it is cancelled or something is raised.

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
            (logits_V,) = engine.step([(sequence, tokens[chunk : chunk + PREFILL_CHUNK])])
    finally:
        if logits_V is None:
            roll_back_to(engine, sequence, start)
    return logits_V


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
