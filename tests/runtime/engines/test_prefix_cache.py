"""The prefix cache: whatever is stored, evicted and found, every sequence equals a fresh one."""

from __future__ import annotations

import threading
from collections.abc import Sequence as List

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiny_engines import CONTEXT_LENGTH, ONE_OF_EACH, TINY, Tiny, assert_close, random_tokens

from openafm.runtime.engines.base import Engine, Sequence
from openafm.runtime.engines.cache_limits import CacheLimitError
from openafm.runtime.engines.prefix_cache import (
    DEFAULT_MB,
    LEAST_TOKENS,
    LIMIT,
    PrefixCache,
    prefix_cache_bytes,
)
from openafm.runtime.native.engine import NativeEngine

PLENTY = 2**30
NAMES = ("native", "torch, shared", "torch, windows")
PAGE = 64  # tokens whose keys and values the native engine keeps together
BASES = [random_tokens(CONTEXT_LENGTH, seed) for seed in range(3)]


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Prompts with common prefixes."""
    tokens: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        base = draw(st.sampled_from(BASES))
        tokens += base[len(tokens) : len(tokens) + draw(st.integers(1, 40))]
    return tokens[: CONTEXT_LENGTH - 1]


def filled(engine: Engine, tokens: List[int]) -> Sequence:
    sequence = engine.new_sequence()
    engine.step([(sequence, list(tokens))])
    return sequence


def num_common(some: List[int], others: List[int]) -> int:
    pairs = zip(some, others, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(some), len(others)))


class Histories(RuleBasedStateMachine):
    """Sessions that start from stored prefixes, continue, store their tokens and end, in any order."""

    @initialize(name=st.sampled_from(NAMES), num_pages=st.sampled_from([0, 2, 7, 10**6]))
    def open(self, name: str, num_pages: int) -> None:
        self.name, self.tiny = name, TINY[name]
        self.engine = self.tiny.open()
        page = filled(self.engine, BASES[0][:PAGE])
        self.limit = num_pages * sum(self.engine.memory(page).values())
        self.cache = PrefixCache(self.engine, self.limit)
        self.running: list[tuple[Sequence, list[int]]] = []

    def check(self, sequence: Sequence, held: list[int], new: list[int]) -> None:
        (logits_V,) = self.engine.step([(sequence, new)])
        full_V = self.tiny.full_logits([*held, *new])[-1]
        if self.name == "native":
            np.testing.assert_array_equal(logits_V, full_V)
        else:
            assert_close(logits_V, full_V)

    @rule(prompt=prompts())
    def begin(self, prompt: list[int]) -> None:
        known = [list(entry.sequence.tokens) for store in self.cache._stores.values() for entry in store._entries.values()]
        sequence = self.cache.begin(prompt)
        assert list(sequence.tokens) == prompt[: sequence.length]
        assert sequence.num_computed == sequence.length
        longest = max([num_common(tokens, prompt) for tokens in known], default=0)
        if self.name != "torch, windows":
            assert sequence.length == (longest if longest >= LEAST_TOKENS else 0)
        else:
            assert sequence.length <= longest
        new = prompt[sequence.length :] or [1]
        self.check(sequence, prompt[: sequence.length], new)
        self.running.append((sequence, list(sequence.tokens)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), kind=st.sampled_from(["opening", "conversation"]))
    def keep(self, data: st.DataObject, kind: str) -> None:
        sequence, held = data.draw(st.sampled_from(self.running))
        length = data.draw(st.integers(0, len(held)) | st.just(len(held)))
        self.cache.keep(sequence, length, kind)
        if self.name != "torch, windows" and self.limit >= PLENTY // 8:
            assert self.cache.begin(held[:length]).length == length * (length >= LEAST_TOKENS)

    @precondition(lambda self: any(len(held) < CONTEXT_LENGTH for _, held in self.running))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        sequence, held = data.draw(st.sampled_from([pair for pair in self.running if len(pair[1]) < CONTEXT_LENGTH]))
        new = random_tokens(data.draw(st.integers(1, CONTEXT_LENGTH - len(held))), data.draw(st.integers(5, 9)))
        self.check(sequence, held, new)
        held += new

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        sequence, held = data.draw(st.sampled_from(self.running))
        count = data.draw(st.integers(0, len(held)))
        self.engine.rollback(sequence, count)
        del held[len(held) - count :]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence, _ = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.engine.close(sequence)

    @invariant()
    def memory_is_counted_and_within_the_limit(self) -> None:
        if not hasattr(self, "cache"):
            return
        total = 0
        for store in self.cache._stores.values():
            chunks: dict[int, int] = {}
            for entry in store._entries.values():
                chunks |= self.engine.memory(entry.sequence)
            assert store.num_bytes == sum(chunks.values()) <= self.limit // 2
            assert store._keys == sorted(store._entries)
            pairs = zip(store._keys, store._keys[1:], strict=False)
            assert not any(longer.startswith(shorter) for shorter, longer in pairs)
            total += store.num_bytes
        assert self.cache.num_bytes == total


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)


@pytest.fixture(params=ONE_OF_EACH)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return TINY[request.param]


def test_a_second_sequence_computes_only_new_tokens(tiny: Tiny) -> None:
    engine = tiny.open()
    cache, opening = PrefixCache(engine, PLENTY), BASES[0][:40]
    cache.keep(filled(engine, [*opening, 7, 8]), len(opening), "opening")
    sequence = cache.begin([*opening, 9])
    assert list(sequence.tokens) == opening
    (logits_V,) = engine.step([(sequence, [9])])
    assert_close(logits_V, tiny.full_logits([*opening, 9])[-1])


def test_short_prefixes_are_not_stored(tiny: Tiny) -> None:
    engine = tiny.open()
    cache = PrefixCache(engine, PLENTY)
    few = BASES[0][: LEAST_TOKENS - 1]
    cache.keep(filled(engine, few), len(few), "opening")
    assert cache.num_bytes == 0
    cache.keep(filled(engine, BASES[0]), len(BASES[0]), "opening")
    assert cache.begin([*few, 52, 52, 52]).length == 0


def test_conversations_do_not_evict_openings(tiny: Tiny) -> None:
    engine = tiny.open()
    opening = BASES[0][:20]
    one = sum(engine.memory(engine.fork(filled(engine, BASES[1]))).values())
    cache = PrefixCache(engine, 4 * one)  # two whole sequences of each kind
    cache.keep(filled(engine, opening), len(opening), "opening")
    for seed in range(20, 26):
        tokens = [*opening, *random_tokens(CONTEXT_LENGTH - 21, seed)]
        cache.keep(filled(engine, tokens), len(tokens), "conversation")
        assert cache.num_bytes <= 4 * one
    assert cache.begin([*opening, 1]).length == 20
    assert cache.begin(tokens).length == len(tokens)
    assert cache.begin([*opening, *random_tokens(CONTEXT_LENGTH - 21, 20)]).length == 20  # the oldest is gone


def test_the_most_recently_used_entry_is_not_evicted(tiny: Tiny) -> None:
    engine = tiny.open()
    one = sum(engine.memory(engine.fork(filled(engine, BASES[0]))).values())
    cache = PrefixCache(engine, 4 * one)
    for tokens in BASES[:2]:
        cache.keep(filled(engine, tokens), len(tokens), "opening")
    assert cache.begin(BASES[0]).length == len(BASES[0])
    cache.keep(filled(engine, BASES[2]), len(BASES[2]), "opening")
    assert [cache.begin(tokens).length for tokens in BASES] == [CONTEXT_LENGTH, 0, CONTEXT_LENGTH]


def test_a_continued_conversation_is_one_entry(tiny: Tiny) -> None:
    engine = tiny.open()
    cache, sequence = PrefixCache(engine, PLENTY), engine.new_sequence()
    for start in range(0, 80, 20):
        engine.step([(sequence, BASES[0][start : start + 20])])
        cache.keep(sequence, sequence.length, "conversation")
    alone = PrefixCache(engine, PLENTY)
    alone.keep(sequence, 80, "conversation")
    assert cache.num_bytes == alone.num_bytes
    assert [cache.begin(BASES[0][:length]).length for length in (30, 80, 90)] == [30, 80, 80]


def test_shared_pages_count_once() -> None:
    engine = TINY["native"].open()
    page = sum(engine.memory(filled(engine, [1])).values())
    cache = PrefixCache(engine, PLENTY)
    first = filled(engine, BASES[0][: PAGE + 8])
    cache.keep(first, PAGE + 8, "opening")
    assert cache.num_bytes == 2 * page
    second = cache.begin(BASES[0][: PAGE + 8])
    engine.step([(second, [1])])
    cache.keep(engine.fork(second), PAGE + 9, "opening")  # in place of the first
    assert cache.num_bytes == 2 * page
    third = engine.fork(first, PAGE)
    engine.step([(third, [2])])
    cache.keep(third, PAGE + 1, "opening")
    assert cache.num_bytes == 3 * page


def test_an_entry_above_the_limit_evicts_nothing(tiny: Tiny) -> None:
    engine = tiny.open()
    small, large = BASES[0][:20], BASES[1][:90]
    one = sum(engine.memory(engine.fork(filled(engine, small))).values())
    for most in (0, 1, 2):
        cache = PrefixCache(engine, 2 * most * one)
        cache.keep(engine.fork(filled(engine, small)), 20, "opening")
        cache.keep(filled(engine, large), 90, "opening")
        fits = most == 2 and isinstance(engine, NativeEngine)  # two pages
        assert cache.begin(large).length == (90 if fits else 0)
        assert cache.begin(small).length == (20 if most and not fits else 0)


def test_prefixes_that_windows_have_dropped_are_not_used() -> None:
    tiny = TINY["torch, windows"]
    engine = tiny.open()
    cache, tokens = PrefixCache(engine, PLENTY), BASES[0][:90]
    cache.keep(filled(engine, tokens), 90, "conversation")
    cache.keep(filled(engine, tokens[:30]), 30, "opening")
    assert cache.begin(tokens).length == 90
    sequence = cache.begin([*tokens[:30], 1, 2])
    (logits_V,) = engine.step([(sequence, [*tokens[:30], 1, 2][sequence.length :])])
    assert_close(logits_V, tiny.full_logits([*tokens[:30], 1, 2])[-1])


def test_the_cache_is_thread_safe(tiny: Tiny) -> None:
    engine = tiny.open()
    page = sum(engine.memory(filled(engine, BASES[0])).values())
    cache = PrefixCache(engine, 6 * page)
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(12):
            tokens = [*BASES[generator.integers(3)][: generator.integers(10, 60)], *random_tokens(20, seed)]
            sequence = cache.begin(tokens)
            (logits_V,) = engine.step([(sequence, tokens[sequence.length :] or [3])])
            full_V = tiny.full_logits(list(sequence.tokens))[-1]
            if np.abs(logits_V - full_V).max() > 1e-4:
                wrong.append(f"{seed}: {tokens}")
            cache.keep(sequence, len(tokens), "opening" if seed % 2 else "conversation")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert 0 < cache.num_bytes <= 6 * page


def test_the_limit_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT, raising=False)
    assert prefix_cache_bytes() == DEFAULT_MB * 2**20
    for chosen, expected in (("", DEFAULT_MB), ("0", 0), ("64", 64)):
        monkeypatch.setenv(LIMIT, chosen)
        assert prefix_cache_bytes() == expected * 2**20
    for wrong in ("-1", "1.5", "many", "٣"):
        monkeypatch.setenv(LIMIT, wrong)
        with pytest.raises(CacheLimitError, match=LIMIT):
            prefix_cache_bytes()
