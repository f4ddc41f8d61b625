"""Any history of steps, rollbacks, forks, snapshots and closings gives what a full pass over the tokens gives."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiny_engines import CONFIGS, CONTEXT_LENGTH, VOCAB_SIZE, assert_close, engine, full_logits

from openafm.runtime.engine import Engine, Sequence

TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20)


class Histories(RuleBasedStateMachine):
    """Sequences of an engine beside the tokens that they should hold."""

    engine: Engine
    name: str

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Sequence, list[int]]] = []

    @initialize(name=st.sampled_from(sorted(CONFIGS)))
    def open(self, name: str) -> None:
        self.engine, self.name = engine(name), name
        self.new()

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


Histories.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestHistories = Histories.TestCase
