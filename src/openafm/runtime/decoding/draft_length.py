"""Adaptive draft length for speculative decoding.

With acceptance rate a, draft cost d and a verification step of n rows that takes T(n), drafting k tokens saves the expected
steps of the accepted ones, (a + ... + a^k) T(1), and costs k d + T(1 + k) - T(1). The policy drafts the k with the highest
expected speed, none where that is not above plain decoding. While none pays, it drafts a single probe and then pauses until
the probe's cost is 2 % of the decoding time since.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from openafm.core.config import Config
from openafm.runtime.batching.step_costs import StepCosts

_WEIGHT = 1 / 32  # of the latest draft in the running averages
_PROBE_SHARE = 0.02  # of the decoding time, for drafts that do not pay
_TYPICAL_ANSWER = 64  # tokens over which the draft model's prefill of the conversation must pay for itself
_DRAFT_SHARE = 0.1  # cost of a drafted token as a share of the target's step, until one was measured


@dataclass(frozen=True, kw_only=True)
class DraftLengthConfig(Config):
    """How many tokens to draft for a verification.

    Attributes:
        cost: cost of a drafted token as a share of a target step, where further rows of a step are free. Decisions then do
            not depend on time measurements. None: all costs are measured while decoding.
    """

    cost: float | None = None

    def __post_init__(self) -> None:
        self.require(self.cost is None or self.cost > 0, f"cost must be positive, got {self.cost}")

    def build(self, target: StepCosts, draft: StepCosts) -> DraftLength:
        """Return the policy for a target and a draft model with these step costs."""
        return DraftLength(self.cost, target, draft)


class DraftLength:
    """Chooses draft lengths for all answers of a target. Safe to share between threads.

    A run is a drafted token and the tokens that the grammar forces after it.
    """

    def __init__(self, cost: float | None, target: StepCosts, draft: StepCosts) -> None:
        self._cost, self._target, self._draft = cost, target, draft
        self._acceptance, self._run_length, self._num_judged = 0.5, 1.0, 0
        self._pause = 0.0  # seconds of decoding before the next probe
        self._lock = threading.Lock()

    def choose(self, most: int, num_rows: int, num_unseen: int, position: int, sharing: float = 1.0) -> int:
        """Return how many runs to draft for the next verification, from 0 to `most`.

        Args:
            num_rows: tokens that the step feeds without drafts.
            num_unseen: tokens that the draft model has to process first.
            position: index of the next token in the answer.
            sharing: rows in the latest step of the target for each row of this sequence; more than 1 in a batch.
        """
        with self._lock:
            plain = self._step_seconds(num_rows, sharing)
            if not plain:
                return 0
            draft = self._draft_seconds(1)
            prefill = max(self._draft_seconds(num_unseen) - draft, 0.0)
            run_value = self._step_seconds(round(self._run_length), sharing)
            best, best_speed, probe = 0, 1.0, 0.0
            chance, value, cost = 1.0, plain, 0.0
            for length in range(1, most + 1):
                chance *= self._acceptance
                value += chance * run_value
                rows = num_rows + round(length * self._run_length)
                cost = length * draft + self._step_seconds(rows, sharing)
                probe = probe or cost - plain + prefill
                speed = value / (cost + prefill / max(_TYPICAL_ANSWER, position))
                if speed > best_speed:
                    best, best_speed = length, speed
            if not best and most > 0:
                self._pause -= plain
                if self._pause <= 0:
                    best, self._pause = 1, probe / _PROBE_SHARE
            return best

    def observe(self, accepted: bool) -> None:
        """Record whether the target chose a run's first token."""
        with self._lock:
            self._num_judged += 1
            self._acceptance += max(_WEIGHT, 1 / (self._num_judged + 1)) * (accepted - self._acceptance)

    def observe_run(self, length: int) -> None:
        """Record how many tokens a drafted run has."""
        with self._lock:
            self._run_length += _WEIGHT * (length - self._run_length)

    def _step_seconds(self, num_rows: int, sharing: float) -> float:
        """Return this sequence's share of the time of a step with `num_rows` rows per sequence; 0 while unknown."""
        if self._cost is not None:
            return 1.0
        return (self._target.seconds(round(sharing * num_rows)) or 0.0) / sharing

    def _draft_seconds(self, num_tokens: int) -> float:
        if self._cost is not None:
            return self._cost
        seconds = self._draft.seconds(num_tokens)
        return _DRAFT_SHARE * (self._target.seconds(num_tokens) or 0.0) if seconds is None else seconds
