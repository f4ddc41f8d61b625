"""Speculative decoding changes the number of steps only: not tokens, distribution, sequences or the end of an answer."""

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
from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.batching.step_costs import StepCosts
from openafm.runtime.decoding.draft_length import DraftLength, DraftLengthConfig
from openafm.runtime.decoding.generation import Finish, Summary, generate
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
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
    COMPILER.json_schema({"type": "array", "items": {"type": "string"}}),
]


# Drafts from the first token on, independent of measured times.
LENGTH = DraftLengthConfig(cost=0.2)


class RandomDraftLength(DraftLength):
    def choose(self, most: int, num_rows: int, num_unseen: int, position: int, sharing: float = 1.0) -> int:
        assert min(most, num_rows, num_unseen, sharing) >= 1
        return int(np.random.default_rng([4, position, most]).integers(0, most + 1))


@dataclass(frozen=True, kw_only=True)
class RandomDraftLengthConfig(DraftLengthConfig):
    def build(self, target: StepCosts, draft: StepCosts) -> DraftLength:
        return RandomDraftLength(None, target, draft)


LENGTHS = [LENGTH, DraftLengthConfig(), RandomDraftLengthConfig()]


class FaultyEngine(TorchEngine):
    """Counts steps and tokens, and fails at step `fails_at`."""

    num_steps = num_tokens = 0
    fails_at = -1

    def forward(self, chunks: List[TokenChunk]) -> list[NDArray[np.float32]]:
        if self.num_steps == self.fails_at:
            raise MemoryError
        self.num_steps += 1
        self.num_tokens += sum(len(chunk.tokens) for chunk in chunks)
        return super().forward(chunks)


class BigramEngine(Engine):
    """A fast model whose logits depend on the last token only."""

    class _Nothing(Cache):
        def __init__(self) -> None:
            self.last = 0

        def copy(self, length: int) -> BigramEngine._Nothing:
            return self

        def arrays(self) -> dict[str, NDArray[Any]]:
            return {}

        def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
            self.length = length

        def memory(self) -> dict[int, int]:
            return {}

    def __init__(self, seed: int, noise: float = 0.0, vocab_size: int = VOCAB_SIZE) -> None:
        super().__init__(vocab_size=vocab_size, context_length=CONTEXT_LENGTH, signature="bigrams")
        self.table_VV = np.random.default_rng(seed).normal(scale=2, size=(vocab_size, vocab_size)).astype(np.float32)
        self.table_VV += np.random.default_rng(seed + 1).normal(scale=noise, size=self.table_VV.shape).astype(np.float32)

    def _new_cache(self) -> Cache:
        return self._Nothing()

    def forward(self, chunks: List[TokenChunk]) -> list[NDArray[np.float32]]:
        return [self.table_VV[list(chunk.tokens)][len(chunk.tokens) - chunk.num_wanted :] for chunk in chunks]


@functools.cache
def decoder(seed: int, noise: float = 0.0) -> Decoder:
    """Return the model of this seed, with noise added to its embedding."""
    torch.set_num_threads(1)
    model = replace(CONFIGS["shared"], vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH).build(seed=seed)
    with torch.no_grad():
        model.embedding.normal_(std=0.4, generator=torch.Generator().manual_seed(seed))
        model.embedding += noise * torch.randn(model.embedding.shape, generator=torch.Generator().manual_seed(seed + 1))
    return model


