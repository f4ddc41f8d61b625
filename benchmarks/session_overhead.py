"""Measure the cost of a session beyond its engine (report 7), with the shipped nano model.

- `per_request_ms`: `await session.respond(...)` in a new session minus `generate` on the same tokens under the same grammar,
  alternating; the larger of a text and a typed answer. Engine steps are timed separately and excluded from the difference.
  Required: at most 3 ms + 2 %.
- `tick_loss`: share of 10 ms ticks lost in the event loop that awaits the responses, in wall time; and the share lost
  while another process generates the same, which is the machine's part. Needs a quiet machine. Required: less than 0.2.
- `mb_per_idle_session`: growth of the process by 100 sessions that have answered once, minus the bytes of their caches.
- `second_turn_ttft_ratio`: time to first token of a second turn after 2,000 tokens, from scratch / in the session that holds
  them; and the number of prefilled tokens.

Times are CPU time of the process, summed over threads, except for ticks; medians over rounds.

    python benchmarks/session_overhead.py [--quick] [--json]

A full run writes docs/benchmarks/session_overhead.json. `--quick` runs the same code for few rounds and claims nothing.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time, thread_time
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENAFM_PREFIX_CACHE_MB": "0"}  # no shared prefixes

import torch
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.framework.backends.local_executor import LocalExecutor
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.base import Engine
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import Instructions, UserTurn

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "session_overhead.json"
INSTRUCTIONS = "You plan small trips. Answer briefly."
PROMPT = "A weekend in Oslo in May, for two people who like museums and long walks."
LONG_TEXT = "The train leaves at nine, the museum opens at ten, and the ferry back goes every hour until midnight. "
TICK_S, TICKING_S = 0.01, 2.0
WHOLE = 300  # tokens; typed answers end before this limit


@fm.generable("A trip")
class Trip:
    city: str = fm.guide("Where it goes", regex="[A-Z][a-z]{2,12}")
    days: int = fm.guide(range=(1, 9))
    sights: list[str] = fm.guide("What to see", count=4, element=fm.GenerationGuide.regex("[A-Z][a-z]{4,12}"))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Number of rounds and tokens."""

    rounds: int
    max_tokens: int
    tick_rounds: int
    sessions: int
    conversation_tokens: int
    ttft_rounds: int


FULL = Setting(rounds=25, max_tokens=96, tick_rounds=12, sessions=100, conversation_tokens=2000, ttft_rounds=11)
QUICK = Setting(rounds=3, max_tokens=32, tick_rounds=1, sessions=10, conversation_tokens=300, ttft_rounds=2)


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    setting = QUICK if options.quick else FULL
    torch.set_num_threads(1)

    figures = run(setting)
    report = {
        "figures": figures,
        "peer": "the engine itself: openafm.runtime.decoding.generation.generate on the same tokens",
        "setting": vars(setting) | {"threads": 1, "torch": torch.__version__, "machine": platform.machine()},
    }
    hand_in(report, REPORT, options)


def run(setting: Setting) -> dict[str, Any]:
    model = fm.SystemLanguageModel(guardrails=fm.SystemLanguageModelGuardrails.DEFAULT)
    idle = idle_sessions(model, setting)
    text = overhead(model, None, setting)
    typed = overhead(model, Trip, setting)
    worst = max(text, typed, key=lambda each: each["over_limit_ms"])
    figures = {"per_request_ms": worst["per_request_ms"], "limit_ms": worst["limit_ms"]}
    figures |= ticks(model, setting)
    figures |= second_turn(model, setting)
    figures |= idle
    for name, each in (("text", text), ("typed", typed)):
        figures |= {f"{key}_{name}": value for key, value in each.items()}
    return figures


