"""Concurrency: many sessions share one model; a session answers one request at a time; requests can be cancelled.

python examples/concurrency.py
"""

from __future__ import annotations

import asyncio
import threading

import openafm as fm

SHORT = fm.GenerationOptions(maximum_response_tokens=4)


async def many_sessions(model: fm.LanguageModel) -> None:
    sessions = [fm.LanguageModelSession(f"You are number {number}.", model) for number in range(3)]
    texts = await asyncio.gather(*(session.respond("Who are you?", options=SHORT) for session in sessions))
    print(len(texts), "sessions answered concurrently")


async def one_session(model: fm.LanguageModel) -> None:
    raising = fm.LanguageModelSession(model=model)
    waiting = fm.LanguageModelSession(model=model, when_busy="wait")
    for session in (raising, waiting):
        requests = (session.respond("One.", options=SHORT), session.respond("Two.", options=SHORT))
        results = await asyncio.gather(*requests, return_exceptions=True)
        print([type(result).__name__ for result in results], len(session.transcript), "entries")


async def cancelled(model: fm.LanguageModel) -> None:
    session = fm.LanguageModelSession(model=model)
    endless = fm.GenerationOptions(maximum_response_tokens=2000)
    try:
        await asyncio.wait_for(session.respond("Count to a thousand. " * 50, options=endless), timeout=0.01)
        print("answered before the timeout")
    except TimeoutError:
        print("cancelled; the transcript has", len(session.transcript), "entries")


def in_threads(model: fm.LanguageModel) -> None:
    texts: list[str] = []

    def work() -> None:
        texts.append(fm.LanguageModelSession(model=model).respond_blocking("Hello.", options=SHORT))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(texts), "threads,", len(set(texts)), "distinct answer: equal conversations give equal answers")


async def in_loop(model: fm.LanguageModel) -> None:
    await many_sessions(model)
    await one_session(model)
    await cancelled(model)


def main() -> None:
    model = fm.SystemLanguageModel()
    asyncio.run(in_loop(model))
    in_threads(model)


if __name__ == "__main__":
    main()
