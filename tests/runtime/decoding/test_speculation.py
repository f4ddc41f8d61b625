"""Drafting changes the number of steps and nothing else: not the tokens, the law, the sequence, nor how an answer ends."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_engines import CONFIGS
from tiny_tokenizer import TOKENIZER

from openafm.models.decoder import Decoder
from openafm.runtime.batching.pending import Piece
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.decoding.generation import Finish, Summary, generate
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.pace import GivenPace, GivenPaceConfig, Pace, PaceConfig, TimedPaceConfig
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.decoding.speculation import Drafter, DraftMismatchError
from openafm.runtime.engines.base import Cache, ContextWindowError, Engine, Sequence
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import SPECIAL_TOKENS

STOP = SPECIAL_TOKENS.turn_end
VOCAB_SIZE = TOKENIZER.vocab_size + 7
CONTEXT_LENGTH = 96
COMPILER = GrammarCompiler(TOKENIZER)
PROMPT = TOKENIZER.encode("the meeting starts at noon")
CALLS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"enum": ["open", "closed"]}, "city": {"type": "string", "maxLength": 5}},
        "required": ["name", "city"],
        "additionalProperties": False,
    },
    "minItems": 1,
    "maxItems": 2,
}
GRAMMARS: List[Grammar | None] = [
    None,
    COMPILER.text(),
    COMPILER.json_schema(CALLS),
    COMPILER.json_schema({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4}),
    COMPILER.json_schema({"const": ["title", "celsius"]}),
]


# Drafts from the first token on and however long steps take here, so that there is something to see.
PACE = GivenPaceConfig(cost=0.2)


class ErraticPace(GivenPace):
    """Drafts and drops what it drafted at random."""

    def __init__(self, seed: int) -> None:
        super().__init__(cost=0.2)
        self._chance = np.random.default_rng(seed)

    def aim(self, most: int, num_rows: int, num_waiting: int, position: int) -> int:
        assert min(most, num_rows, num_waiting) >= 1
        return int(self._chance.integers(0, most + 1))

    def worth(self, num_rows: int, runs: List[int]) -> int:
        return int(self._chance.integers(0, len(runs) + 1))


@dataclass(frozen=True, kw_only=True)
class ErraticPaceConfig(PaceConfig):
    seed: int

    def build(self, target: StepCosts, draft: StepCosts) -> Pace:
        return ErraticPace(self.seed)


PACES = [PACE, TimedPaceConfig(), ErraticPaceConfig(seed=4)]


class FaultyEngine(TorchEngine):
    """Counts tokens and may be told to fail at a step."""

    num_steps = num_tokens = 0
    fails_at = -1

    def _forward(self, pieces: List[Piece]) -> list[NDArray[np.float32]]:
        if self.num_steps == self.fails_at:
            raise MemoryError
        self.num_steps += 1
        self.num_tokens += sum(len(piece.tokens) for piece in pieces)
        return super()._forward(pieces)


class BigramEngine(Engine):
    """Logits that the last token alone decides: thousands of answers in seconds."""

    class _Nothing(Cache):
        def __init__(self) -> None:
            self.last = 0

        def copy(self) -> BigramEngine._Nothing:
            return self

        def arrays(self) -> dict[str, NDArray[Any]]:
            return {}

        def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
            self.length = length

        def memory(self) -> Mapping[int, int]:
            return {}

    def __init__(self, seed: int, noise: float = 0.0, vocab_size: int = VOCAB_SIZE) -> None:
        super().__init__(vocab_size=vocab_size, context_length=CONTEXT_LENGTH, signature="bigrams")
        self.table_VV = np.random.default_rng(seed).normal(scale=2, size=(vocab_size, vocab_size)).astype(np.float32)
        self.table_VV += np.random.default_rng(seed + 1).normal(scale=noise, size=self.table_VV.shape).astype(np.float32)

    def _new_cache(self) -> Cache:
        return self._Nothing()

    def _forward(self, pieces: List[Piece]) -> list[NDArray[np.float32]]:
        return [self.table_VV[list(piece.tokens)][len(piece.tokens) - piece.num_wanted :] for piece in pieces]


@functools.cache
def decoder(seed: int, noise: float = 0.0) -> Decoder:
    """Model number `seed`, or one that is like it, the less so the more noise."""
    torch.set_num_threads(1)
    model = replace(CONFIGS["shared"], vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH).build(seed=seed)
    with torch.no_grad():
        model.embedding.normal_(std=0.4, generator=torch.Generator().manual_seed(seed))
        model.embedding += noise * torch.randn(model.embedding.shape, generator=torch.Generator().manual_seed(seed + 1))
    return model


def models(is_decoder: bool) -> tuple[Engine, list[Drafter]]:
    """A target, and drafts that are the same model, alike, unlike and another one: decoders, or bigrams, which are quick."""
    if is_decoder:
        decoders = [decoder(5), decoder(5, 0.05), decoder(5, 0.2), decoder(6)]
        return TorchEngine(decoder(5)), [Drafter(TorchEngine(model), pace=pace) for model in decoders for pace in PACES]
    bigrams = [BigramEngine(0), BigramEngine(0, 0.5), BigramEngine(0, 3.0), BigramEngine(9)]
    return bigrams[0], [Drafter(engine, pace=pace) for engine in bigrams for pace in PACES]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that can be seen of an answer but its cost."""

    tokens: list[int]
    forced: list[bool]
    end: Finish | type[Exception]
    held: list[int]


