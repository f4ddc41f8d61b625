"""Answers of llama.cpp under its own grammar, as a process: one JSON request and reply per line. Imports nothing of openafm.

    {"model": PATH, "schema": {...}}           open, compile the grammar of the schema; the reply is {"version": ...}
    {"prompt": [1, 2, ...], "max_tokens": 200} one greedy answer; the reply is {"seconds", "tokens", "text"}

The time includes the prompt, as in openafm's measurement.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter

import llama_cpp


def main() -> None:
    opened = json.loads(sys.stdin.readline())
    model = llama_cpp.Llama(opened["model"], n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        model.reset()
        grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(opened["schema"]), verbose=False)
        started = perf_counter()
        reply = model.create_completion(
            request["prompt"], max_tokens=request["max_tokens"], temperature=0.0, repeat_penalty=1.0, grammar=grammar
        )
        seconds = perf_counter() - started
        text = reply["choices"][0]["text"]
        print(json.dumps({"seconds": seconds, "tokens": reply["usage"]["completion_tokens"], "text": text}), flush=True)


if __name__ == "__main__":
    main()
