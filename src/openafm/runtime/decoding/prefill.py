"""Chunked prefill that can be cancelled between chunks.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.batching.admission import PREFILL_CHUNK
from openafm.runtime.engines.base import ContextWindowError, Engine, InsertedEmbeddings, LogitsOf, Sequence


def prefill(
    engine: Engine,
    sequence: Sequence,
    tokens: List[int],
    cancelled: Callable[[], bool] = lambda: False,
    beside: Callable[[], None] | None = None,
    inserted: List[InsertedEmbeddings] = (),
) -> NDArray[np.float32] | None:
    """Append tokens in chunks. Return the logits [V] after the last one; None if cancelled.

    If the prefill is cancelled or raises, the sequence is restored. `beside` runs during the last step. `inserted` replace
    the embeddings of tokens, by index in `tokens`.

    Raises:
        InsertedEmbeddingsError: as `Engine.step`.
        ContextWindowError: the tokens do not fit; nothing has been computed.
        TokenError: `tokens` is empty.
    """
    start = sequence.length
    check_fits(engine, start + len(tokens))
    logits_V = None
    try:
        for first in range(0, max(len(tokens), 1), PREFILL_CHUNK):
            logits_V = None
            if cancelled():
                break
            is_last = first + PREFILL_CHUNK >= len(tokens)
            chunk = tokens[first : first + PREFILL_CHUNK]
            cuts = [cut for each in inserted if (cut := each.cut(first, first + PREFILL_CHUNK)) is not None]
            logits_V = step_beside(engine, sequence, chunk, "last", beside if is_last else None, cuts)
    finally:
        if logits_V is None:
            roll_back_to(engine, sequence, start)
    return logits_V


def step_beside(
    engine: Engine,
    sequence: Sequence,
    tokens: List[int],
    logits: LogitsOf,
    beside: Callable[[], None] | None,
    inserted: List[InsertedEmbeddings] = (),
) -> NDArray[np.float32]:
    """Return the logits of a step of one sequence; run `beside`, if given, during the step."""
    if beside is None:
        return engine.step([(sequence, tokens, inserted)], logits)[0]
    with engine.begin([(sequence, tokens, inserted)], logits) as pending:
        beside()
        return pending.result()[0]


def num_prefill_steps(num_tokens: int) -> int:
    """Return the number of steps that `prefill` takes."""
    return -(-num_tokens // PREFILL_CHUNK)


def check_fits(engine: Engine, token_count: int) -> None:
    """Check that `token_count` tokens fit the context window.

    Raises:
        ContextWindowError: they do not.
    """
    if token_count > engine.context_length:
        raise ContextWindowError(token_count, engine.context_length)


def roll_back_to(engine: Engine, sequence: Sequence, length: int) -> None:
    """Remove the tokens after the first `length`, unless the sequence has been closed."""
    if not sequence.is_closed:
        engine.rollback(sequence, sequence.length - length)
