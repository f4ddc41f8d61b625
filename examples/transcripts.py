"""Transcripts: save a conversation as JSON in the format of Apple's framework, and continue it in a new session.

python examples/transcripts.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import openafm as fm


def main() -> None:
    model = fm.SystemLanguageModel()
    short = fm.GenerationOptions(maximum_response_tokens=12)
    session = fm.LanguageModelSession("You know birds.", model)
    session.respond_blocking("What is a swift?", options=short)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "birds.json"
        file.write_text(json.dumps(session.transcript.as_dict(), indent=1), encoding="utf-8")
        print(file.name, "has", file.stat().st_size, "bytes")
        restored = fm.Transcript.parse(json.loads(file.read_text(encoding="utf-8")))
    assert restored.as_dict() == session.transcript.as_dict()

    session = fm.LanguageModelSession.from_transcript(restored, model)
    session.respond_blocking("And a swallow?", options=short)
    for entry in session.transcript:
        print(f"{type(entry).__name__:18} {entry.turn.text!r}")
    print(model.token_count_blocking(session.transcript), "of", model.context_size, "tokens")


if __name__ == "__main__":
    main()