def outcome(
    engine: Engine, sequence: Sequence, prompt: List[int], drafter: Drafter | None, **options: Any
) -> tuple[Outcome, Summary | None]:
    generation = generate(engine, sequence, prompt, drafter=drafter, **options)
    events, end, summary = [], ContextWindowError, None
    try:
        for event in generation:
            events.append(event)
        summary = generation.summary
        end = summary.finish
    except ContextWindowError:
        pass
    tokens = [event.token for event in events]
    held = sequence.tokens.tolist()
    return Outcome(tokens=tokens, forced=[event.is_forced for event in events], end=end, held=held), summary


def assert_holds_what_it_says(engine: Engine, sequence: Sequence) -> None:
    """Its keys and values are those of its tokens: it goes on as a fresh one of these tokens does."""
    if sequence.length == engine.context_length:
        engine.rollback(sequence, 1)
    (expected_V,) = engine.step([(engine.new_sequence(), [*sequence.tokens, 70])])
    (actual_V,) = engine.step([(sequence, [70])])
    assert np.abs(actual_V - expected_V).max() < 1e-4 * np.abs(expected_V).max()


@pytest.mark.parametrize("batch", range(20))
def test_a_thousand_random_conversations_are_the_same_with_and_without_a_draft(batch: int) -> None:
    """One answer or two, the second after a rollback; some reach the context window."""
    engine, drafters = models(is_decoder=batch % 2 == 0)
    for case in range(50):
        chance = np.random.default_rng([batch, case])
        drafter = drafters[chance.integers(len(drafters))]
        drafter.num_tokens = int(chance.integers(1, 8))
        plain, drafted = engine.new_sequence(), engine.new_sequence()
        for _ in range(1 + (chance.random() < 0.3)):
            sampling: SamplingConfig = GreedyConfig()
            if chance.random() < 0.6:
                top_k, top_p = [(None, None), (5, None), (None, 0.8), (20, 0.9)][chance.integers(4)]
                temperature = float(chance.uniform(0.3, 2))
                sampling = RandomConfig(
                    seed=int(chance.integers(1 << 30)), temperature=temperature, top_k=top_k, top_p=top_p
                )
            room = CONTEXT_LENGTH - plain.length
            num_prompt = room - int(chance.integers(1, 9)) if chance.random() < 0.1 else int(chance.integers(1, 12))
            prompt = chance.integers(20, VOCAB_SIZE, size=max(num_prompt, 1)).tolist()
            if len(prompt) >= room:
                break
            options = {
                "sampling": sampling,
                "grammar": GRAMMARS[chance.integers(len(GRAMMARS))],
                "stop_tokens": {STOP, *chance.integers(20, VOCAB_SIZE, size=chance.integers(0, 12)).tolist()},
                "max_tokens": [None, int(chance.integers(0, 14))][int(chance.random() < 0.95)],
            }
            expected, plain_summary = outcome(engine, plain, prompt, None, **options)
            actual, summary = outcome(engine, drafted, prompt, drafter, **options)
            assert actual == expected, (batch, case)
            if summary is not None and plain_summary is not None:
                assert summary.num_target_steps <= plain_summary.num_target_steps
                assert summary.num_target_steps >= plain_summary.num_target_steps - summary.num_accepted
                assert summary.num_tokens == plain_summary.num_tokens
            num_taken_back = int(chance.integers(0, drafted.length + 1))
            for sequence in (plain, drafted):
                engine.rollback(sequence, num_taken_back)
        if case % 10 == 0 and isinstance(engine, TorchEngine):
            assert_holds_what_it_says(engine, drafted)


