"""Many sessions on one native engine: tokens per second of 1, 2, 4, 8 and 16 threads that generate at once, and fairness.

Each session is a thread that calls `generate` with its own prompt; the scheduler combines their requests
(runtime/batching/scheduler.py). Time is measured from the last session's first token to the last token of all. The upper
limit is one thread that steps as many sequences in one call, without sampling. Both alternate, as do the numbers of
sessions; medians over rounds are reported. The answers must equal those of the same sessions one after the other.

Fairness: time between the tokens of a session, alone and while another thread prefills a long prompt.

    python benchmarks/batching.py [--quick] [--json] [--bundle-folder FOLDER]

The model is the synthetic one of the `on_device.base` shape (native/synthetic.py), on 2 threads, in wall time: a quiet
machine. A full run takes about four minutes and writes docs/benchmarks/batching.json. `--quick` runs the same code on an
eighth of the depth and claims nothing.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "native"))

import numpy as np
from shared.reporting import benchmark_parser, hand_in
from synthetic import add_bundle_options, synthetic_bundle

from openafm.runtime.decoding.generation import Generation, generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.native.engine import NativeEngine

NUM_SESSIONS, NUM_THREADS, SEED, PROMPT_TOKENS = (1, 2, 4, 8, 16), 2, 0, 16
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "batching.json"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How much work: `num_tokens` of each answer, `long_prompt` tokens that another session prefills."""

    num_layers: int
    rounds: int
    num_tokens: int
    long_prompt: int
    tokens_before: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """Tokens per second of concurrent sessions, after the first token of each; and the answers by session number."""

    tokens_per_second: float
    rows_a_step: float
    answers: dict[int, list[int]]


FULL = Setting(num_layers=56, rounds=3, num_tokens=24, long_prompt=4096, tokens_before=48)
QUICK = Setting(num_layers=7, rounds=1, num_tokens=12, long_prompt=1024, tokens_before=48)


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_bundle_options(parser)
    options = parser.parse_args()
    setting = QUICK if options.quick else FULL
    bundle = synthetic_bundle(options.bundle_folder, num_layers=setting.num_layers)
    engine = NativeEngine(bundle, num_threads=NUM_THREADS)
    figures = throughput(engine, setting) | fairness(engine, setting)
    report = {
        "figures": figures,
        "peer": "one session at a time, and one call of the engine with as many rows as there are sessions",
        "setting": {
            "layers": setting.num_layers,
            "sessions": NUM_SESSIONS,
            "threads": NUM_THREADS,
            "rounds": setting.rounds,
            "tokens_of_an_answer": setting.num_tokens,
            "long_prompt": setting.long_prompt,
            "seed": SEED,
            "clock": "wall",
            "machine": platform.machine(),
        },
    }
    hand_in(report, REPORT, options)


def throughput(engine: NativeEngine, setting: Setting) -> dict[str, float]:
    """Tokens per second by the number of sessions, each as a ratio to one, and those of one call with that many rows."""
    ours: dict[int, list[float]] = {count: [] for count in NUM_SESSIONS}
    limit: dict[int, list[float]] = {count: [] for count in NUM_SESSIONS}
    rows: dict[int, list[float]] = {count: [] for count in NUM_SESSIONS}
    alone = [sessions(engine, setting, [number]).answers[number] for number in range(max(NUM_SESSIONS))]
    num_equal = num_answers = 0
    for round_index in range(-1, setting.rounds):  # the first warms up
        for count in sorted(NUM_SESSIONS, reverse=bool(round_index % 2)):
            found = sessions(engine, setting, list(range(count)))
            if round_index >= 0:
                ours[count].append(found.tokens_per_second)
                rows[count].append(found.rows_a_step)
                limit[count].append(one_call(engine, setting, count))
                num_equal += sum(found.answers[number] == alone[number] for number in range(count))
                num_answers += count
    figures = {}
    for count in NUM_SESSIONS:
        figures[f"tokens_per_second_{count}"] = round(statistics.median(ours[count]), 2)
        figures[f"ratio_{count}"] = round(statistics.median(ours[count]) / statistics.median(ours[1]), 3)
        figures[f"limit_{count}"] = round(statistics.median(limit[count]) / statistics.median(limit[1]), 3)
        figures[f"rows_a_step_{count}"] = round(statistics.median(rows[count]), 2)
    return {"batch_8_ratio": figures["ratio_8"], "equal_answers": num_equal / num_answers} | figures


