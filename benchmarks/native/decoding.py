"""Decoding by our engine alone: long contexts, batches of sequences, and the time outside the kernels.

- `long_context_N`: time of a step after N tokens over one after 64, alternating, one thread. The cache is filled by
  restoring a snapshot whose pages repeat: keys of many tokens are equal, which changes neither the reads nor the
  computation. `long_context_bound_N` is the ratio of the bytes that the two read: weights, and the keys and values of every
  layer.
- `batch_8_ratio`: tokens per second of eight sequences in one step over those of one, two threads. `batch_8_limit` is the
  upper bound: a step takes at least the time of eight tokens' products at peak rate, and of reading the weights.
- `overhead_share`: the share of a token's time in `generate` that is not spent in the C library: Python, ctypes and
  sampling, greedy or (`_random`) with top-k and top-p. `overhead_ms_nano` is the same in milliseconds on the shipped nano
  model. CPU time, no grammar, an engine of one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time, thread_time
from typing import Any

from limits import Probe
from measuring import Figures, Setting, Times, alternate, median, rounded, undisturbed
from ours import decode, prefilled, tokens_of

from openafm.bundle import Bundle, open_bundle
from openafm.models.config import DecoderConfig
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig, RandomConfig, SamplingConfig
from openafm.runtime.doctor import bytes_per_token
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import native_library
from openafm.runtime.native.shapes import matrices

BATCH = 8
CHOICES: dict[str, SamplingConfig] = {"": GreedyConfig(), "_random": RandomConfig(top_k=50, top_p=0.9, seed=0)}
_OPENING = 64  # tokens before those that are decoded


def long_context(setting: Setting, bundle: Bundle) -> Figures:
    engine = NativeEngine(bundle, num_threads=1)
    sequences = {length: prefilled(engine, length) for length in (_OPENING, *setting.contexts)}
    sides: dict[str, Callable[[], Times]] = {
        str(length): lambda sequence=sequence: decode(engine, [sequence], setting.steps)
        for length, sequence in sequences.items()
    }
    seconds = alternate(sides, setting.rounds, 1)
    empty = undisturbed(seconds[str(_OPENING)])
    moved = {length: bytes_per_token(bundle) + read_bytes(bundle.config, length) for length in sequences}
    figures: Figures = {}
    for length in setting.contexts:
        figures[f"long_context_{length}"] = rounded(undisturbed(seconds[str(length)]) / empty)
        figures[f"long_context_bound_{length}"] = rounded(moved[length] / moved[_OPENING])
    return figures


def read_bytes(config: DecoderConfig, num_tokens: int) -> int:
    """Bytes of 8-bit keys and values with fp16 scales that a decoded token reads: every layer those of its source."""
    return sum(
        num_tokens * 2 * config.kv_heads(index) * (layer.attention.head_dim + 2) for index, layer in enumerate(config.layers)
    )


def batch(setting: Setting, bundle: Bundle, probe: Probe | None) -> Figures:
    engine = NativeEngine(bundle, num_threads=2)
    sequences = [prefilled(engine, _OPENING) for _ in range(BATCH)]
    sides: dict[str, Callable[[], Times]] = {
        "1": lambda: decode(engine, sequences[:1], setting.steps),
        "8": lambda: decode(engine, sequences, setting.steps),
    }
    if probe is not None:
        sides["stream"] = lambda: probe.stream(2, setting.steps)
    seconds = {name: undisturbed(each) for name, each in alternate(sides, setting.rounds, 2).items()}
    figures: Figures = {
        "batch_8_ratio": rounded(BATCH * seconds["1"] / seconds["8"]),
        "batch_8_tokens_s": rounded(BATCH / seconds["8"]),
    }
    if probe is not None:
        arithmetic_s = BATCH * operations(bundle.config) / (2 * probe.peak())
        memory_s = bytes_per_token(bundle) * seconds["stream"] / probe.stream_bytes
        figures["batch_8_limit"] = rounded(BATCH * seconds["1"] / max(arithmetic_s, memory_s))
    return figures


def operations(config: DecoderConfig) -> int:
    """Operations of a token's products with weights, multiplications and additions, including the head."""
    products = sum(outputs * inputs for outputs, inputs in matrices(config).values())
    return 2 * (products + config.vocab_size * config.dim)


def overhead(setting: Setting, bundle: Bundle) -> Figures:
    figures: Figures = {}
    nano = open_bundle("nano")
    for name, choice in CHOICES.items():
        outside_s, all_s = outside(NativeEngine(bundle, num_threads=1), choice, setting.answer_tokens)
        figures[f"overhead_share{name}"] = rounded(outside_s / all_s)
        figures[f"overhead_ms{name}"] = rounded(outside_s * 1e3)
        outside_s, all_s = outside(NativeEngine(nano, num_threads=1), choice, setting.answer_tokens * 4)
        figures[f"overhead_ms_nano{name}"] = rounded(outside_s * 1e3)
        figures[f"step_ms_nano{name}"] = rounded(all_s * 1e3)
    return figures


def outside(engine: NativeEngine, choice: SamplingConfig, num_tokens: int) -> tuple[float, float]:
    """Median seconds of a token outside the C library, and in total."""
    with in_library() as spent:
        answer = generate(
            engine, engine.new_sequence(), tokens_of(_OPENING), sampling=choice, stop_tokens=(), max_tokens=num_tokens
        )
        next(answer)
        all_s, outside_s = [], []
        while True:
            spent.clear()
            start, whole = thread_time(), process_time()
            if next(answer, None) is None:
                break
            all_s.append(process_time() - whole)
            outside_s.append(thread_time() - start - sum(spent))
    return median(outside_s), median(all_s)


@contextmanager
def in_library() -> Iterator[list[float]]:
    """CPU seconds of this thread in each call of the C library while the block runs."""
    library, spent = native_library(), list[float]()
    functions = {name: value for name, value in vars(library).items() if name.startswith("oa_")}

    def counted(function: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = thread_time()
            try:
                return function(*arguments)
            finally:
                spent.append(thread_time() - start)

        return call

    for name, function in functions.items():
        setattr(library, name, counted(function))
    try:
        yield spent
    finally:
        for name, function in functions.items():
            setattr(library, name, function)