@pytest.mark.parametrize("grammar", GRAMMARS[:3], ids=["free", "text", "json"])
def test_an_end_inside_a_draft_is_the_end(grammar: Grammar | None) -> None:
    """Every token limit, stop token, cancellation and room, with a draft that is always right and so goes beyond."""
    engine, drafter = TorchEngine(decoder(5)), Drafter(TorchEngine(decoder(5)), num_tokens=8, pace=PACE)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=8), "grammar": grammar, "stop_tokens": {STOP}}
    whole, summary = outcome(engine, engine.new_sequence(), PROMPT, drafter, max_tokens=24, **options)
    assert summary is not None
    assert summary.num_accepted == summary.num_drafted > 0
    assert summary.num_target_steps < 0.5 * len(whole.tokens)

    def both(prompt: List[int] = PROMPT, **changes: Any) -> Outcome:
        results = []
        for choice in (None, drafter):
            told: list[int] = []
            cancels = changes.get("cancels")
            sequence = engine.new_sequence()
            settings = {"max_tokens": 24} | options | {k: v for k, v in changes.items() if k != "cancels"}
            if cancels is None:
                results.append(outcome(engine, sequence, prompt, choice, **settings)[0])
                continue
            generation = generate(
                engine, sequence, prompt, drafter=choice, cancelled=lambda t=told, c=cancels: len(t) >= c, **settings
            )
            told += [event.token for event in _noted(generation, told)]
            results.append(Outcome(tokens=told, forced=[], end=generation.summary.finish, held=sequence.tokens.tolist()))
            assert_holds_what_it_says(engine, sequence)
        assert results[0] == results[1]
        return results[1]

    for number in range(0, len(whole.tokens), 3):
        assert both(max_tokens=number).tokens[:number] == whole.tokens[:number]
        both(stop_tokens={STOP, whole.tokens[number]})
        both(cancels=number)
        both(prompt=(PROMPT * 20)[: CONTEXT_LENGTH - 1 - number])
        both(prompt=(PROMPT * 20)[: CONTEXT_LENGTH - 1 - number], max_tokens=number)


def _noted(generation: Any, told: list[int]) -> Any:
    for event in generation:
        told.append(event.token)
    return ()


@pytest.mark.parametrize("failing", ["target", "draft"])
def test_a_failure_in_the_middle_leaves_everything_as_it_was(failing: str) -> None:
    target, draft = FaultyEngine(decoder(5)), FaultyEngine(decoder(5, 0.2))
    drafter, broken = Drafter(draft, pace=PACE), {"target": target, "draft": draft}[failing]
    options: dict[str, Any] = {
        "sampling": RandomConfig(seed=2),
        "stop_tokens": {STOP},
        "max_tokens": 20,
        "grammar": COMPILER.text(),
    }
    expected, _ = outcome(target, target.new_sequence(), PROMPT, None, **options)
    sequence = target.new_sequence()
    target.step([(sequence, PROMPT[:2])])
    for fails_at in range(4):
        broken.num_steps, broken.fails_at = 0, fails_at
        with pytest.raises(MemoryError):
            list(generate(target, sequence, PROMPT[2:], drafter=drafter, **options))
        broken.fails_at = -1
        assert sequence.tokens.tolist() == PROMPT[:2]
    actual, _ = outcome(target, sequence, PROMPT[2:], drafter, **options)
    assert actual.tokens == expected.tokens
    assert actual.held == expected.held


def test_given_up_in_the_middle_of_a_draft_it_leaves_the_sequence_as_it_was() -> None:
    engine, drafter = TorchEngine(decoder(5)), Drafter(TorchEngine(decoder(5)), pace=PACE)
    sequence = engine.new_sequence()
    generation = generate(
        engine, sequence, PROMPT, drafter=drafter, sampling=RandomConfig(seed=1), stop_tokens=(), max_tokens=30
    )
    for _ in range(4):
        next(generation)
    assert sequence.length > len(PROMPT) + 4
    generation.close()
    assert sequence.length == 0