def sessions(engine: NativeEngine, setting: Setting, numbers: list[int]) -> Found:
    """Run concurrent sessions."""
    first, answers = threading.Barrier(len(numbers) + 1), dict[int, list[int]]()

    def session(number: int) -> None:
        sequence = engine.new_sequence()
        events = started(engine, prompt(engine, number, PROMPT_TOKENS), setting.num_tokens)(sequence)
        answers[number] = [next(events).token]
        first.wait()
        answers[number] += [event.token for event in events]
        engine.close(sequence)

    threads = [threading.Thread(target=session, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    first.wait()
    begun, steps_before = perf_counter(), engine.scheduler.num_steps
    for thread in threads:
        thread.join()
    num_tokens = len(numbers) * (setting.num_tokens - 1)
    return Found(
        tokens_per_second=num_tokens / (perf_counter() - begun),
        rows_a_step=num_tokens / (engine.scheduler.num_steps - steps_before),
        answers=answers,
    )


def one_call(engine: NativeEngine, setting: Setting, count: int) -> float:
    """Tokens per second of one thread that steps `count` sequences in one call."""
    sequences = [engine.new_sequence() for _ in range(count)]
    for number, sequence in enumerate(sequences):
        engine.step([(sequence, prompt(engine, number, PROMPT_TOKENS))])
    begun = perf_counter()
    for token in range(setting.num_tokens):
        engine.step([(sequence, [token]) for sequence in sequences])
    seconds = perf_counter() - begun
    for sequence in sequences:
        engine.close(sequence)
    return count * setting.num_tokens / seconds


def fairness(engine: NativeEngine, setting: Setting) -> dict[str, float]:
    """Gaps between the tokens of one session, alone and while another prefills, in milliseconds."""
    times: list[float] = []
    prefilled = threading.Event()
    prefills_s: list[float] = []

    def prefill() -> None:
        sequence = engine.new_sequence()
        begun = perf_counter()
        next(started(engine, prompt(engine, 99, setting.long_prompt), 1)(sequence))
        prefills_s.append(perf_counter() - begun)
        prefilled.set()
        engine.close(sequence)

    prefill()  # alone
    prefilled.clear()
    other = threading.Thread(target=prefill)
    sequence = engine.new_sequence()
    for _ in started(engine, prompt(engine, 0, PROMPT_TOKENS), 8 * setting.long_prompt)(sequence):
        times.append(perf_counter())
        if len(times) == setting.tokens_before:
            other.start()
        if prefilled.is_set():
            break
    other.join()
    gaps_ms = 1000 * np.diff(times)
    before, beside = gaps_ms[: setting.tokens_before - 1], gaps_ms[setting.tokens_before :]
    return {
        "median_gap_ms": round(float(np.median(before)), 2),
        "largest_gap_ms": round(float(before.max()), 2),
        "median_gap_beside_prefill_ms": round(float(np.median(beside)), 2),
        "largest_gap_beside_prefill_ms": round(float(beside.max()), 2),
        "largest_gap_ratio": round(float(beside.max() / np.median(before)), 2),
        "tokens_beside_prefill": len(beside),
        "prefill_s": round(prefills_s[0], 3),
        "prefill_beside_decoding_s": round(prefills_s[1], 3),
    }


def started(engine: NativeEngine, tokens: list[int], num_tokens: int) -> Callable[..., Generation]:
    return lambda sequence: generate(
        engine, sequence, tokens, sampling=GreedyConfig(), stop_tokens=(), max_tokens=num_tokens
    )


def prompt(engine: NativeEngine, number: int, num_tokens: int) -> list[int]:
    return np.random.default_rng([SEED, number]).integers(engine.vocab_size, size=num_tokens).tolist()


if __name__ == "__main__":
    main()