def overhead(model: fm.SystemLanguageModel, kind: Any, setting: Setting) -> dict[str, float]:
    """Return the cost of a request beyond the engine's work: median of paired differences."""
    max_tokens = setting.max_tokens if kind is None else WHOLE
    options = fm.GenerationOptions(fm.SamplingMode.greedy(), maximum_response_tokens=max_tokens)
    prompt = encoded_prompt(model, kind)
    costs: dict[str, list[float]] = {"session": [], "streamed": [], "engine": []}
    engine_s: list[float] = []
    numbers: dict[str, int] = {}

    async def session() -> int:
        conversation = fm.LanguageModelSession(INSTRUCTIONS, model)
        response = await conversation.respond_full(PROMPT, kind, options=options)
        return response.usage.generated_tokens

    async def streamed() -> int:
        conversation = fm.LanguageModelSession(INSTRUCTIONS, model)
        async for _ in conversation.stream_response(PROMPT, kind, options=options):
            pass
        return conversation.usage.generated_tokens

    async def engine() -> int:
        return generated(model, kind, prompt, max_tokens)

    sides: dict[str, Callable[[], Any]] = {"session": session, "streamed": streamed, "engine": engine}
    steps = Steps(model.load().engine)

    async def alternate() -> None:
        for round_index in range(-1, setting.rounds):  # round -1 warms up
            names = list(sides) if round_index % 2 else list(reversed(sides))
            for name in names:
                gc.collect()
                steps.seconds, started = 0.0, process_time()
                numbers[name] = await sides[name]()
                seconds = process_time() - started
                if round_index >= 0:
                    costs[name].append(seconds - steps.seconds)
                    engine_s.append(steps.seconds)

    with steps:
        asyncio.run(alternate())
    assert len(set(numbers.values())) == 1, numbers  # all variants generate the same tokens
    beside = {name: 1000 * statistics.median(each) for name, each in costs.items()}
    engine_ms = 1000 * statistics.median(engine_s) + beside["engine"]
    limit_ms, per_request_ms = 3 + 0.02 * engine_ms, beside["session"] - beside["engine"]
    return {
        "per_request_ms": round(per_request_ms, 2),
        "limit_ms": round(limit_ms, 2),
        "over_limit_ms": round(per_request_ms - limit_ms, 2),
        "streamed_ms": round(beside["streamed"] - beside["engine"], 2),
        "engine_ms": round(engine_ms, 1),
        "tokens": numbers["engine"],
    }


