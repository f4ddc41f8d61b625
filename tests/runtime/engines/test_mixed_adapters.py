"""Sequences with different adapters in one step: the bits, caches, weights and lifetimes of each are its own."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import gc
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_bundles import CONFIG, compressed_bundle, random_adapter_weights
from numpy.typing import NDArray
from tiny_engines import CONFIGS, random_tokens
from tiny_tokenizer import TOKENIZER

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterPackage, write_adapter
from openafm.bundle import Bundle, write_bundle
from openafm.compression.numerics import Numerics
from openafm.models.config import DecoderConfig
from openafm.runtime.engines.base import Engine, OtherBundleError, Sequence, SequenceError
from openafm.runtime.engines.prefix_cache import PrefixCache
from openafm.runtime.engines.selection import open_engine
from openafm.runtime.engines.snapshot import SnapshotMismatchError
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.tokenizer.chat_template import ChatTemplate

TIMEOUT_S = 120
NO_ADAPTER = 3  # the adapters are 0, 1 and 2
LORAS = (
    LoRAConfig(rank=4),
    LoRAConfig(rank=3, targets=("query", "down", "value"), precision="float32"),
    LoRAConfig(rank=7, alpha=3.0, targets=("output", "gate", "up", "key")),
)
INTEGERS = {"embedding": "int8_group32", "activations": "int8_per_token", "kv": "int8_per_token_head"}
ROUNDED = {
    "8 bits": Numerics(weights="int8_per_row", **INTEGERS),
    "groups of 4 bits": Numerics(weights="int4_group32", **INTEGERS),
}
FORMATS = ("2 bits", "fp32", "tracks and experts", *ROUNDED)


@functools.cache
def folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="openafm-tests-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def full_bundle(name: str) -> Bundle:
    config: DecoderConfig = CONFIG if name == "fp32" else CONFIGS["tracks"]
    config = dataclasses.replace(config, vocab_size=TOKENIZER.vocab_size)
    tensors = {name: 2 * tensor.detach().numpy() for name, tensor in config.build(seed=5).state_dict().items()}
    return write_bundle(folder() / name, config=config, tokenizer=TOKENIZER, template=ChatTemplate(), tensors=tensors)


def bundle_of(format: str) -> Bundle:
    if format == "2 bits":
        return compressed_bundle()
    return full_bundle("fp32" if format in ROUNDED else format)


@functools.cache
def adapter_of(bundle: Bundle, number: int) -> AdapterPackage | None:
    if number == NO_ADAPTER:
        return None
    weights = random_adapter_weights(number, bundle.config, LORAS[number])
    path = folder() / f"{bundle.signature}_{number}.fmadapter"
    return write_adapter(
        path, weights=weights, config=LORAS[number], base_signature=bundle.signature, name=f"number_{number}"
    )


def opened(format: str, number: int, beside: NativeEngine | None = None, num_threads: int = 1) -> NativeEngine:
    bundle, numerics = bundle_of(format), ROUNDED.get(format)
    return NativeEngine(bundle, adapter_of(bundle, number), num_threads=num_threads, numerics=numerics, beside=beside)


@functools.cache
def alone(format: str) -> list[NativeEngine]:
    """Engines that share no step."""
    return [opened(format, number) for number in range(4)]


@functools.cache
def together(format: str, num_threads: int) -> list[NativeEngine]:
    """Engines that share their steps, the one without an adapter last."""
    base = opened(format, NO_ADAPTER, num_threads=num_threads)
    return [*(opened(format, number, beside=base) for number in range(3)), base]


def torch_engines() -> list[Engine]:
    bundle = full_bundle("fp32")
    base = TorchEngine.open(bundle)
    return [*(TorchEngine.open(bundle, adapter_of(bundle, number), beside=base) for number in range(3)), base]


def logits(engine: Engine, tokens: list[int]) -> NDArray[np.float32]:
    """Return logits after every token of a fresh sequence, [N, V]."""
    return engine.step([(engine.new_sequence(), tokens)], "all")[0]


def test_adapters_change_the_logits_of_every_format() -> None:
    tokens = random_tokens(5)
    for format in FORMATS:
        found = [logits(engine, tokens) for engine in alone(format)]
        for number in range(3):
            assert np.abs(found[number] - found[NO_ADAPTER]).max() > 0.05


steps_of_rows = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 2, 5, 12])), min_size=1, max_size=7), min_size=1, max_size=3
)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(FORMATS), st.sampled_from([1, 3]), steps_of_rows, st.integers(0, 2**31), st.booleans())
def test_a_row_has_the_bits_of_its_adapter_alone(
    format: str, num_threads: int, steps: list[list[tuple[int, int]]], seed: int, wants_all: bool
) -> None:
    """Each step has a random selection of sequences, in random order, with chunks of random lengths."""
    engines, draw = together(format, num_threads), np.random.default_rng(seed)
    sequences: dict[tuple[int, int], Sequence] = {}
    for rows in steps:
        batch: dict[tuple[int, int], list[int]] = {}
        for place, (number, count) in enumerate(rows):
            batch[number, place] = draw.integers(40, size=count).tolist()
        for key in batch:
            sequences.setdefault(key, engines[key[0]].new_sequence())
        before = {key: list(sequences[key].tokens) for key in batch}
        stepping = engines[rows[0][0]]
        found = stepping.step([(sequences[key], tokens) for key, tokens in batch.items()], "all" if wants_all else "last")
        for (key, tokens), rows_NV in zip(batch.items(), found, strict=True):
            expected_NV = logits(alone(format)[key[0]], before[key] + tokens)[len(before[key]) :]
            np.testing.assert_array_equal(rows_NV, expected_NV if wants_all else expected_NV[-1])


def test_torch_computes_each_adapter_of_a_step_as_alone() -> None:
    engines, tokens = torch_engines(), [random_tokens(count, seed=count) for count in (3, 1, 6, 2, 4)]
    numbers = (1, 0, 1, NO_ADAPTER, 2)
    batch = [(engines[number].new_sequence(), prompt) for number, prompt in zip(numbers, tokens, strict=True)]
    found, bundle = engines[2].step(batch), full_bundle("fp32")
    for number in range(4):
        own, places = TorchEngine.open(bundle, adapter_of(bundle, number)), [i for i in range(5) if numbers[i] == number]
        expected = own.step([(own.new_sequence(), tokens[place]) for place in places])
        np.testing.assert_array_equal([found[place] for place in places], expected)


def test_waiting_threads_with_different_adapters_share_a_step() -> None:
    engines = together("2 bits", 1)
    before = engines[0].scheduler.num_steps
    sequences = [engine.new_sequence() for engine in engines]
    with engines[0].scheduler.computing:  # no step begins until all requests are in the queue
        begun = [engine.begin([(sequence, [7, 8])]) for engine, sequence in zip(engines, sequences, strict=True)]
        inline = [pending for pending in begun if pending._request.is_inline]
    found = [pending.result()[0] for pending in begun]
    assert engines[0].scheduler.num_steps - before <= 1 + len(inline)
    for engine, row_V in zip(alone("2 bits"), found, strict=True):
        np.testing.assert_array_equal(row_V, logits(engine, [7, 8])[-1])


@pytest.mark.parametrize("engines", [lambda: together("2 bits", 1), torch_engines], ids=["native", "torch"])
def test_a_sequence_keeps_its_adapter(engines: Callable[[], list[Engine]]) -> None:
    first, second, *_ = engines()
    sequence = first.new_sequence()
    first.step([(sequence, [1, 2, 3])])
    for use in (second.fork, second.snapshot, second.close, lambda each: second.rollback(each, 1)):
        with pytest.raises(SequenceError, match="another engine"):
            use(sequence)
    with pytest.raises(SnapshotMismatchError):
        second.restore(first.snapshot(sequence))
    other = opened("2 bits", 0) if isinstance(first, NativeEngine) else TorchEngine.open(full_bundle("fp32"))
    with pytest.raises(SequenceError, match="another engine"):
        other.step([(sequence, [4])])
    assert list(sequence.tokens) == [1, 2, 3]


def test_a_prefix_is_found_for_its_adapter_only() -> None:
    first, second, *_ = together("2 bits", 1)
    tokens = random_tokens(40)
    caches = [PrefixCache(engine, 1 << 24) for engine in (first, second)]
    sequence = first.new_sequence()
    first.step([(sequence, tokens)])
    caches[0].keep(sequence, len(tokens), "opening")
    assert [cache.begin(tokens).length for cache in caches] == [40, 0]
    for cache, engine, reference in zip(caches, (first, second), alone("2 bits"), strict=False):
        begun = cache.begin(tokens)
        (row_V,) = engine.step([(begun, [*tokens[begun.length :], 5])])
        np.testing.assert_array_equal(row_V, logits(reference, [*tokens, 5])[-1])


def test_adapters_come_and_go_while_sequences_run() -> None:
    base = opened("2 bits", NO_ADAPTER)
    ending, found = threading.Event(), list[NDArray[np.float32]]()
    sequence = base.new_sequence()
    base.step([(sequence, [1])])

    def decode() -> None:
        while not ending.is_set() and sequence.length < 80:
            found.append(base.step([(sequence, [sequence.length % 40])])[0])

    thread = threading.Thread(target=decode, daemon=True)
    thread.start()
    for number in (0, 1, 2, 0):
        engine = opened("2 bits", number, beside=base)
        weights = weakref.ref(engine._adapter)
        adapted = engine.new_sequence()
        del engine
        gc.collect()
        assert weights() is not None  # its sequence needs it
        adapted.engine.step([(adapted, [3, 4])])
        (row_V,) = adapted.engine.step([(adapted, [5])])
        np.testing.assert_array_equal(row_V, logits(alone("2 bits")[number], [3, 4, 5])[-1])
        del adapted
        gc.collect()
        assert weights() is None
    ending.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    expected_NV = logits(alone("2 bits")[NO_ADAPTER], list(sequence.tokens))
    np.testing.assert_array_equal(np.stack(found), expected_NV[1:])


def test_the_last_engine_ends_the_worker() -> None:
    base = opened("2 bits", NO_ADAPTER)
    adapted, scheduler = opened("2 bits", 0, beside=base), base.scheduler
    del base
    gc.collect()
    assert not scheduler._is_stopped
    np.testing.assert_array_equal(logits(adapted, [1, 2]), logits(alone("2 bits")[0], [1, 2]))
    del adapted
    gc.collect()
    assert scheduler._is_stopped


def test_model_and_adapters_are_in_memory_once() -> None:
    first, *others = together("2 bits", 1)
    assert all(other._model is other.runner is first.runner for other in others)
    assert opened("2 bits", 0, beside=others[-1])._adapter is first._adapter


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_engines_of_other_weights_share_no_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAFM_ENGINE", kind)
    full, other = full_bundle("fp32"), full_bundle("tracks and experts")
    with pytest.raises(OtherBundleError):
        open_engine(full, beside=open_engine(other))
    if kind == "native":  # the same bundle in other numerics
        with pytest.raises(OtherBundleError):
            open_engine(full, beside=opened("8 bits", NO_ADAPTER))


def test_new_weights_of_one_engine_leave_the_others_unchanged() -> None:
    base = opened("fp32", NO_ADAPTER)
    adapted, tokens = opened("fp32", 0, beside=base), [1, 2, 3]
    before = logits(adapted, tokens)
    sequences = adapted.new_sequence(), base.new_sequence()
    base.update_weights({"norm.weight": 3 * np.ones(CONFIG.dim, np.float32)}, 1)
    found = base.step([(sequence, tokens) for sequence in sequences])
    np.testing.assert_array_equal(found[0], before[-1])
    assert np.abs(found[1] - logits(alone("fp32")[NO_ADAPTER], tokens)[-1]).max() > 0.05
    bundle = bundle_of("fp32")
    later = open_engine(bundle, adapter_of(bundle, 0), full_precision="native", beside=base)
    assert later.scheduler is not base.scheduler
    np.testing.assert_array_equal(logits(later, tokens), before)
