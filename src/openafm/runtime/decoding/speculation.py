"""Speculative decoding: a small model drafts the next tokens, and one step of the target verifies them all.

The target's own choice is made at every position, from its own logits under its own mask, exactly as without drafts; a
draft is accepted where it is that choice, so drafting can change nothing but the number of steps. It is accepted often
because the draft model chooses under the same grammar and in the same race (sampling.py): speculative sampling (arXiv
2211.17192) in the form that gives the same tokens whatever the drafts (2408.07978). What the grammar forces after a draft is
a draft that is certain.

Shapes: V vocabulary, A tokens ahead of the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set
from collections.abc import Sequence as List
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import UsageError
from openafm.runtime.batching.admission import MOST_DECODED
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.decoding.grammar import GrammarError, Matcher
from openafm.runtime.decoding.pace import Pace, PaceConfig, TimedPaceConfig
from openafm.runtime.decoding.prefill import prefill, step_beside
from openafm.runtime.decoding.sampling import BrokenLogitsError, Sampler
from openafm.runtime.engines.base import Engine, Sequence


class DraftMismatchError(UsageError):
    """A draft model that does not speak in the target's tokens, or that drafts nothing."""


class Drafter:
    """A draft model beside a target, shared by all sessions of the target, and safe to share between threads.

    Each sequence of the target gets one of the draft model's when drafting for it first begins. It follows by comparing
    tokens, so the target's may be rolled back, prefilled or restored by anybody; and it goes when the target's does.

    Args:
        engine: the draft model's.
        num_tokens: most tokens drafted for one verification, forced ones not counted.
        pace: how many of them are.

    Attributes:
        costs: what it took to draft a token, by the tokens that the draft model had to see for it.

    Raises:
        DraftMismatchError: `num_tokens` is not positive.
    """

    def __init__(self, engine: Engine, num_tokens: int = 5, pace: PaceConfig | None = None) -> None:
        if num_tokens < 1:
            raise DraftMismatchError(f"a drafter needs num_tokens above 0, got {num_tokens}")
        self.engine, self.num_tokens = engine, num_tokens
        self.costs = StepCosts()
        self._pace = pace or TimedPaceConfig()
        self._paces: WeakKeyDictionary[Engine, Pace] = WeakKeyDictionary()
        self._followers: WeakKeyDictionary[Sequence, Sequence] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def pace(self, target: Engine) -> Pace:
        """What has been learned beside this target, for all its answers."""
        with self._lock:
            pace = self._paces.get(target)
            if pace is None:
                pace = self._paces[target] = self._pace.build(target.costs, self.costs)
            return pace

    def check_target(self, engine: Engine) -> None:
        """See that the target's tokens are the draft model's.

        Raises:
            DraftMismatchError: they have vocabularies of different sizes.
        """
        if self.engine.vocab_size != engine.vocab_size:
            raise DraftMismatchError(
                f"the draft model has a vocabulary of {self.engine.vocab_size}, the target one of {engine.vocab_size};"
                " train the draft model from the target: openafm train on_device.draft --from BUNDLE"
            )

    def follower(self, sequence: Sequence) -> Sequence:
        """The draft model's sequence for one of the target's."""
        with self._lock:
            follower = self._followers.get(sequence)
            if follower is None:
                follower = self._followers[sequence] = self.engine.new_sequence()
            return follower


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A token that may come. Forced: certain to come if those before it do."""

    token: int
    is_forced: bool


class Drafting:
    """Drafts for one answer, chosen as the answer's own tokens are."""

    def __init__(
        self,
        drafter: Drafter,
        target: Engine,
        sequence: Sequence,
        *,
        sampler: Sampler,
        matcher: Matcher | None,
        stop_tokens: Set[int],
        cancelled: Callable[[], bool],
    ) -> None:
        self._engine, self._followed, self._sequence = drafter.engine, sequence, drafter.follower(sequence)
        self._sampler, self._matcher, self._stop_tokens = sampler, matcher, stop_tokens
        self._cancelled = cancelled
        self._most, self._pace, self._target_costs = drafter.num_tokens, drafter.pace(target), target.costs
        self._pace.begin()
        self.num_drafted = self.num_accepted = 0
        self.seconds = 0.0

    def propose(self, tokens: List[int], position: int, most: int) -> list[Draft]:
        """What may follow the sequence's tokens and then `tokens`, to which the matcher has come: `most` at the most.

        `position` is the number of the next token in the answer.
        """
        started = time.perf_counter()
        num_waiting = max(self._followed.length + len(tokens) - self._sequence.length, 1)
        aim = self._pace.aim(min(self._most, most), len(tokens), num_waiting, position)
        if not aim or self._followed.length + len(tokens) + most > self._engine.context_length:
            return []
        runs = self._runs(aim, tokens, position, most, started)
        del runs[self._pace.worth(len(tokens), [len(run) for run in runs]) :]
        self.seconds += time.perf_counter() - started
        drafts = [draft for run in runs for draft in run][:most]
        self.num_drafted += sum(not draft.is_forced for draft in drafts)
        return drafts

    def judge(self, accepted: bool) -> None:
        """The target's choice was the draft's or not."""
        self.num_accepted += accepted
        self._pace.judge(accepted)

    def stepped(self, num_plain: int, num_rows: int) -> None:
        """The target took `num_rows` where it would have taken `num_plain` without drafts; none where those came true."""
        self._pace.stepped(num_plain, num_rows, self._target_costs.latest_rows)

    def _runs(self, aim: int, tokens: List[int], position: int, most: int, started: float) -> list[list[Draft]]:
        runs: list[list[Draft]] = []
        waiting, num_drafts = self._caught_up(tokens), 0
        matcher = None if self._matcher is None else self._matcher.fork()
        while len(runs) < aim and num_drafts < most:
            logits_V = prefill(self._engine, self._sequence, waiting, self._cancelled)
            if logits_V is None:
                break
            run = self._run(logits_V, position + num_drafts, matcher)
            ended = time.perf_counter()
            self._pace.drafted(len(waiting), ended - started)
            if not run:
                self._pace.judge(accepted=False)
                break
            runs.append(run)
            num_drafts += len(run)
            waiting, started = [draft.token for draft in run], ended
            if not self._stop_tokens.isdisjoint(waiting):
                break
        return runs

    def _caught_up(self, tokens: List[int]) -> list[int]:
        """The tokens that the draft model has still to see, the last one at least; what it saw wrongly is taken back."""
        known = np.asarray(self._sequence.tokens)
        wanted = np.concatenate([np.asarray(self._followed.tokens), np.asarray(tokens, np.intc)])
        length = min(len(known), len(wanted) - 1)
        different = np.flatnonzero(known[:length] != wanted[:length])
        num_equal = int(different[0]) if len(different) else length
        del known
        self._engine.rollback(self._sequence, self._sequence.length - num_equal)
        return [int(token) for token in wanted[num_equal:]]

    def _run(self, logits_V: NDArray[np.float32], position: int, matcher: Matcher | None) -> list[Draft]:
        """One choice, and what the grammar forces after it; nothing where the way is lost, which may not be the answer's."""
        try:
            if matcher is not None:
                matcher.apply(logits_V)
            run = [Draft(token=self._sampler.sample(logits_V, position), is_forced=False)]
            if matcher is not None:
                matcher.accept((run[0].token,))
                while forced := matcher.forced():
                    matcher.accept(forced)
                    run += [Draft(token=token, is_forced=True) for token in forced]
        except (GrammarError, BrokenLogitsError):
            return []
        return run


