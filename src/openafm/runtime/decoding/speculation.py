"""Speculative decoding: a draft model proposes the next tokens, and one step of the target verifies them all.

The target chooses every token from its own logits under its own mask, as without drafts. A draft is accepted if it equals
that choice, so drafting changes the number of steps and never a token. The draft model chooses under the same grammar with
the same random numbers (sampling.py), which makes equal choices likely: speculative sampling (arXiv 2211.17192) in the form
whose output does not depend on the drafts (2408.07978). Tokens that the grammar forces after a draft are drafted with it.

Shapes: V vocabulary, A tokens ahead of the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Set
from collections.abc import Sequence as List
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import UsageError
from openafm.runtime.batching.step_costs import MAX_DECODE_TOKENS, StepCosts
from openafm.runtime.decoding.draft_length import DraftLength, DraftLengthConfig
from openafm.runtime.decoding.matcher import GrammarError, Matcher
from openafm.runtime.decoding.prefill import prefill
from openafm.runtime.decoding.sampling import BrokenLogitsError, Sampler
from openafm.runtime.decoding.steps import Step
from openafm.runtime.engines.base import Engine, Sequence


class DraftMismatchError(UsageError):
    """The draft model has another vocabulary than the target, or is to draft no tokens."""


class Drafter:
    """A draft model for all sessions of one or more targets. Safe to share between threads.

    The first draft for a target's sequence opens one of the draft model, which follows by comparing tokens. The target's
    sequence may therefore be rolled back, prefilled or restored at any time. Both are freed together.

    Args:
        engine: engine of the draft model.
        num_tokens: most tokens drafted for one verification, forced ones not counted.
        length: how the number of drafted tokens is chosen; by measured costs if not given.

    Attributes:
        costs: seconds to draft a token, by the number of tokens that the draft model processed for it.

    Raises:
        DraftMismatchError: `num_tokens` is not positive.
    """

    def __init__(self, engine: Engine, num_tokens: int = 5, length: DraftLengthConfig | None = None) -> None:
        if num_tokens < 1:
            raise DraftMismatchError(f"num_tokens is {num_tokens}; a drafter needs 1 or more")
        self.engine, self.num_tokens = engine, num_tokens
        self.costs = StepCosts()
        self._config = length or DraftLengthConfig()
        self._lengths: WeakKeyDictionary[Engine, DraftLength] = WeakKeyDictionary()
        self._followers: WeakKeyDictionary[Sequence, Sequence] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def length(self, target: Engine) -> DraftLength:
        """Return the draft length policy of this target, shared by all its answers."""
        with self._lock:
            length = self._lengths.get(target)
            if length is None:
                length = self._lengths[target] = self._config.build(target.costs, self.costs)
            return length

    def check_target(self, engine: Engine) -> None:
        """Check that target and draft model have the same vocabulary size.

        Raises:
            DraftMismatchError: the sizes differ.
        """
        if self.engine.vocab_size != engine.vocab_size:
            raise DraftMismatchError(
                f"the draft model has a vocabulary of {self.engine.vocab_size}, the target one of {engine.vocab_size};"
                " train the draft model from the target: openafm train on_device.draft --from BUNDLE"
            )

    def follower(self, sequence: Sequence) -> Sequence:
        """Return the draft model's sequence for one of the target's, opening it on first use."""
        with self._lock:
            follower = self._followers.get(sequence)
            if follower is None:
                follower = self._followers[sequence] = self.engine.new_sequence()
            return follower


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A proposed token. A forced one follows whenever the drafts before it are accepted."""

    token: int
    is_forced: bool


