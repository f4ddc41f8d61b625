"""A process that uses the synthetic bundle: time to first token and memory.

- `first_token_s`: from the start of the interpreter to the logits after a short prompt, in wall time, tokenizer and chat
  template included, in a process with repacked weights on disk. Torch must not have been imported. `session_first_s` is
  the same up to the first piece of an answer that a session streams, which waits for a grammar as well.
- `rss_gb`: peak memory of a process that also compiles a JSON grammar and generates under it, minus keys and values, in
  10^9 bytes. `weights_gb` of it is the mapped file, which two concurrent processes share: `weights_shared` is the
  share of it that the system counts as shared in both, `two_processes_gb` the memory of both together.

As a script this file is that process: `python start.py BUNDLE`; a line of JSON when it has its first token, and one when it
has generated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

PROMPT = "What will the weather be like in Oslo on Thursday?"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_ANSWER_TOKENS = 48


def figures(setting: Any, bundle: Any) -> dict[str, Any]:
    """Run processes one after the other for their start, then two concurrently for their memory."""
    from measuring import Worker, median, rounded

    first_s: list[float] = []
    for _ in range(setting.starts + 1):
        start = perf_counter()
        process = Worker(sys.executable, __file__, bundle.path)
        told = process.ask()
        first_s.append(perf_counter() - start)
        assert not told["has_torch"], "torch was imported"
        process.close()
    session_s: list[float] = []
    for _ in range(setting.starts + 1):
        start = perf_counter()
        process = Worker(sys.executable, __file__, bundle.path, "session")
        process.ask()
        session_s.append(perf_counter() - start)
        process.close()
    pair = [Worker(sys.executable, __file__, bundle.path) for _ in range(2)]
    for process in pair:
        process.ask()
    used = [process.ask() for process in pair]
    weights = [_memory(process.pid, ".bin") for process in pair]
    together = sum(_memory(process.pid)["Pss"] for process in pair)
    for process in pair:
        process.close()
    return {
        "first_token_s": rounded(median(first_s[1:])),
        "session_first_s": rounded(median(session_s[1:])),
        "rss_gb": rounded(max(each["peak"] - each["kv"] for each in used) / 1e9),
        "weights_gb": rounded(weights[0]["Rss"] / 1e9),
        "weights_shared": rounded(min(each["Shared_Clean"] / each["Rss"] for each in weights)),
        "two_processes_gb": rounded(together / 1e9),
    }


def _memory(pid: int, name: str = "") -> dict[str, int]:
    """Bytes of a process's memory by kind; of mapped files only those with the given suffix."""
    total: dict[str, int] = {}
    counts = True
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            counts = words[-1].endswith(name)
        elif counts and words[-1] == "kB":
            total[words[0][:-1]] = total.get(words[0][:-1], 0) + int(words[1]) * 1024
    return total


def stream(bundle: str) -> None:
    """Wait for the first piece of an answer."""
    import asyncio

    import openafm as fm

    async def first() -> None:
        model = fm.SystemLanguageModel(bundle=bundle)
        async for _ in fm.LanguageModelSession(model=model).stream_response(PROMPT):
            break

    asyncio.run(first())
    sys.stdin.readline()
    print("{}", flush=True)


def generate_twice(path: str) -> None:
    """Without a grammar up to the first token, then under one."""
    from openafm.bundle import open_bundle
    from openafm.runtime.decoding.prefill import prefill
    from openafm.runtime.engines.selection import open_engine
    from openafm.tokenizer.conversation import UserTurn

    bundle = open_bundle(path)
    engine = open_engine(bundle)
    tokenizer, template = bundle.tokenizer, bundle.template
    prompt = [*template.encode(tokenizer, [UserTurn(text=PROMPT)]).tokens, *template.generation_prompt(tokenizer)]
    prefill(engine, engine.new_sequence(), prompt)
    sys.stdin.readline()
    print(json.dumps({"has_torch": "torch" in sys.modules}), flush=True)
    if not sys.stdin.readline():
        return

    from openafm.models.accounting import kv_bytes
    from openafm.runtime.decoding.generation import generate
    from openafm.runtime.decoding.grammar import GrammarCompiler
    from openafm.runtime.decoding.sampling import GreedyConfig

    sequence = engine.new_sequence()
    answer = generate(
        engine,
        sequence,
        prompt,
        sampling=GreedyConfig(),
        stop_tokens=(),
        max_tokens=_ANSWER_TOKENS,
        grammar=GrammarCompiler(tokenizer, template).json_schema(SCHEMA),
    )
    for _ in answer:
        pass
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    kv = kv_bytes(bundle.config, bundle.numerics.kv, 2 * len(prompt) + _ANSWER_TOKENS)
    print(json.dumps({"peak": peak, "kv": kv}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    (stream if sys.argv[2:] == ["session"] else generate_twice)(sys.argv[1])