class Steps:
    """Measure the steps of an engine in CPU time of the calling thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._forward, self.seconds = engine, engine.forward, 0.0

    def __enter__(self) -> None:
        self._engine.forward = self._timed  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        del self._engine.forward

    def _timed(self, pieces: Any) -> Any:
        started = thread_time()
        try:
            return self._forward(pieces)
        finally:
            self.seconds += thread_time() - started


def encoded_prompt(model: fm.SystemLanguageModel, kind: Any) -> list[int]:
    loaded = model.load()
    schema = None if kind is None else fm.GenerationSchema(kind).to_dict()
    turns = (Instructions(text=INSTRUCTIONS), UserTurn(text=PROMPT, response_format=schema))
    tokens = loaded.template.encode(loaded.tokenizer, opened(turns)).tokens
    return [*tokens, *loaded.template.generation_prompt(loaded.tokenizer)]


def generated(model: fm.SystemLanguageModel, kind: Any, prompt: list[int], max_tokens: int) -> int:
    """Run the engine alone; return the number of tokens."""
    loaded = model.load()
    schema = None if kind is None else fm.GenerationSchema(kind).to_dict()
    answer = generate(
        loaded.engine,
        loaded.engine.new_sequence(),
        prompt,
        sampling=GreedyConfig(),
        stop_tokens=loaded.template.stop_tokens(loaded.tokenizer),
        max_tokens=max_tokens,
        grammar=loaded.grammar(schema),
    )
    return sum(1 for _ in answer)


def ticks(model: fm.SystemLanguageModel, setting: Setting) -> dict[str, float]:
    """Return the share of ticks lost while requests are answered in the same event loop or in another process."""
    context = multiprocessing.get_context("spawn")
    is_on, is_over, is_ready = context.Event(), context.Event(), context.Event()
    other = context.Process(target=answer_while, args=(is_on, is_over, is_ready, setting), daemon=True)
    other.start()
    is_ready.wait()
    shares: dict[str, list[float]] = {"here": [], "elsewhere": []}
    for _ in range(setting.tick_rounds):
        shares["here"].append(asyncio.run(share_of_ticks(lambda until: answer_until(model, setting, until))))
        is_on.set()
        shares["elsewhere"].append(asyncio.run(share_of_ticks(lambda until: asyncio.sleep(until - time.perf_counter()))))
        is_on.clear()
    is_over.set()
    other.join()
    here, elsewhere = (statistics.median(shares[name]) for name in ("here", "elsewhere"))
    return {"tick_loss": round(1 - here, 4), "tick_loss_beside_another_process": round(1 - elsewhere, 4)}


async def share_of_ticks(work: Callable[[float], Any]) -> float:
    """Return the ticks during `work` and the number that the clock allows."""
    started = time.perf_counter()
    task = asyncio.ensure_future(work(started + TICKING_S))
    num_ticks = 0
    while not task.done():
        await asyncio.sleep(TICK_S)
        num_ticks += 1
    await task
    return num_ticks * TICK_S / (time.perf_counter() - started)


async def answer_until(model: fm.SystemLanguageModel, setting: Setting, until: float) -> None:
    while time.perf_counter() < until:
        await answer_both(model, setting)


async def answer_both(model: fm.SystemLanguageModel, setting: Setting) -> None:
    """Request one text and one typed answer."""
    for kind, max_tokens in ((None, setting.max_tokens), (Trip, WHOLE)):
        options = fm.GenerationOptions(maximum_response_tokens=max_tokens)
        await fm.LanguageModelSession(INSTRUCTIONS, model).respond(PROMPT, kind, options=options)


def answer_while(is_on: Any, is_over: Any, is_ready: Any, setting: Setting) -> None:
    """Run in the other process: answer requests while `is_on`."""
    torch.set_num_threads(1)
    model = fm.SystemLanguageModel()
    asyncio.run(answer_both(model, setting))
    is_ready.set()
    while not is_over.is_set():
        if is_on.wait(0.05):
            asyncio.run(answer_both(model, setting))


def second_turn(model: fm.SystemLanguageModel, setting: Setting) -> dict[str, float]:
    """Compare a second turn in the same session with one in a session restored from the transcript."""
    options = fm.GenerationOptions(fm.SamplingMode.greedy(), maximum_response_tokens=8)
    prompt = LONG_TEXT
    while asyncio.run(model.token_count(prompt)) < setting.conversation_tokens:
        prompt += LONG_TEXT
    warm = fm.LanguageModelSession(INSTRUCTIONS, model)
    warm.respond_blocking(prompt, options=options)
    sides = {"warm": lambda: warm, "scratch": lambda: fm.LanguageModelSession.from_transcript(warm.transcript, model)}
    costs: dict[str, list[float]] = {"warm": [], "scratch": []}
    for round_index in range(-1, setting.ttft_rounds):
        for name in list(sides) if round_index % 2 else list(reversed(sides)):
            session = sides[name]()
            gc.collect()
            started = process_time()
            stream = session.stream_blocking(PROMPT, options=options)
            next(stream, None)
            cost = process_time() - started
            stream.close()  # type: ignore[attr-defined]  # rolls the session back
            if round_index >= 0:
                costs[name].append(cost)
    scratch = fm.LanguageModelSession.from_transcript(fm.Transcript(warm.transcript), model)
    prefilled = {}
    for name, session in (("warm", warm), ("scratch", scratch)):
        usage = session.respond_full_blocking(PROMPT, options=options).usage
        prefilled[name] = usage.prompt_tokens - usage.cached_tokens
    warm_ms, scratch_ms = (1000 * statistics.median(costs[name]) for name in ("warm", "scratch"))
    return {
        "second_turn_ttft_ratio": round(scratch_ms / warm_ms, 1),
        "second_turn_ttft_ms": round(warm_ms, 2),
        "scratch_ttft_ms": round(scratch_ms, 1),
        "second_turn_prefilled_tokens": prefilled["warm"],
        "second_turn_prompt_tokens": asyncio.run(model.token_count(PROMPT)),
        "scratch_prefilled_tokens": prefilled["scratch"],
    }


def idle_sessions(model: fm.SystemLanguageModel, setting: Setting) -> dict[str, float]:
    """Return the memory of idle sessions that have answered once."""
    options = fm.GenerationOptions(maximum_response_tokens=8)

    def answered() -> fm.LanguageModelSession:
        session = fm.LanguageModelSession(INSTRUCTIONS, model)
        session.respond_blocking(PROMPT, options=options)
        return session

    earlier = [answered() for _ in range(setting.sessions)]
    before = resident_mb()
    sessions = [answered() for _ in range(setting.sessions)]
    grown = resident_mb() - before
    cache_mb = statistics.mean(map(cache_bytes, sessions)) / 1e6
    assert len(earlier) == len(sessions)
    return {
        "mb_per_idle_session": round(grown / setting.sessions - cache_mb, 3),
        "cache_mb_per_idle_session": round(cache_mb, 3),
        "mb_per_idle_session_with_cache": round(grown / setting.sessions, 3),
    }


def cache_bytes(session: fm.LanguageModelSession) -> int:
    executor = session._responder._executor
    assert isinstance(executor, LocalExecutor)
    return sum(executor._model.engine.memory(executor._sequence).values())


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


if __name__ == "__main__":
    main()