class Lookahead:
    """Feeds an answer to the target's sequence, and drafts behind it; drafts that come true are not computed again.

    Between calls the sequence holds the answer so far and the drafts ahead of it. `close` takes those back.
    """

    def __init__(self, engine: Engine, sequence: Sequence, drafting: Drafting | None) -> None:
        self._engine, self._sequence, self._drafting = engine, sequence, drafting
        self._ahead: list[Draft] = []
        self._logits_AV: NDArray[np.float32] = np.empty((0, engine.vocab_size), np.float32)  # after each of them
        self.num_steps = 0

    def feed(
        self, tokens: List[int], position: int, most_ahead: int, beside: Callable[[], None] | None = None
    ) -> NDArray[np.float32]:
        """Append tokens to the answer: a choice and what was forced after it. Returns the logits [V] after the last.

        `position` is the number of the token after them in the answer; at most `most_ahead` may be drafted from there.
        `beside` is done during the step, if there is one.
        """
        if self._ahead and self._drafting is not None:
            self._drafting.judge(tokens[0] == self._ahead[0].token)
        num_equal = self._num_come_true(tokens)
        if num_equal == len(tokens):
            if self._drafting is not None:
                self._drafting.stepped(len(tokens), 0)
            logits_V = self._logits_AV[num_equal - 1]
            self._ahead, self._logits_AV = self._ahead[num_equal:], self._logits_AV[num_equal:]
            return logits_V
        self._ahead = self._ahead[num_equal:]
        self.close()
        logits_V = self._step(list(tokens[num_equal:]), position, most_ahead, beside)
        if self._drafting is not None:
            self._drafting.stepped(len(tokens), len(tokens) - num_equal + len(self._ahead))
        return logits_V

    def close(self) -> None:
        """Take the drafts back."""
        if self._ahead:
            self._engine.rollback(self._sequence, len(self._ahead))
            self._ahead = []

    def _num_come_true(self, tokens: List[int]) -> int:
        pairs = zip(tokens, self._ahead, strict=False)
        return next(
            (i for i, (token, draft) in enumerate(pairs) if token != draft.token), min(len(tokens), len(self._ahead))
        )

    def _step(
        self, tokens: list[int], position: int, most_ahead: int, beside: Callable[[], None] | None
    ) -> NDArray[np.float32]:
        self.num_steps += 1
        most_ahead = min(most_ahead, MOST_DECODED - len(tokens))
        drafts = [] if self._drafting is None or most_ahead <= 0 else self._drafting.propose(tokens, position, most_ahead)
        if not drafts:
            return step_beside(self._engine, self._sequence, tokens, "last", beside)
        drafted = tokens + [draft.token for draft in drafts]
        logits_NV = step_beside(self._engine, self._sequence, drafted, "all", beside)
        self._ahead, self._logits_AV = drafts, logits_NV[len(tokens) :]
        last_V: NDArray[np.float32] = logits_NV[len(tokens) - 1]
        return last_V
