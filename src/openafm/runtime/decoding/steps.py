"""Steps that a generation waits for. One thread can compute those of many generations together.

Shapes: V vocabulary, N tokens of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as List

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.engines.base import Engine, LogitsOf, Sequence


class Step:
    """Tokens that one sequence has to append before its generation can continue.

    `beside` is work that may run during the step.
    """

    __slots__ = ("_error", "_logits", "beside", "engine", "logits_of", "sequence", "tokens")

    def __init__(
        self,
        engine: Engine,
        sequence: Sequence,
        tokens: List[int],
        logits_of: LogitsOf,
        beside: Callable[[], None] | None,
    ) -> None:
        self.engine, self.sequence, self.tokens = engine, sequence, tokens
        self.logits_of, self.beside = logits_of, beside
        self._logits: NDArray[np.float32] | None = None
        self._error: BaseException | None = None

    def wait(self) -> Generator[Step, None, NDArray[np.float32]]:
        """Yield this step, and return its logits, [V] or [N, V], once it has been computed.

        Raises:
            OpenAFMError: as `Engine.step`.
        """
        yield self
        if self._error is not None:
            raise self._error
        assert self._logits is not None, "the generation was continued before its step was computed"
        return self._logits


def compute(steps: List[Step]) -> None:
    """Compute steps of engines beside each other. An error belongs to the step that causes it, not to the others."""
    groups: dict[LogitsOf, list[Step]] = {}
    for step in steps:
        groups.setdefault(step.logits_of, []).append(step)
    for together in groups.values():
        try:
            _compute(together)
        except BaseException as error:
            if len(together) == 1:
                together[0]._error = error
                continue
            for step in together:
                compute((step,))


def _compute(steps: List[Step]) -> None:
    engine, logits_of = steps[0].engine, steps[0].logits_of
    batch = [(step.sequence, step.tokens) for step in steps]
    if all(step.beside is None for step in steps):
        outputs = engine.step(batch, logits_of)
    else:
        with engine.begin(batch, logits_of) as pending:
            for step in steps:
                if step.beside is not None:
                    step.beside()
            outputs = pending.result()
    for step, logits in zip(steps, outputs, strict=True):
        step._logits = logits
