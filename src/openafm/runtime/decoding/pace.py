"""How many tokens to draft for the next verification.

`TimedPace` drafts as many as make an answer come fastest, by what steps of both models were measured to take and how many
drafts were accepted. It keeps a purse: what plain decoding would have taken, and a little more, less what was spent. No
draft is made that the purse could not pay for were it refused, so that decoding with drafts is never slower by more than
2 %, from the first token on; what drafts save fills it for bolder ones. While drafts do not pay, one is tried now and then,
the more seldom the more often that failed in a row.

Before its first draft in a conversation the draft model has to see it, which may take more than a purse ever holds. That is
done on trust where it takes less than drafts are expected to save in an answer as long as usual, and is a debt that must be
repaid before the next: one such look is all that can be lost beside the 2 %.

`GivenPace` knows no clock, for counting what a draft model is worth. Decisions change when tokens come, never which.

A run is a drafted token with those that the grammar forces after it: one choice, one step of plain decoding.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence as List
from dataclasses import dataclass

from openafm.core.config import Config, ConfigError
from openafm.runtime.batching.step_costs import StepCosts

BUDGET = 0.015  # how much slower than plain decoding it may be: 2 %, less what deciding takes and is not counted
_MOST_SAVED = 256  # plain steps: the purse holds no more, so that a draft model that turned bad cannot spend a good hour
_LEAST_KEPT = 4  # plain steps: what the purse holds beyond repays a debt
_HOPED_SPEED = 1.5  # of plain decoding, where it is not known better
_MOST_FAILURES = 3  # doublings of the time between two attempts
_IDLE, _LONG_IDLE = 7, 15  # feeds for which a decision against drafting stands, and while trials failed
_LOOK = 32  # verifications after which one more is drafted, for what its row takes
_DRAFT_SHARE = 0.1  # of a step of the target that a drafted token takes, until one was drafted


class Pace(ABC):
    """Decides for all answers of a target. Safe to share between threads."""

    @abstractmethod
    def begin(self) -> None:
        """An answer begins."""

    @abstractmethod
    def aim(self, most: int, num_rows: int, num_waiting: int, position: int) -> int:
        """How many runs to draft behind `num_rows` tokens that wait to be fed, `most` at the most.

        The draft model has `num_waiting` tokens to see before; `position` is the number of the next token in its answer.
        """

    @abstractmethod
    def drafted(self, num_waiting: int, seconds: float) -> None:
        """The draft model saw `num_waiting` tokens and chose one, in so many seconds."""

    @abstractmethod
    def worth(self, num_rows: int, runs: List[int]) -> int:
        """How many of the runs, by their lengths, to verify behind `num_rows` tokens."""

    @abstractmethod
    def stepped(self, num_plain: int, num_rows: int, num_together: int) -> None:
        """The target took `num_rows` where it would have taken `num_plain` without drafts, in a step of `num_together`.

        It took none where drafts came true.
        """

    @abstractmethod
    def judge(self, accepted: bool) -> None:
        """The choice of a run was the target's or not."""


@dataclass(frozen=True, kw_only=True)
class PaceConfig(Config):
    """Base of the ways to choose how many tokens to draft."""

    def build(self, target: StepCosts, draft: StepCosts) -> Pace:
        """The pace for a target, by the costs of its steps and of drafting."""
        raise ConfigError(f"{type(self).__name__} is abstract; use TimedPaceConfig or GivenPaceConfig")


@dataclass(frozen=True, kw_only=True)
class TimedPaceConfig(PaceConfig):
    """As many as save the most time, by measured costs."""

    def build(self, target: StepCosts, draft: StepCosts) -> Pace:
        return TimedPace(target, draft)


@dataclass(frozen=True, kw_only=True)
class GivenPaceConfig(PaceConfig):
    """A token is drafted if it is likelier to be accepted than `cost`, its share of a step of the target; rows are free."""

    cost: float = 0.2

    def __post_init__(self) -> None:
        self.require(self.cost > 0, f"cost must be positive, got {self.cost}")

    def build(self, target: StepCosts, draft: StepCosts) -> Pace:
        return GivenPace(self.cost)