def test_the_draft_model_follows_the_target_and_computes_no_token_twice() -> None:
    target, draft = TorchEngine(decoder(5)), FaultyEngine(decoder(5))
    drafter, sequence = Drafter(draft, pace=PACE), target.new_sequence()
    options: dict[str, Any] = {"sampling": RandomConfig(seed=1), "stop_tokens": (), "max_tokens": 10}
    target.step([(sequence, PROMPT)])  # by somebody else
    outcome(target, sequence, [70], drafter, **options)
    assert draft.num_tokens < len(PROMPT) + 1 + 10
    draft.num_tokens = 0
    target.rollback(sequence, 6)
    outcome(target, sequence, [71, 72], drafter, **options)
    assert draft.num_tokens <= 2 + 10
    restored = target.restore(target.snapshot(sequence))
    assert restored.tokens == sequence.tokens
    draft.num_tokens = 0
    outcome(target, restored, [71, 72], drafter, **options)
    assert draft.num_tokens >= sequence.length


def test_a_sequence_costs_the_draft_model_nothing_before_and_after() -> None:
    target, draft = TorchEngine(decoder(5)), TorchEngine(decoder(5))
    drafter, sequence = Drafter(draft, pace=PACE), target.new_sequence()
    options: dict[str, Any] = {"sampling": GreedyConfig(), "stop_tokens": (), "max_tokens": 5}
    outcome(target, sequence, PROMPT, None, **options)
    assert len(drafter._followers) == 0
    outcome(target, sequence, PROMPT, drafter, **options)
    assert len(drafter._followers) == 1
    del sequence
    gc.collect()
    assert len(drafter._followers) == 0


def test_a_context_window_smaller_than_the_targets_ends_the_drafting_and_not_the_answer() -> None:
    small = replace(CONFIGS["shared"], vocab_size=VOCAB_SIZE, context_length=len(PROMPT) + 12).build(seed=5)
    with torch.no_grad():
        small.load_state_dict(decoder(5).state_dict())
    target, drafter = TorchEngine(decoder(5)), Drafter(TorchEngine(small), pace=PACE)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=3), "stop_tokens": (), "max_tokens": 40}
    expected, _ = outcome(target, target.new_sequence(), PROMPT, None, **options)
    actual, summary = outcome(target, target.new_sequence(), PROMPT, drafter, **options)
    assert actual == expected
    assert summary is not None


def test_a_draft_model_of_broken_weights_drafts_nothing_and_changes_nothing() -> None:
    target, broken = BigramEngine(0), BigramEngine(0)
    broken.table_VV[:] = np.nan
    for sampling in (GreedyConfig(), RandomConfig(seed=3)):
        options: dict[str, Any] = {"sampling": sampling, "stop_tokens": (), "max_tokens": 20}
        expected, _ = outcome(target, target.new_sequence(), PROMPT, None, **options)
        actual, summary = outcome(target, target.new_sequence(), PROMPT, Drafter(broken, pace=PACE), **options)
        assert actual == expected
        assert summary is not None
        assert summary.num_drafted == 0


class GivenCosts(StepCosts):
    """So long for a step and so long for each row, whatever was measured."""

    def __init__(self, step: float, row: float) -> None:
        super().__init__()
        self._step, self._row = step, row

    def seconds(self, num_rows: int) -> float | None:
        return self._step + self._row * num_rows if num_rows else 0.0


def test_what_was_learned_in_one_answer_serves_the_next_of_the_same_target() -> None:
    """Where drafts save time they begin at once in a second answer, and not with another target."""
    drafter, targets = Drafter(BigramEngine(0)), [BigramEngine(0), BigramEngine(0)]
    drafter.costs = GivenCosts(0.05, 0.001)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=0), "stop_tokens": (), "max_tokens": 80}
    summaries = []
    for target in (targets[0], targets[0], targets[1]):
        target.costs = GivenCosts(1.0, 0.02)
        expected, _ = outcome(target, target.new_sequence(), [70], None, **options)
        actual, summary = outcome(target, target.new_sequence(), [70], drafter, **options)
        assert actual == expected
        assert summary is not None
        summaries.append(summary)
    first, second, other = summaries
    assert first.num_drafted == first.num_accepted > 0
    assert second.num_target_steps < 20 < first.num_target_steps == other.num_target_steps < 80
    assert drafter.pace(targets[0]) is drafter.pace(targets[0]) is not drafter.pace(targets[1])


