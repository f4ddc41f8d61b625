"""The length of drafts: never slower than plain decoding by more than 2 %, near the best there is, and quick to learn.

Simulated: steps take what a table says, drafts are accepted by chance, and the pace is told both as by an answer.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.core.config import ConfigError
from openafm.runtime.batching.step_costs import MOST_COUNTED, StepCosts
from openafm.runtime.decoding.pace import GivenPace, GivenPaceConfig, PaceConfig, TimedPace

# Of a 2-bit model of 3B on one core: two rows are nearly free, then each takes its time.
MEASURED = (1.0, 1.13, 1.6, 2.1, 2.6, 3.2, 3.7, 4.2)
FREE_ROWS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35)
DEAR_ROWS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def seconds(table: List[float], num_rows: int) -> float:
    """Beyond the table each row takes what the last one took."""
    if num_rows <= len(table):
        return table[num_rows - 1]
    return table[-1] + (num_rows - len(table)) * (table[-1] - table[-2])


@dataclass(kw_only=True)
class Answers:
    """Tokens from a target and a draft model that take so long, in seconds; both models know their costs only from that."""

    table: List[float]
    draft: float
    most: int = 5
    seed: int = 0
    run_lengths: List[int] = (1,)
    num_sharing: int = 1
    plain: float = 0.0
    spent: float = 0.0
    longest_look: float = 0.0  # of the draft model, at what it had not seen
    aims: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.target, self.drafting = StepCosts(), StepCosts()
        self.pace = TimedPace(self.target, self.drafting)

    @property
    def ratio(self) -> float:
        """Time to that of plain decoding."""
        return self.spent / self.plain

    def answer(self, num_runs: int, acceptance: Callable[[int], float], prompt: int = 5) -> None:
        """One answer of so many choices, each followed by what a grammar forces."""
        self.pace.begin()
        self.aims.clear()
        lengths = [self.random.choice(self.run_lengths) for _ in range(num_runs)]
        position, waiting = 0, prompt
        if prompt > MOST_COUNTED:
            self.target.record(prompt, seconds(self.table, prompt))
        while position < num_runs:
            length, waiting = lengths[position], waiting + lengths[position]
            ahead = self._drafts(length, waiting, lengths[position + 1 :], position)
            if ahead is not None:
                waiting = 0
            runs = ahead or []
            self._step(length, length + sum(runs))
            position += 1
            for run in runs:
                accepted = self.random.random() < acceptance(position)
                self.pace.judge(accepted)
                if not accepted:
                    break
                self.plain += self._takes(run)
                self.pace.stepped(run, 0, 0)
                position += 1

    def _drafts(self, length: int, waiting: int, lengths: List[int], position: int) -> list[int] | None:
        aim = self.pace.aim(min(self.most, len(lengths)), length, waiting, position)
        self.aims[aim] += 1
        for number in range(aim):
            num_seen = waiting if number == 0 else lengths[number - 1]
            taken = self.draft * (0.9 + 0.1 * num_seen)
            self.spent += taken
            self.longest_look = max(self.longest_look, taken)
            self.pace.drafted(num_seen, taken)
        return list(lengths[: self.pace.worth(length, lengths[:aim])]) if aim else None

    def _step(self, num_plain: int, num_rows: int) -> None:
        self.plain += self._takes(num_plain)
        self.spent += self._takes(num_rows)
        together = num_rows * self.num_sharing
        self.target.record(together, seconds(self.table, together))
        self.pace.stepped(num_plain, num_rows, together)

    def _takes(self, num_rows: int) -> float:
        return seconds(self.table, num_rows * self.num_sharing) / self.num_sharing


def always(chance: float) -> Callable[[int], float]:
    return lambda position: chance


def best_ratio(answers: Answers, acceptance: float) -> float:
    """Time to that of plain decoding with the best number of drafts there is, always."""
    ratios = [1.0]
    for number in range(1, answers.most + 1):
        tokens = sum(acceptance**i for i in range(number + 1))
        ratios.append((number * answers.draft + seconds(answers.table, number + 1)) / tokens / answers.table[0])
    return min(ratios)


TABLES = st.lists(st.floats(0, 1), min_size=4, max_size=8).map(
    lambda rises: [1.0 + sum(rises[:count]) for count in range(len(rises) + 1)]
)


@settings(max_examples=60, deadline=None)
@given(
    table=TABLES,
    draft=st.floats(0.01, 3),
    phases=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    run_lengths=st.sampled_from([(1,), (1, 1, 1, 9), (1, 30)]),
    num_sharing=st.sampled_from([1, 1, 1, 2, 8]),
    seed=st.integers(0, 1000),
    prompt=st.sampled_from([5, 60]),
)
def test_it_is_never_slower_than_plain_decoding_by_more_than_two_percent(
    table: list[float], draft: float, phases: list[float], run_lengths: List[int], num_sharing: int, seed: int, prompt: int
) -> None:
    """Whatever steps and drafts take, and however often the acceptance changes.

    But for two steps of 1,500 or more, as the last draft may have taken longer than any before, and one look at a prompt.
    """
    answers = Answers(table=table, draft=draft, run_lengths=run_lengths, num_sharing=num_sharing, seed=seed)
    for number in range(15):
        answers.answer(100, lambda position, n=number: phases[(n * 100 + position) // 60 % len(phases)], prompt)
    assert answers.spent <= 1.02 * answers.plain + 2 * table[0] + answers.longest_look


@pytest.mark.parametrize("table", [MEASURED, FREE_ROWS, DEAR_ROWS], ids=["measured", "free", "dear"])
@pytest.mark.parametrize("draft", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.5, 0.75, 0.9, 1.0])
def test_it_comes_close_to_the_best_length_and_stays_there(table: List[float], draft: float, acceptance: float) -> None:
    answers = Answers(table=table, draft=draft)
    for _ in range(8):
        answers.answer(200, always(acceptance))
    answers.plain = answers.spent = 0.0
    for _ in range(10):
        answers.answer(200, always(acceptance))
    assert 1 - answers.ratio >= 0.75 * (1 - best_ratio(answers, acceptance)) - 0.08


def test_while_drafts_do_not_pay_hardly_any_is_made() -> None:
    answers = Answers(table=MEASURED, draft=0.2)
    for _ in range(5):
        answers.answer(200, always(0.0))
    answers.plain = answers.spent = 0.0
    answers.answer(1000, always(0.0))
    assert sum(number * aim for aim, number in answers.aims.items()) <= 10
    assert answers.ratio < 1.005


@pytest.mark.parametrize("within", [True, False], ids=["within an answer", "from one to the next"])
def test_it_recovers_when_drafts_are_accepted_again(within: bool) -> None:
    answers = Answers(table=MEASURED, draft=0.1)
    for _ in range(5):
        answers.answer(200, always(0.0))
    answers.plain = answers.spent = 0.0
    if within:
        answers.answer(1000, lambda position: 0.9 * (position > 200))
        assert answers.ratio < 0.85
    else:
        for _ in range(10):
            answers.answer(100, always(0.9))
        assert answers.ratio < 0.8


def test_nothing_is_drafted_before_there_is_time_to_lose() -> None:
    """Costs are unknown at the start: the first draft waits until 2 % of the time could pay for it."""
    answers = Answers(table=MEASURED, draft=0.2)
    answers.answer(14, always(1.0))
    assert answers.aims == {0: 14}
    answers.answer(200, always(1.0))
    assert answers.aims[1] > 20


def test_a_long_prompt_is_shown_to_the_draft_model_only_where_the_answers_are_long() -> None:
    """Seeing 400 tokens takes 9 steps here, and drafts would save a third."""
    ratios = {}
    for num_runs in (15, 200):
        answers = Answers(table=MEASURED, draft=0.22)
        for _ in range(4000 // num_runs):
            answers.answer(num_runs, always(0.9), prompt=400)
        ratios[num_runs] = answers.ratio
    assert ratios[15] <= 1.02
    assert ratios[200] < 0.9


def test_beside_many_others_rows_are_dear_and_nothing_is_drafted() -> None:
    table = (1.0, 1.02, 1.04, 1.06, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
    alone, among = Answers(table=table, draft=0.1), Answers(table=table, draft=0.1, num_sharing=7)
    for answers in (alone, among):
        for _ in range(10):
            answers.answer(200, always(0.8))
    assert alone.ratio < 0.6
    assert among.aims[0] > 190
    assert among.ratio <= 1.02


def test_what_the_grammar_forces_counts_as_rows() -> None:
    """A run that would take more to refuse than it can save is not verified, though it was drafted."""
    pace = TimedPace(target := StepCosts(), drafting := StepCosts())
    for num_rows in range(1, 33):
        target.record(num_rows, 0.1 * num_rows + 0.9)
    drafting.record(1, 0.05)
    for _ in range(500):
        pace.stepped(1, 1, 1)
    for _ in range(60):
        pace.judge(accepted=False)
        pace.judge(accepted=True)
    assert pace.aim(5, 1, 1, 500) >= 1
    assert pace.worth(1, [1, 1]) >= 1
    assert pace.worth(1, [1, 29]) == 1
    assert pace.worth(1, [29]) == 0


def test_the_given_pace_asks_a_poor_draft_model_less_and_a_good_one_more() -> None:
    pace = GivenPaceConfig(cost=0.2).build(StepCosts(), StepCosts())
    aim = functools.partial(pace.aim, 5, 1, 1, 0)
    for _ in range(40):
        pace.judge(accepted=False)
    assert sum(aim() for _ in range(160)) == 10
    for _ in range(40):
        pace.judge(accepted=True)
    assert {aim() for _ in range(20)} == {5}
    pace.begin()
    assert isinstance(pace, GivenPace)
    assert aim() == 5


def test_configs_refuse_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="cost"):
        GivenPaceConfig(cost=0)
    with pytest.raises(ConfigError, match="abstract"):
        PaceConfig().build(StepCosts(), StepCosts())
