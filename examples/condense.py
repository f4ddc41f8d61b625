"""Condensing: continue a conversation that exceeds the context window from a shorter transcript.

python examples/condense.py
"""

from __future__ import annotations

import openafm as fm


def main() -> None:
    model = fm.SystemLanguageModel()
    short = fm.GenerationOptions(maximum_response_tokens=12)
    session = fm.LanguageModelSession("You help to plan a trip.", model)
    for question in ("Where to in May?", "How long?", "What to pack?"):
        session.respond_blocking(question, options=short)

    try:
        session.respond_blocking("Read my notes. " + "A long walk along the river. " * 1000)
    except fm.ExceededContextWindowSizeError as error:
        print(f"too long: {error.token_count} tokens, the window has {error.context_size}")

    shorter = {
        "original": session.transcript,
        "first and last": fm.first_and_last(session.transcript),
        "rolling window": fm.rolling_window_blocking(session.transcript, model, max_tokens=80),
        "summarized": fm.summarized_blocking(session.transcript, model, summary_tokens=24),
    }
    for how, transcript in shorter.items():
        print(f"{how:15} {len(transcript)} entries, {model.token_count_blocking(transcript)} tokens")

    session = fm.LanguageModelSession.from_transcript(shorter["summarized"], model)
    session.respond_blocking("Go on.", options=short)
    print("the session continues with", len(session.transcript), "entries")


if __name__ == "__main__":
    main()
