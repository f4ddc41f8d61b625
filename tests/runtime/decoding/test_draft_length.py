"""Draft lengths against simulated models: the gain comes close to the best fixed length, and useless drafts stay cheap."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from openafm.core.config import ConfigError
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.decoding.draft_length import DraftLengthConfig

# Seconds of a step by its rows. The first is a 2-bit 3B model on one core: two rows are nearly free, later ones are not.
MEASURED = (1.0, 1.13, 1.6, 2.1, 2.6, 3.2, 3.7, 4.2)
CHEAP_ROWS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35)
COSTLY_ROWS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


@dataclass(kw_only=True)
class Simulation:
    """Decodes with a target whose steps take `table` seconds and a draft model that takes `draft` seconds a token."""

    table: tuple[float, ...]
    draft: float
    most: int = 5
    sharing: int = 1
    plain: float = 0.0
    spent: float = 0.0
    num_drafted: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.target, self.drafting = StepCosts(), StepCosts()
        self.length = DraftLengthConfig().build(self.target, self.drafting)

    def seconds(self, num_rows: int) -> float:
        beyond = num_rows - len(self.table)
        return self.table[min(num_rows, len(self.table)) - 1] + max(beyond, 0) * (self.table[-1] - self.table[-2])

    def answer(self, num_tokens: int, acceptance: Callable[[int], float], prompt: int = 5) -> None:
        """Decode one answer; `acceptance` is the chance that a draft at a position is accepted."""
        position, unseen = 0, prompt
        while position < num_tokens:
            unseen += 1
            most = min(self.most, num_tokens - position - 1)
            number = self.length.choose(most, 1, unseen, position, self.sharing)
            assert 0 <= number <= most
            for _ in range(number):
                taken = self.draft * (0.9 + 0.1 * unseen)
                self.drafting.record(unseen, taken)
                self.spent, unseen = self.spent + taken, 1
            self.num_drafted += number
            rows = self.sharing * (1 + number)
            self.target.record(rows, self.seconds(rows))
            self.spent += self.seconds(rows) / self.sharing
            num_accepted = 0
            while num_accepted < number:
                accepted = self.random.random() < acceptance(position + num_accepted)
                self.length.observe(accepted)
                if not accepted:
                    break
                num_accepted += 1
            position += 1 + num_accepted
            self.plain += (1 + num_accepted) * self.seconds(self.sharing) / self.sharing

    def ratio(self, count: int, num_tokens: int, acceptance: Callable[[int], float], prompt: int = 5) -> float:
        """Decode `count` answers and return the time as a multiple of plain decoding's."""
        self.plain = self.spent = 0.0
        for _ in range(count):
            self.answer(num_tokens, acceptance, prompt)
        return self.spent / self.plain

    def best_ratio(self, acceptance: float) -> float:
        """Return the time ratio of the best fixed draft length."""
        ratios = [1.0]
        for number in range(1, self.most + 1):
            tokens = sum(acceptance**i for i in range(number + 1))
            ratios.append((number * self.draft + self.seconds(number + 1)) / tokens / self.seconds(1))
        return min(ratios)


@pytest.mark.parametrize("table", [MEASURED, CHEAP_ROWS, COSTLY_ROWS], ids=["measured", "cheap", "costly"])
@pytest.mark.parametrize("draft", [0.05, 0.5])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.75, 1.0])
def test_the_speed_comes_close_to_that_of_the_best_fixed_length(
    table: tuple[float, ...], draft: float, acceptance: float
) -> None:
    simulation = Simulation(table=table, draft=draft)
    simulation.ratio(8, 200, lambda position: acceptance)
    ratio = simulation.ratio(8, 200, lambda position: acceptance)
    assert 1 - ratio >= 0.75 * (1 - simulation.best_ratio(acceptance)) - 0.08


@pytest.mark.parametrize("prompt", [5, 400])
@pytest.mark.parametrize("draft", [0.05, 0.3, 1.5])
def test_useless_drafts_cost_at_most_three_percent(draft: float, prompt: int) -> None:
    simulation = Simulation(table=MEASURED, draft=draft)
    simulation.answer(500, lambda position: 0.0, prompt)
    assert simulation.ratio(20, 500, lambda position: 0.0, prompt) < 1.03


def test_a_draft_model_slower_than_its_target_is_only_probed() -> None:
    simulation = Simulation(table=MEASURED, draft=1.5)
    simulation.ratio(4, 500, lambda position: 1.0)
    assert simulation.ratio(4, 500, lambda position: 1.0) < 1.03
    assert 5 < simulation.num_drafted < 100


def test_drafting_resumes_when_drafts_are_accepted_again() -> None:
    simulation = Simulation(table=MEASURED, draft=0.1)
    simulation.answer(1000, lambda position: 0.0)
    assert simulation.ratio(1, 1000, lambda position: 0.9 * (position > 200)) < 0.85


def test_a_long_prompt_is_prefilled_for_drafts_only_when_the_answer_is_long() -> None:
    """The draft model's prefill of 1,500 tokens takes as long as 15 steps; drafts save less than a third of a step each."""
    simulation = Simulation(table=MEASURED, draft=0.1)
    for _ in range(5):
        simulation.answer(200, lambda position: 0.9)
    assert simulation.length.choose(5, 1, 1, 10) > 0
    assert simulation.length.choose(5, 1, 4000, 10) == 0
    assert simulation.length.choose(5, 1, 4000, 2000) > 0


def test_in_a_large_batch_rows_are_costly_and_less_is_drafted() -> None:
    table = (1.0, 1.02, 1.04, 1.06, *(float(rows) for rows in range(2, 12)))
    alone, shared = Simulation(table=table, draft=0.1), Simulation(table=table, draft=0.1, sharing=7)
    ratios = []
    for simulation in (alone, shared):
        simulation.ratio(10, 200, lambda position: 0.8)
        ratios.append(simulation.ratio(10, 200, lambda position: 0.8))
    assert ratios[0] < 0.6
    assert ratios[1] < 1.03
    assert shared.num_drafted < alone.num_drafted / 10


def test_forced_tokens_after_a_draft_count_as_rows() -> None:
    target, draft = StepCosts(), StepCosts()
    for rows in range(1, 33):
        target.record(rows, 0.1 * rows + 0.9)
    draft.record(1, 0.05)
    length = DraftLengthConfig().build(target, draft)
    for accepted in [True, False] * 40:
        length.observe(accepted)
    assert length.choose(5, 1, 1, 500) > 0
    short = length.choose(5, 1, 1, 500)
    for _ in range(100):
        length.observe_run(12)
    assert length.choose(5, 1, 1, 500) < short


def test_nothing_is_drafted_before_a_step_was_measured() -> None:
    length = DraftLengthConfig().build(StepCosts(), StepCosts())
    assert [length.choose(5, 1, 1, 0) for _ in range(10)] == [0] * 10


def test_with_a_given_cost_the_length_depends_on_the_acceptance_alone() -> None:
    length = DraftLengthConfig(cost=0.2).build(StepCosts(), StepCosts())
    for _ in range(60):
        length.observe(accepted=False)
    assert 10 <= sum(length.choose(5, 1, 1, 0) for _ in range(110)) <= 11, "one probe of cost 0.2 for every ten steps"
    for _ in range(60):
        length.observe(accepted=True)
    assert {length.choose(5, 1, 1, 0) for _ in range(20)} == {5}
    with pytest.raises(ConfigError, match="cost"):
        DraftLengthConfig(cost=0)
