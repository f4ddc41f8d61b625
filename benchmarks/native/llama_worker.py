"""llama.cpp as a worker process: one JSON request and reply per line. Imports llama_cpp and nothing of openafm.

    {"do": "open", "model": PATH, "context": 1024}
    {"do": "prefill", "tokens": 256, "threads": 1}     clear the cache, then one batch; logits after its last token
    {"do": "decode", "steps": 8, "threads": 1}         token by token after 64, logits after each; rolled back at the end
    {"do": "first", "threads": 1}                      8 tokens; also the CPU time since the start, and the largest memory

With "sequences": N in "open", a decode step has a token of each sequence. The reply is {"wall_s": [...], "cpu_s": [...]}:
wall time and the process's CPU time of each call of llama_decode. The process ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import llama_cpp

LARGEST_BATCH, OPENING, FIRST = 512, 64, 8
_quiet = llama_cpp.llama_log_callback(lambda level, text, user_data: None)  # kept alive: C has a pointer to it


class Model:
    """A model with one or more sequences, each with room for `context` tokens."""

    def __init__(self, path: str, context: int, sequences: int) -> None:
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context * sequences, LARGEST_BATCH, LARGEST_BATCH
        parameters.n_seq_max = self.sequences = sequences
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context of {context} tokens")
        self.batch = llama_cpp.llama_batch_init(LARGEST_BATCH, 0, 1)
        self.length = 0

    def prefill(self, tokens: int) -> list[tuple[float, float]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.length = 0
        return [self._step(tokens, 1)]

    def decode(self, steps: int) -> list[tuple[float, float]]:
        if self.length != OPENING:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
            self.length = 0
            for _ in range(OPENING):
                self._step(1, self.sequences)
        took = [self._step(1, self.sequences) for _ in range(steps)]
        for sequence in range(self.sequences):
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), sequence, OPENING, -1)
        self.length = OPENING
        return took

    def _step(self, count: int, sequences: int) -> tuple[float, float]:
        """Decode the next `count` tokens of each of the first sequences, with logits after the last of each."""
        batch = self.batch
        batch.n_tokens = count * sequences
        for place in range(count * sequences):
            sequence, i = divmod(place, count)
            batch.token[place], batch.pos[place] = 100 + (self.length + i) * 7919 % 16_000, self.length + i
            batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, sequence, i == count - 1
        wall, cpu = perf_counter(), process_time()
        failed = llama_cpp.llama_decode(self.context, batch)
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)  # waits for them
        took = perf_counter() - wall, process_time() - cpu
        if failed or not ctypes.cast(logits, ctypes.c_void_p).value or logits[0] != logits[0]:
            raise SystemExit(f"llama.cpp failed on {count} tokens after {self.length}")
        self.length += count
        return took


def largest_memory_gb() -> float:
    """Return the largest resident memory of this process; that of getrusage includes the process that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e9


def main() -> None:
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    model: Model | None = None
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        took: list[tuple[float, float]] = []
        if order["do"] == "open":
            model = Model(order["model"], order["context"], order.get("sequences", 1))
        else:
            assert model is not None
            llama_cpp.llama_set_n_threads(model.context, order["threads"], order["threads"])
            if order["do"] == "first":
                model.prefill(FIRST)
                peak_gb = largest_memory_gb()
                print(json.dumps({"cpu_s": process_time(), "peak_gb": peak_gb}), flush=True)
                continue
            took = model.prefill(order["tokens"]) if order["do"] == "prefill" else model.decode(order["steps"])
        wall_s, cpu_s = [wall for wall, _ in took], [cpu for _, cpu in took]
        print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "version": llama_cpp.__version__}), flush=True)


if __name__ == "__main__":
    main()
