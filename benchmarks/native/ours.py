"""The side of openafm: the native engine on a synthetic bundle."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace

import numpy as np
from measuring import Times, timed

from openafm.bundle import Bundle
from openafm.runtime.engines.base import Engine, Sequence
from openafm.runtime.engines.snapshot import read_snapshot, write_snapshot
from openafm.runtime.native.engine import NativeEngine

_SEED_TOKENS = 64  # whose keys and values are repeated for a long context


class Ours:
    """One engine for each number of threads; they share the weights."""

    def __init__(self, bundle: Bundle) -> None:
        self._engines = {num_threads: NativeEngine(bundle, num_threads=num_threads) for num_threads in (1, 2)}
        self._sequences = {threads: prefilled(engine, _SEED_TOKENS) for threads, engine in self._engines.items()}

    def prefill(self, num_tokens: int, num_threads: int) -> Times:
        """A prompt in one step, logits after its last token."""
        engine = self._engines[num_threads]
        sequence, prompt = engine.new_sequence(), tokens_of(num_tokens)
        times = timed(lambda: engine.step([(sequence, prompt)]))
        engine.close(sequence)
        return times

    def decode(self, steps: int, num_threads: int) -> Times:
        """Token by token."""
        return decode(self._engines[num_threads], [self._sequences[num_threads]], steps)


def decode(engine: Engine, sequences: List[Sequence], steps: int) -> Times:
    """Steps of one token for each sequence, rolled back at the end."""
    token = iter(tokens_of(steps))
    times = timed(
        lambda: engine.step([(sequence, [next_token]) for next_token in [next(token)] for sequence in sequences]), steps
    )
    for sequence in sequences:
        engine.rollback(sequence, steps)
    return times


def prefilled(engine: Engine, num_tokens: int) -> Sequence:
    """Return a sequence of the given length: the first tokens are computed, and their keys and values are repeated."""
    sequence = engine.new_sequence()
    engine.step([(sequence, tokens_of(min(num_tokens, _SEED_TOKENS)))])
    if num_tokens <= _SEED_TOKENS:
        return sequence
    snapshot = read_snapshot(engine.snapshot(sequence))
    times = -(-num_tokens // _SEED_TOKENS)
    arrays = {name: np.concatenate([array] * times) for name, array in snapshot.arrays.items()}
    return engine.restore(write_snapshot(replace(snapshot, length=times * _SEED_TOKENS, arrays=arrays)))


def tokens_of(count: int) -> list[int]:
    """Tokens without a pattern, valid in every vocabulary of the benchmark."""
    return [100 + i * 7919 % 16_000 for i in range(count)]
