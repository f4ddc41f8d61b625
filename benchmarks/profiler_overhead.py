"""CPU time that an open profile adds to requests, with the shipped nano model.

- `overhead`: CPU time of the process, all threads, with a profile / without one - 1. Rounds alternate; each answers the same
  typed and plain requests in new sessions. Medians over rounds. Required: at most 0.01.
- `closed_us_per_request`: microseconds that the calls of the recorder take in a request while no profile is open.
- `noise`: the same ratio between two halves of the rounds without a profile, which is the machine's part.

    python benchmarks/profiler_overhead.py [--quick] [--json]

A full run writes docs/benchmarks/profiler_overhead.json. `--quick` runs the same code for few rounds and claims nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import statistics
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENAFM_THREADS": "1"}

from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.framework.profiling.recorder import begin_request
from openafm.framework.profiling.spans import SpanKind

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "profiler_overhead.json"
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 40} for name in ("title", "date", "time", "location")},
    "required": ["title", "date", "time", "location"],
}
PROMPTS = ("Lunch with Ana on Friday at 12:30 at Cafe Roma", "Dentist on Monday at 9:15", "Call Tom tomorrow at 18:00")
OPTIONS = fm.GenerationOptions(maximum_response_tokens=64)


def main() -> None:
    options = benchmark_parser(__doc__, "a smoke run of the same code, under two minutes").parse_args()
    num_rounds = 40 if options.quick else 400
    model = fm.SystemLanguageModel(bundle="nano")
    answer(model)
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * num_rounds):
        times[number % 4 in (1, 2)].append(cpu_s(model, is_profiled=number % 4 in (1, 2)))
    plain_s, profiled_s = times[False], times[True]
    figures = {
        "overhead": round(statistics.median(profiled_s) / statistics.median(plain_s) - 1, 4),
        "noise": round(statistics.median(plain_s[::2]) / statistics.median(plain_s[1::2]) - 1, 4),
        "closed_us_per_request": round(closed_us(), 3),
    }
    setting = {
        "machine": platform.processor() or platform.machine(),
        "load_average": os.getloadavg()[0],
        "rounds": num_rounds,
        "requests": 2 * len(PROMPTS),
    }
    hand_in({"figures": figures, "setting": setting}, REPORT, options)


def cpu_s(model: fm.SystemLanguageModel, *, is_profiled: bool) -> float:
    """Return the CPU seconds of a round."""
    gc.collect()
    started = time.process_time()
    with fm.profile() if is_profiled else contextlib.nullcontext():
        answer(model)
    return time.process_time() - started


def answer(model: fm.SystemLanguageModel) -> None:
    """Answer each prompt as typed JSON and as text, each in a new session."""
    for prompt in PROMPTS:
        fm.LanguageModelSession(model=model).respond_blocking(prompt, json_schema=SCHEMA, options=OPTIONS)
        fm.LanguageModelSession(model=model).respond_blocking(prompt, options=OPTIONS)


def closed_us(num_requests: int = 10_000) -> float:
    """Return the microseconds of one request's calls of the recorder without a profile."""
    started = time.perf_counter()
    for _ in range(num_requests):
        with begin_request(None, "respond", model="nano") as request:
            request.set_content(prompt="")
            with request.child(SpanKind.CHECK, "prompt"), request.child(SpanKind.LOAD, "nano"):
                pass
            with request.child(SpanKind.INFERENCE, "nano") as span, span.child(SpanKind.GRAMMAR, "compile"):
                span.tokens(())
    return 1e6 * (time.perf_counter() - started) / num_requests


if __name__ == "__main__":
    main()