def test_where_drafts_cost_more_than_they_save_nothing_is_drafted() -> None:
    target, drafter = BigramEngine(0), Drafter(BigramEngine(0))
    target.costs, drafter.costs = GivenCosts(0.0, 1.0), GivenCosts(0.05, 0.001)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=0), "stop_tokens": (), "max_tokens": 80}
    drafted = 0
    for _ in range(5):
        _, summary = outcome(target, target.new_sequence(), [70], drafter, **options)
        assert summary is not None
        drafted += summary.num_drafted
    assert drafted <= 10


def test_another_vocabulary_and_no_drafts_at_all_are_refused() -> None:
    target = TorchEngine(decoder(5))
    drafter = Drafter(BigramEngine(0, vocab_size=VOCAB_SIZE - 1), pace=PACE)
    with pytest.raises(DraftMismatchError, match=f"{VOCAB_SIZE - 1}.*{VOCAB_SIZE}"):
        generate(target, target.new_sequence(), PROMPT, drafter=drafter, sampling=GreedyConfig(), stop_tokens=())
    with pytest.raises(DraftMismatchError):
        Drafter(target, num_tokens=0)


def test_a_poor_draft_costs_few_drafts() -> None:
    engine, drafter = BigramEngine(0), Drafter(BigramEngine(50), pace=PACE)
    _, summary = outcome(
        engine, engine.new_sequence(), [70], drafter, sampling=RandomConfig(seed=0), stop_tokens=(), max_tokens=90
    )
    assert summary is not None
    assert summary.num_accepted < 10
    assert summary.num_drafted < 45


LAWS = [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 6}, {"temperature": 1.5, "top_p": 0.7}]


def answers(engine: Engine, drafter: Drafter | None, seeds: range, **options: Any) -> tuple[Counter[tuple[int, ...]], float]:
    """How often each answer came, and the acceptance."""
    counts: Counter[tuple[int, ...]] = Counter()
    drafted = accepted = 0
    for seed in seeds:
        sampling = RandomConfig(seed=seed, **options["law"])
        generation = generate(
            engine, engine.new_sequence(), [70], sampling=sampling, drafter=drafter, stop_tokens=(), max_tokens=3,
            grammar=options["grammar"],
        )  # fmt: skip
        counts[tuple(event.token for event in generation)] += 1
        drafted, accepted = drafted + generation.summary.num_drafted, accepted + generation.summary.num_accepted
    return counts, accepted / max(drafted, 1)


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    "law", [{"temperature": 1.0}, {"temperature": 0.8, "top_k": 6}, {"temperature": 1.5, "top_p": 0.7}], ids=str
)
@pytest.mark.parametrize("pattern", ["[a-d]{2,3}"])
def test_drafted_samples_follow_the_law_of_plain_ones(noise: float, law: dict[str, Any], pattern: str) -> None:
    """Chi-square of two samples of three-token answers under a mask, drawn with other seeds."""
    engine, drafter = BigramEngine(0), Drafter(BigramEngine(0, noise), pace=PACE)
    options = {"law": law, "grammar": COMPILER.json_schema({"type": "string", "pattern": f"^{pattern}$"})}
    count = 1000
    plain, _ = answers(engine, None, range(count), **options)
    drafted, acceptance = answers(engine, drafter, range(10_000, 10_000 + count), **options)
    assert acceptance > {0.3: 0.8, 1.0: 0.6, 4.0: 0.2}[noise]
    frequent = [answer for answer in plain | drafted if plain[answer] + drafted[answer] >= 10]
    table = np.array([[sample[answer] for answer in frequent] for sample in (plain, drafted)], float)
    table = np.append(table, [[count - table[0].sum()], [count - table[1].sum()]], axis=1)
    table = table[:, table.sum(0) > 0]
    statistic = ((table[0] - table[1]) ** 2 / table.sum(0)).sum()
    freedom = torch.tensor(table.shape[1] - 1.0)
    assert torch.special.gammaincc(freedom / 2, torch.tensor(statistic / 2)) > 1e-4


def test_the_same_seed_gives_the_same_answer_whatever_drafts() -> None:
    engine = BigramEngine(0)
    options: dict[str, Any] = {"law": {"temperature": 1.2}, "grammar": None}
    plain, _ = answers(engine, None, range(200), **options)
    for noise in (0.0, 0.5, 3.0):
        assert answers(engine, Drafter(BigramEngine(0, noise), pace=PACE), range(200), **options)[0] == plain