class TimedPace(Pace):
    """By measured costs, in a budget.

    Where steps serve several sequences, each bears its share and is taken to draft as this one does: together they have more
    rows, of which fewer are free, so that less is drafted. Answers that come at once share the purse and what is tried.
    """

    _WEIGHT = 1 / 32  # of the last run in the running acceptance and length

    def __init__(self, target: StepCosts, draft: StepCosts) -> None:
        self._target, self._draft = target, draft
        self._acceptance, self._run_length = 0.8, 1.0
        self._purse = self._debt = 0.0  # seconds
        self._on_trust = False
        self._lost = self._look = 0.0  # seconds by the drafts of the last verification, and to see what came before them
        self._rest, self._num_failures, self._pays, self._is_trial = 0.0, 0, True, False
        self._num_sharing, self._num_idle = 1.0, 0
        self._num_answers = self._num_fed = self._num_drafts = self._longest = 0
        self._plain_feeds: list[int] = []
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._num_answers += 1
            self._num_idle = 0

    def aim(self, most: int, num_rows: int, num_waiting: int, position: int) -> int:
        with self._lock:
            if self._num_idle:
                self._num_idle -= 1
                return 0
            number = self._best(most, num_rows, num_waiting, position)
            if not number:
                self._num_idle = _LONG_IDLE if self._rest > 0 else _IDLE
            return number

    def drafted(self, num_waiting: int, seconds: float) -> None:
        with self._lock:
            self._draft.record(num_waiting, seconds)
            taken = self._draft_seconds(num_waiting)
            self._spend(taken)
            if self._on_trust:
                look = max(taken - self._draft_seconds(1), 0.0)
                self._debt, self._purse, self._on_trust = self._debt + look, self._purse + look, False
                self._lost, self._look = self._lost - look, look

    def worth(self, num_rows: int, runs: List[int]) -> int:
        with self._lock:
            for length in runs:
                self._run_length += self._WEIGHT * (length - self._run_length)
            plain = value = self._takes(num_rows)
            spent, chance, rows = len(runs) * self._draft_seconds(1), 1.0, num_rows
            best, best_speed = 0, value / (spent + value) if value else 0.0
            for number, length in enumerate(runs, start=1):
                chance, rows = chance * self._acceptance, rows + length
                value += chance * self._takes(length)
                cost = self._takes(rows)
                if cost - plain > self._purse:
                    break
                if self._is_trial or value > best_speed * (spent + cost):
                    best, best_speed = number, value / (spent + cost)
            self._longest = max(self._longest, best)
            return best

    def stepped(self, num_plain: int, num_rows: int, num_together: int) -> None:
        with self._lock:
            self._num_fed += 1
            if num_rows:
                self._num_sharing = max(num_together / num_rows, 1.0)
            if num_rows == num_plain:
                self._plain_feeds.append(num_rows)  # booked when it matters: looking up takes longer than noting
                return
            plain = self._takes(num_plain)
            self._book(plain)
            self._spend(self._takes(num_rows) - plain)

    def judge(self, accepted: bool) -> None:
        with self._lock:
            self._acceptance += self._WEIGHT * (accepted - self._acceptance)

    def _settle(self) -> None:
        """See what the last trial brought: the next one waits until its loss is made up for, longer after others."""
        if self._is_trial and not self._pays:
            is_lost = self._lost > 0
            self._rest = (self._lost + self._look) / BUDGET * 2**self._num_failures if is_lost else 0.0
            self._num_failures = min(self._num_failures + 1, _MOST_FAILURES) if is_lost else 0
        self._is_trial, self._lost, self._look = False, 0.0, 0.0

    def _book(self, plain: float) -> None:
        """Decoding came on by what would have taken so many seconds without drafts."""
        self._purse += BUDGET * plain
        self._rest -= plain

    def _spend(self, seconds: float) -> None:
        self._purse -= seconds
        self._lost += seconds

    def _best(self, most: int, num_rows: int, num_waiting: int, position: int) -> int:
        """How many runs give the most tokens a second; one for a try; none."""
        self._settle()
        for rows in self._plain_feeds:
            self._book(self._takes(rows))
        self._plain_feeds.clear()
        self._repay(self._target.seconds(1) or 0.0)
        plain, draft = self._takes(num_rows), self._draft_seconds(1)
        if not plain:
            return 0
        step = self._takes(max(round(self._run_length), 1))
        catch_up = max(self._draft_seconds(num_waiting) - draft, 0.0)
        best, best_speed, affordable, self._pays = 0, 1.0, 0, False
        value, chance, extras = plain, 1.0, [0.0]
        for number in range(1, min(most, self._longest + 1) + 1):  # what more rows take is a guess until they are tried
            extra = number * draft + self._takes(num_rows + round(number * self._run_length)) - plain
            extras.append(extra)
            chance *= self._acceptance
            value += chance * step
            is_faster = value > best_speed * (plain + extra)
            self._pays |= is_faster
            if extra <= self._purse:
                affordable = number
                if is_faster:
                    best, best_speed = number, value / (plain + extra)
        if not self._pays and self._rest <= 0:
            best, best_speed = min(affordable, 1), _HOPED_SPEED
        saved = (1 - 1 / best_speed) * step * self._steps_left(position)
        if not best or not self._is_worth_a_look(catch_up, saved, self._purse - extras[best]):
            return 0
        self._num_drafts += self._pays
        self._is_trial = not self._pays or (self._num_drafts % _LOOK == 0 and best < affordable)
        return best + (self._pays and self._is_trial)

    def _is_worth_a_look(self, catch_up: float, saved: float, spare: float) -> bool:
        """Whether to show the draft model what it has not seen of the conversation: from what is spare, or else on trust."""
        if catch_up > saved:
            return False
        self._on_trust = catch_up > spare
        return not self._on_trust or self._debt <= 0

    def _repay(self, step: float) -> None:
        surplus = min(self._purse - _LEAST_KEPT * step, self._debt)
        if surplus > 0:
            self._purse, self._debt = self._purse - surplus, self._debt - surplus
        self._purse = min(self._purse, _MOST_SAVED * step)

    def _steps_left(self, position: int) -> float:
        """Of an answer that has come this far: as many as usual, or it goes on for as long as it has."""
        return max(self._num_fed / max(self._num_answers - 1, 1), 2 * position) - position

    def _takes(self, num_rows: int) -> float:
        """Seconds of a step, of which as many sequences as lately each have so many rows and bear their share."""
        return (self._target.seconds(round(self._num_sharing * num_rows)) or 0.0) / self._num_sharing

    def _draft_seconds(self, num_waiting: int) -> float:
        seconds = self._draft.seconds(num_waiting)
        return _DRAFT_SHARE * (self._target.seconds(num_waiting) or 0.0) if seconds is None else seconds