class Drafting:
    """Drafts for one answer, chosen with the answer's sampler and grammar."""

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
        self._most, self._length = drafter.num_tokens, drafter.length(target)
        self._target_costs, self._draft_costs = target.costs, drafter.costs
        self._num_fed = 1  # rows of this sequence in the latest step of the target
        self.num_drafted = self.num_accepted = 0
        self.seconds = 0.0

    def propose(self, tokens: List[int], position: int, most: int) -> list[Draft]:
        """Return at most `most` drafts to follow the sequence's tokens and then `tokens`, which the matcher has accepted.

        `position` is the index of the next token in the answer.
        """
        started = time.perf_counter()
        num_unseen = max(self._followed.length + len(tokens) - self._sequence.length, 1)
        sharing = max(self._target_costs.latest_rows / self._num_fed, 1.0)
        num_runs = self._length.choose(min(self._most, most), len(tokens), num_unseen, position, sharing)
        if not num_runs or self._followed.length + len(tokens) + most > self._engine.context_length:
            self._num_fed = len(tokens)
            return []
        drafts = self._drafts(num_runs, tokens, position, most, started)[:most]
        self._num_fed = len(tokens) + len(drafts)
        self.seconds += time.perf_counter() - started
        self.num_drafted += sum(not draft.is_forced for draft in drafts)
        return drafts

    def observe(self, accepted: bool) -> None:
        """Record whether the target's choice was the draft."""
        self.num_accepted += accepted
        self._length.observe(accepted)

    def _drafts(self, num_runs: int, tokens: List[int], position: int, most: int, started: float) -> list[Draft]:
        drafts: list[Draft] = []
        unseen = self._catch_up(tokens)
        matcher = None if self._matcher is None else self._matcher.fork()
        for _ in range(num_runs):
            logits_V = prefill(self._engine, self._sequence, unseen, self._cancelled)
            if logits_V is None:
                break
            run = self._run(logits_V, position + len(drafts), matcher)
            ended = time.perf_counter()
            self._draft_costs.record(len(unseen), ended - started)
            if not run:
                self._length.observe(accepted=False)
                break
            self._length.observe_run(len(run))
            drafts += run
            unseen, started = [draft.token for draft in run], ended
            if len(drafts) >= most or not self._stop_tokens.isdisjoint(unseen):
                break
        return drafts

    def _catch_up(self, tokens: List[int]) -> list[int]:
        """Roll back what differs from the target's sequence and return the tokens still to process, at least the last."""
        known = np.asarray(self._sequence.tokens)
        wanted = np.concatenate([np.asarray(self._followed.tokens), np.asarray(tokens, np.intc)])
        length = min(len(known), len(wanted) - 1)
        different = np.flatnonzero(known[:length] != wanted[:length])
        num_equal = int(different[0]) if len(different) else length
        del known
        self._engine.rollback(self._sequence, self._sequence.length - num_equal)
        return [int(token) for token in wanted[num_equal:]]

    def _run(self, logits_V: NDArray[np.float32], position: int, matcher: Matcher | None) -> list[Draft]:
        """Return one choice and the tokens that the grammar forces after it; empty if the draft model's logits or the
        grammar fail here, which need not happen to the target.
        """
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
    """Feeds an answer to the target's sequence together with drafts. Accepted drafts are not computed again.

    Between calls the sequence holds the answer so far and the drafts ahead of it. `close` removes the drafts.
    """

    def __init__(self, engine: Engine, sequence: Sequence, drafting: Drafting | None) -> None:
        self._engine, self._sequence, self._drafting = engine, sequence, drafting
        self._ahead: list[Draft] = []
        self._logits_AV: NDArray[np.float32] = np.empty((0, engine.vocab_size), np.float32)  # after each of them
        self.num_steps = 0

    def feed(
        self, tokens: List[int], position: int, most_ahead: int, beside: Callable[[], None] | None = None
    ) -> Generator[Step, None, NDArray[np.float32]]:
        """Append tokens to the answer, a choice and the tokens forced after it. Return the logits [V] after the last.

        Yields the step, if there is one, which the caller computes.

        `position` is the index of the token after them in the answer; at most `most_ahead` may be drafted from there.
        `beside` runs during the step, if there is one.
        """
        if self._ahead and self._drafting is not None:
            self._drafting.observe(tokens[0] == self._ahead[0].token)
        num_equal = self._num_accepted(tokens)
        if num_equal == len(tokens):
            logits_V = self._logits_AV[num_equal - 1]
            self._ahead, self._logits_AV = self._ahead[num_equal:], self._logits_AV[num_equal:]
            return logits_V
        self._ahead = self._ahead[num_equal:]
        self.close()
        return (yield from self._step(list(tokens[num_equal:]), position, most_ahead, beside))

    def close(self) -> None:
        """Remove the drafts from the sequence."""
        if self._ahead:
            self._engine.rollback(self._sequence, len(self._ahead))
            self._ahead = []

    def _num_accepted(self, tokens: List[int]) -> int:
        pairs = zip(tokens, self._ahead, strict=False)
        return next(
            (i for i, (token, draft) in enumerate(pairs) if token != draft.token), min(len(tokens), len(self._ahead))
        )

    def _step(
        self, tokens: list[int], position: int, most_ahead: int, beside: Callable[[], None] | None
    ) -> Generator[Step, None, NDArray[np.float32]]:
        self.num_steps += 1
        most_ahead = min(most_ahead, MAX_DECODE_TOKENS - len(tokens))
        drafts = [] if self._drafting is None or most_ahead <= 0 else self._drafting.propose(tokens, position, most_ahead)
        if not drafts:
            return (yield from Step(self._engine, self._sequence, tokens, "last", beside).wait())
        drafted = tokens + [draft.token for draft in drafts]
        logits_NV = yield from Step(self._engine, self._sequence, drafted, "all", beside).wait()
        self._ahead, self._logits_AV = drafts, logits_NV[len(tokens) :]
        last_V: NDArray[np.float32] = logits_NV[len(tokens) - 1]
        return last_V