def models(is_decoder: bool) -> tuple[Engine, list[Drafter]]:
    """Return a target and drafters that agree with it always, often, seldom and never: decoders or bigram models."""
    if is_decoder:
        decoders = [decoder(5), decoder(5, 0.05), decoder(5, 0.2), decoder(6)]
        return TorchEngine(decoder(5)), [
            Drafter(TorchEngine(model), length=length) for model in decoders for length in LENGTHS
        ]
    bigrams = [BigramEngine(0), BigramEngine(0, 0.5), BigramEngine(0, 3.0), BigramEngine(9)]
    return bigrams[0], [Drafter(engine, length=length) for engine in bigrams for length in LENGTHS]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The observable result of a generation, without its cost."""

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


def assert_cache_matches_tokens(engine: Engine, sequence: Sequence) -> None:
    """Check the cached keys and values: the sequence continues as a fresh one with the same tokens does."""
    if sequence.length == engine.context_length:
        engine.rollback(sequence, 1)
    (expected_V,) = engine.step([(engine.new_sequence(), [*sequence.tokens, 70])])
    (actual_V,) = engine.step([(sequence, [70])])
    assert np.abs(actual_V - expected_V).max() < 1e-4 * np.abs(expected_V).max()


@pytest.mark.parametrize("batch", [*range(4), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(4, 12))])
def test_random_conversations_are_the_same_with_and_without_drafts(batch: int) -> None:
    """One answer or two, the second after a rollback; some reach the context window."""
    engine, drafters = models(is_decoder=batch % 2 == 0)
    for case in range(25 if batch % 2 == 0 else 60):
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
                "closes": bool(chance.random() < 0.4),
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
            assert_cache_matches_tokens(engine, drafted)


@pytest.mark.parametrize("grammar", GRAMMARS[:3], ids=["free", "text", "json"])
def test_an_end_inside_a_draft_is_the_end(grammar: Grammar | None) -> None:
    """Token limits, stop tokens, cancellation and the context window, each inside a draft that is always accepted."""
    engine, drafter = TorchEngine(decoder(5)), Drafter(TorchEngine(decoder(5)), num_tokens=8, length=LENGTH)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=8), "grammar": grammar, "stop_tokens": {STOP}}
    whole, summary = outcome(engine, engine.new_sequence(), PROMPT, drafter, max_tokens=24, **options)
    assert summary is not None
    assert summary.num_accepted == summary.num_drafted > 0
    assert summary.num_target_steps < 0.5 * len(whole.tokens)

    def both(prompt: List[int] = PROMPT, **changes: Any) -> Outcome:
        results = []
        for choice in (None, drafter):
            seen: list[int] = []
            cancels = changes.get("cancels")
            sequence = engine.new_sequence()
            settings = {"max_tokens": 24} | options | {k: v for k, v in changes.items() if k != "cancels"}
            if cancels is None:
                results.append(outcome(engine, sequence, prompt, choice, **settings)[0])
                continue
            generation = generate(
                engine, sequence, prompt, drafter=choice, cancelled=lambda t=seen, c=cancels: len(t) >= c, **settings
            )
            seen.extend(event.token for event in generation)
            results.append(Outcome(tokens=seen, forced=[], end=generation.summary.finish, held=sequence.tokens.tolist()))
            assert_cache_matches_tokens(engine, sequence)
        assert results[0] == results[1]
        return results[1]

    for number in range(0, len(whole.tokens), 11):
        assert both(max_tokens=number).tokens[:number] == whole.tokens[:number]
        both(stop_tokens={STOP, whole.tokens[number]})
        both(cancels=number)
        both(prompt=(PROMPT * 20)[: CONTEXT_LENGTH - 1 - number])
        both(prompt=(PROMPT * 20)[: CONTEXT_LENGTH - 1 - number], max_tokens=number)


@pytest.mark.parametrize("failing", ["target", "draft"])
def test_a_failing_step_restores_the_sequence(failing: str) -> None:
    target, draft = FaultyEngine(decoder(5)), FaultyEngine(decoder(5, 0.2))
    drafter, broken = Drafter(draft, length=LENGTH), {"target": target, "draft": draft}[failing]
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


def test_closing_a_generation_inside_a_draft_restores_the_sequence() -> None:
    engine, drafter = TorchEngine(decoder(5)), Drafter(TorchEngine(decoder(5)), length=LENGTH)
    sequence = engine.new_sequence()
    generation = generate(
        engine, sequence, PROMPT, drafter=drafter, sampling=RandomConfig(seed=1), stop_tokens=(), max_tokens=30
    )
    for _ in range(4):
        next(generation)
    assert sequence.length > len(PROMPT) + 4
    generation.close()
    assert sequence.length == 0


def test_the_draft_model_computes_only_tokens_that_it_has_not_seen() -> None:
    target, draft = TorchEngine(decoder(5)), FaultyEngine(decoder(5))
    drafter, sequence = Drafter(draft, length=LENGTH), target.new_sequence()
    options: dict[str, Any] = {"sampling": RandomConfig(seed=1), "stop_tokens": (), "max_tokens": 10}
    target.step([(sequence, PROMPT)])
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


def test_the_draft_sequence_is_opened_at_the_first_draft_and_freed_with_the_targets() -> None:
    target, draft = TorchEngine(decoder(5)), TorchEngine(decoder(5))
    drafter, sequence = Drafter(draft, length=LENGTH), target.new_sequence()
    options: dict[str, Any] = {"sampling": GreedyConfig(), "stop_tokens": (), "max_tokens": 5}
    outcome(target, sequence, PROMPT, None, **options)
    assert len(drafter._followers) == 0
    outcome(target, sequence, PROMPT, drafter, **options)
    assert len(drafter._followers) == 1
    del sequence
    gc.collect()
    assert len(drafter._followers) == 0


def test_drafting_stops_at_the_draft_models_smaller_context_window() -> None:
    small = replace(CONFIGS["shared"], vocab_size=VOCAB_SIZE, context_length=len(PROMPT) + 12).build(seed=5)
    with torch.no_grad():
        small.load_state_dict(decoder(5).state_dict())
    target, drafter = TorchEngine(decoder(5)), Drafter(TorchEngine(small), length=LENGTH)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=3), "stop_tokens": (), "max_tokens": 40}
    expected, _ = outcome(target, target.new_sequence(), PROMPT, None, **options)
    actual, summary = outcome(target, target.new_sequence(), PROMPT, drafter, **options)
    assert actual == expected
    assert summary is not None


def test_a_draft_model_with_broken_weights_drafts_nothing() -> None:
    target, broken = BigramEngine(0), BigramEngine(0)
    broken.table_VV[:] = np.nan
    for sampling in (GreedyConfig(), RandomConfig(seed=3)):
        options: dict[str, Any] = {"sampling": sampling, "stop_tokens": (), "max_tokens": 20}
        expected, _ = outcome(target, target.new_sequence(), PROMPT, None, **options)
        actual, summary = outcome(target, target.new_sequence(), PROMPT, Drafter(broken, length=LENGTH), **options)
        assert actual == expected
        assert summary is not None
        assert summary.num_drafted == 0


class GivenCosts(StepCosts):
    """Fixed seconds for a step and for each of its rows, instead of measured ones."""

    def __init__(self, step: float, row: float) -> None:
        super().__init__()
        self._step, self._row = step, row

    def seconds(self, num_rows: int) -> float | None:
        return self._step + self._row * num_rows if num_rows else 0.0


def test_the_draft_length_is_learned_per_target() -> None:
    drafter, targets = Drafter(BigramEngine(0)), [BigramEngine(0), BigramEngine(0)]
    drafter.costs = GivenCosts(0.05, 0.001)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=0), "stop_tokens": (), "max_tokens": 80}
    for target in targets:
        target.costs = GivenCosts(1.0, 0.02)
    for _ in range(3000):
        drafter.length(targets[0]).observe(accepted=False)
    summaries = []
    for target in targets:
        expected, _ = outcome(target, target.new_sequence(), [70], None, **options)
        actual, summary = outcome(target, target.new_sequence(), [70], drafter, **options)
        assert actual == expected
        assert summary is not None
        summaries.append(summary)
    unlucky, fresh = summaries
    assert fresh.num_drafted == fresh.num_accepted > 0
    assert 1.5 * fresh.num_target_steps < unlucky.num_target_steps


def test_little_is_drafted_where_drafts_do_not_pay() -> None:
    target, drafter = BigramEngine(0), Drafter(BigramEngine(0))
    target.costs, drafter.costs = GivenCosts(0.0, 1.0), GivenCosts(0.05, 0.001)
    options: dict[str, Any] = {"sampling": RandomConfig(seed=0), "stop_tokens": (), "max_tokens": 80}
    drafted = 0
    for _ in range(5):
        _, summary = outcome(target, target.new_sequence(), [70], drafter, **options)
        assert summary is not None
        drafted += summary.num_drafted
    assert drafted <= 10


def test_another_vocabulary_and_zero_drafts_are_refused() -> None:
    target = TorchEngine(decoder(5))
    drafter = Drafter(BigramEngine(0, vocab_size=VOCAB_SIZE - 1), length=LENGTH)
    with pytest.raises(DraftMismatchError, match=f"{VOCAB_SIZE - 1}.*{VOCAB_SIZE}"):
        generate(target, target.new_sequence(), PROMPT, drafter=drafter, sampling=GreedyConfig(), stop_tokens=())
    with pytest.raises(DraftMismatchError):
        Drafter(target, num_tokens=0)


def test_a_poor_draft_model_drafts_little() -> None:
    engine, drafter = BigramEngine(0), Drafter(BigramEngine(50), length=LENGTH)
    _, summary = outcome(
        engine, engine.new_sequence(), [70], drafter, sampling=RandomConfig(seed=0), stop_tokens=(), max_tokens=90
    )
    assert summary is not None
    assert summary.num_accepted < 10
    assert summary.num_drafted < 45


def answers(engine: Engine, drafter: Drafter | None, seeds: range, **options: Any) -> tuple[Counter[tuple[int, ...]], float]:
    """Return how often each answer was generated, and the acceptance."""
    counts: Counter[tuple[int, ...]] = Counter()
    drafted = accepted = 0
    for seed in seeds:
        sampling = RandomConfig(seed=seed, **options["sampling"])
        generation = generate(
            engine, engine.new_sequence(), [70], sampling=sampling, drafter=drafter, stop_tokens=(), max_tokens=3,
            grammar=options["grammar"],
        )  # fmt: skip
        counts[tuple(event.token for event in generation)] += 1
        drafted, accepted = drafted + generation.summary.num_drafted, accepted + generation.summary.num_accepted
    return counts, accepted / max(drafted, 1)


@pytest.mark.parametrize(
    ("noise", "sampling"),
    [
        pytest.param(0.3, {"temperature": 1.0}, marks=pytest.mark.slow),
        pytest.param(1.0, {"temperature": 0.8, "top_k": 6}, marks=pytest.mark.slow),
        (4.0, {"temperature": 1.5, "top_p": 0.7}),
    ],
    ids=str,
)
def test_drafted_answers_have_the_distribution_of_plain_ones(noise: float, sampling: dict[str, Any]) -> None:
    """Chi-square test of two samples of three-token answers under a mask, drawn with different seeds."""
    engine, drafter = BigramEngine(0), Drafter(BigramEngine(0, noise), length=LENGTH)
    options = {"sampling": sampling, "grammar": COMPILER.json_schema({"type": "string", "pattern": "^[a-d]{2,3}$"})}
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


def test_the_same_seed_gives_the_same_answer_with_any_draft_model() -> None:
    engine = BigramEngine(0)
    options: dict[str, Any] = {"sampling": {"temperature": 1.2}, "grammar": None}
    plain, _ = answers(engine, None, range(100), **options)
    for noise in (0.0, 0.5, 3.0):
        assert answers(engine, Drafter(BigramEngine(0, noise), length=LENGTH), range(100), **options)[0] == plain