class GivenPace(Pace):
    """The chance that the n-th run counts is the acceptance to the power of n: drafting goes on while it exceeds the cost.

    When not even the first is worth it, one is tried now and then. Each answer begins anew.
    """

    _WEIGHT = 1 / 8  # of the last run in the running acceptance
    _PAUSE = 16  # verifications without a draft before one is tried

    def __init__(self, cost: float) -> None:
        self._cost = cost
        self.begin()

    def begin(self) -> None:
        self._acceptance, self._num_paused = 0.8, 0

    def aim(self, most: int, num_rows: int, num_waiting: int, position: int) -> int:
        chance, number = self._acceptance, 0
        while number < most and chance > self._cost:
            chance, number = chance * self._acceptance, number + 1
        self._num_paused = 0 if number else self._num_paused + 1
        if self._num_paused == self._PAUSE:
            self._num_paused, number = 0, 1
        return number

    def drafted(self, num_waiting: int, seconds: float) -> None:
        """Costs are given."""

    def worth(self, num_rows: int, runs: List[int]) -> int:
        return len(runs)

    def stepped(self, num_plain: int, num_rows: int, num_together: int) -> None:
        """Steps are not counted."""

    def judge(self, accepted: bool) -> None:
        self._acceptance += self._WEIGHT * (accepted - self._acceptance)
