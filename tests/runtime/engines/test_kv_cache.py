"""Any history of steps, rollbacks, forks, snapshots and closings equals a full pass over the tokens; layers with
windows drop keys and values, which are recomputed when needed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray
from tiny_engines import CONFIGS, CONTEXT_LENGTH, VOCAB_SIZE, assert_close, engine, full_logits, random_tokens

from openafm.models.config import DecoderConfig
from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.decoding.draft_length import DraftLengthConfig
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.decoding.speculation import Drafter
from openafm.runtime.engines import kv_cache
from openafm.runtime.engines.base import Engine, Sequence
from openafm.runtime.engines.torch_engine import TorchEngine

LEAST_SLACK = kv_cache._LEAST_SLACK
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20)


class Histories(RuleBasedStateMachine):
    """Sequences of an engine and their expected tokens."""

    engine: Engine
    name: str

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Sequence, list[int]]] = []

    @initialize(name=st.sampled_from(sorted(CONFIGS)), slack=st.sampled_from([1, 7, LEAST_SLACK]))
    def open(self, name: str, slack: int) -> None:
        """Little slack, so that windows drop positions within these models' short contexts; or the engines' default."""
        kv_cache._LEAST_SLACK = slack
        self.engine, self.name = engine(name), name
        self.new()

    def teardown(self) -> None:
        kv_cache._LEAST_SLACK = LEAST_SLACK

    @rule()
    def new(self) -> None:
        if len(self.held) < 4:
            self.held.append((self.engine.new_sequence(), []))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), logits=st.sampled_from(["last", "all"]))
    def step(self, data: st.DataObject, logits: str) -> None:
        chosen = data.draw(st.lists(st.sampled_from(range(len(self.held))), min_size=1, unique=True))
        batch = [(index, data.draw(TOKENS)) for index in chosen]
        batch = [(index, new) for index, new in batch if len(self.held[index][1]) + len(new) <= CONTEXT_LENGTH]
        outputs = self.engine.step([(self.held[index][0], new) for index, new in batch], logits)
        for (index, new), output in zip(batch, outputs, strict=True):
            tokens = self.held[index][1]
            tokens += new
            full = full_logits(self.name, tokens)
            assert_close(output, full[-1] if logits == "last" else full[-len(new) :])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        sequence, tokens = data.draw(st.sampled_from(self.held))
        count = data.draw(st.integers(0, len(tokens)))
        self.engine.rollback(sequence, count)
        del tokens[len(tokens) - count :]

    @precondition(lambda self: 0 < len(self.held) < 4)
    @rule(data=st.data(), through_bytes=st.booleans())
    def copy(self, data: st.DataObject, through_bytes: bool) -> None:
        sequence, tokens = data.draw(st.sampled_from(self.held))
        copied = self.engine.restore(self.engine.snapshot(sequence)) if through_bytes else self.engine.fork(sequence)
        self.held.append((copied, list(tokens)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(range(len(self.held))))
        self.engine.close(self.held.pop(index)[0])

    @invariant()
    def lengths_agree(self) -> None:
        assert all(sequence.length == len(tokens) for sequence, tokens in self.held)


Histories.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestHistories = Histories.TestCase


LONG = 700
WINDOWED = dataclasses.replace(CONFIGS["windows"], context_length=LONG)
FULL_WINDOW = 5 - 1 + 2 * LEAST_SLACK  # the widest window that reads the first layer, the slack and the free capacity


class Counting(TorchEngine):
    """Counts computed tokens, and fails on request."""

    def __init__(self, config: DecoderConfig) -> None:
        torch.set_num_threads(1)
        super().__init__(config.build(seed=3).eval())
        self.num_computed = 0
        self.fails_at: int | None = None

    def forward(self, chunks: list[TokenChunk]) -> list[NDArray[np.float32]]:
        outputs = super().forward(chunks)
        self.num_computed += sum(len(chunk.tokens) for chunk in chunks)
        if self.fails_at is not None and self.num_computed > self.fails_at:
            raise MemoryError
        return outputs


def filled(engine: Engine, tokens: list[int]) -> Sequence:
    """Return a sequence that was filled in several steps."""
    sequence = engine.new_sequence()
    for start in range(0, len(tokens), 10):
        engine.step([(sequence, tokens[start : start + 10])])
    return sequence


def expected_logits(engine: TorchEngine, tokens: list[int]) -> NDArray[np.float32]:
    with torch.no_grad():
        return engine.decoder(torch.tensor([tokens]))[0].numpy()


@pytest.mark.parametrize("counts", [[1] * 300, [17] * 41, [LONG - 1, 1]])
def test_the_memory_of_a_window_is_bounded(counts: list[int]) -> None:
    engine, tokens = Counting(WINDOWED), random_tokens(sum(counts))
    sequence, start = engine.new_sequence(), 0
    for count in counts:
        (logits_V,) = engine.step([(sequence, tokens[start : start + count])])
        start += count
    assert_close(logits_V, expected_logits(engine, tokens)[-1])
    windowed, whole = sequence.cache.layers[0], sequence.cache.layers[1]
    assert windowed.keys_KPC.shape[1] == FULL_WINDOW
    assert whole.keys_KPC.shape[1] >= sum(counts) - 5
    assert sequence.cache.num_bytes == sum(2 * t.nbytes for t in (windowed.keys_KPC, whole.keys_KPC))


def test_attention_reads_keys_without_a_copy() -> None:
    sequence = filled(Counting(WINDOWED), random_tokens(300))
    stored = sequence.cache.layers[0]
    assert stored.start > 0
    keys_KLC, _ = stored.read(295, 300)
    assert keys_KLC.data_ptr() == stored.keys_KPC[:, 295 - stored.start].data_ptr()
    assert keys_KLC.stride() == stored.keys_KPC.stride()


@pytest.mark.parametrize("num_back", [1, 32, LEAST_SLACK - 1])
def test_a_rollback_within_the_slack_recomputes_nothing(num_back: int) -> None:
    engine, tokens = Counting(WINDOWED), random_tokens(500)
    sequence = filled(engine, tokens)
    engine.num_computed = 0
    engine.rollback(sequence, num_back)
    (logits_V,) = engine.step([(sequence, [7])])
    assert engine.num_computed == 1
    assert_close(logits_V, expected_logits(engine, [*tokens[: 500 - num_back], 7])[-1])


def test_a_rollback_of_any_length_equals_a_full_pass() -> None:
    engine, tokens = Counting(WINDOWED), random_tokens(300)
    full_NV = expected_logits(engine, tokens)
    sequence = filled(engine, tokens)
    for num_back in range(1, 160, 3):
        copied = engine.fork(sequence)
        engine.rollback(copied, num_back)
        (logits_V,) = engine.step([(copied, [tokens[300 - num_back]])])
        assert_close(logits_V, full_NV[300 - num_back])


@pytest.mark.parametrize("then", ["step", "fork", "snapshot", "roll back again", "roll back to nothing"])
def test_a_rollback_beyond_the_slack_recomputes_the_sequence(then: str) -> None:
    engine, tokens = Counting(WINDOWED), random_tokens(560)
    sequence = filled(engine, tokens)
    engine.num_computed = 0
    engine.rollback(sequence, 100)
    engine.rollback(sequence, 40)
    del tokens[420:]
    assert (sequence.length, engine.num_computed) == (420, 0)
    if then == "fork":
        sequence = engine.fork(sequence)
    elif then == "snapshot":
        sequence = engine.restore(engine.snapshot(sequence))
    elif then == "roll back again":
        engine.rollback(sequence, 200)
        del tokens[220:]
    elif then == "roll back to nothing":
        engine.rollback(sequence, 420)
        tokens = []
    (logits_V,) = engine.step([(sequence, [7, 8])])
    assert_close(logits_V, expected_logits(engine, [*tokens, 7, 8])[-1])
    assert sequence.tokens.tolist() == [*tokens, 7, 8]
    assert engine.num_computed == len(tokens) + 2
    (logits_NV,) = engine.step([(sequence, [9])], "all")
    assert_close(logits_NV, expected_logits(engine, [*tokens, 7, 8, 9])[-1:])


def test_a_batch_with_sequences_to_recompute() -> None:
    engine = Counting(WINDOWED)
    held = {filled(engine, random_tokens(count)): random_tokens(count) for count in (250, 400, 30)}
    for sequence, num_back in zip(held, (200, 2, 30), strict=True):
        engine.rollback(sequence, num_back)
        del held[sequence][len(held[sequence]) - num_back :]
    outputs = engine.step([(sequence, [3, 4]) for sequence in held], "all")
    for logits_NV, tokens in zip(outputs, held.values(), strict=True):
        assert_close(logits_NV, expected_logits(engine, [*tokens, 3, 4])[-2:])


def test_a_failing_recomputation_leaves_the_sequence_unchanged() -> None:
    engine, tokens = Counting(WINDOWED), random_tokens(690)
    sequence = filled(engine, tokens)
    engine.rollback(sequence, 140)
    for num_allowed in (0, 512):  # in the first chunk, then in the second
        engine.num_computed, engine.fails_at = 0, num_allowed
        with pytest.raises(MemoryError):
            engine.step([(sequence, [7])])
        assert sequence.tokens.tolist() == tokens[:550]
    engine.fails_at = None
    (logits_V,) = engine.step([(sequence, [7])])
    assert_close(logits_V, expected_logits(engine, [*tokens[:550], 7])[-1])


def test_speculative_decoding_never_recomputes() -> None:
    """Drafts of a model with other weights are often rejected, so the sequence is rolled back after most steps."""
    engine, drafter = Counting(WINDOWED), Counting(dataclasses.replace(WINDOWED, layers=WINDOWED.layers[:2]))
    sequence = engine.new_sequence()
    generation = generate(
        engine,
        sequence,
        random_tokens(200),
        sampling=GreedyConfig(),
        stop_tokens=[],
        max_tokens=50,
        drafter=Drafter(drafter, num_tokens=8, length=DraftLengthConfig(cost=1e-6)),
    )
    answer = [event.token for event in generation]
    assert generation.summary.num_accepted < generation.summary.num_drafted
    assert engine.num_computed <= 200 + 50 + generation.summary.num_drafted
    alone = generate(
        engine, engine.new_sequence(), random_tokens(200), sampling=GreedyConfig(), stop_tokens=[], max_tokens=50
    )
    assert answer == [event.token for event in alone]
