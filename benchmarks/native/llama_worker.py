"""llama.cpp as a worker process: one JSON request and reply per line. Imports llama_cpp and nothing of openafm.

    {"do": "open", "model": PATH, "context": 1024}
    {"do": "prefill", "tokens": 256, "threads": 1}     clear the cache, then one batch; logits after its last token
    {"do": "decode", "steps": 8, "threads": 1}         token by token after 64, logits after each; rolled back at the end

The reply is {"wall_s": [...], "cpu_s": [...]}, wall time and the process's CPU time of each call of llama_decode. The
process ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import sys
from time import perf_counter, process_time
from typing import Any

import llama_cpp

LARGEST_BATCH, OPENING = 512, 64
_quiet = llama_cpp.llama_log_callback(lambda level, text, user_data: None)  # kept alive: C has a pointer to it


class Model:
    """A model with one sequence."""

    def __init__(self, path: str, context: int) -> None:
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context, LARGEST_BATCH, LARGEST_BATCH
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context of {context} tokens")
        self.batch = llama_cpp.llama_batch_init(LARGEST_BATCH, 0, 1)
        self.length = 0

    def prefill(self, tokens: int) -> list[tuple[float, float]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.length = 0
        return [self._step(tokens)]

    def decode(self, steps: int) -> list[tuple[float, float]]:
        if self.length != OPENING:
            self.prefill(OPENING)
        took = [self._step(1) for _ in range(steps)]
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, OPENING, -1)
        self.length = OPENING
        return took

    def _step(self, count: int) -> tuple[float, float]:
        batch = self.batch
        batch.n_tokens = count
        for i in range(count):
            batch.token[i], batch.pos[i] = 100 + (self.length + i) * 7919 % 16_000, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, i == count - 1
        wall, cpu = perf_counter(), process_time()
        failed = llama_cpp.llama_decode(self.context, batch)
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)  # waits for them
        took = perf_counter() - wall, process_time() - cpu
        if failed or not ctypes.cast(logits, ctypes.c_void_p).value or logits[0] != logits[0]:
            raise SystemExit(f"llama.cpp failed on {count} tokens after {self.length}")
        self.length += count
        return took


def main() -> None:
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    model: Model | None = None
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        took: list[tuple[float, float]] = []
        if order["do"] == "open":
            model = Model(order["model"], order["context"])
        else:
            assert model is not None
            llama_cpp.llama_set_n_threads(model.context, order["threads"], order["threads"])
            took = model.prefill(order["tokens"]) if order["do"] == "prefill" else model.decode(order["steps"])
        wall_s, cpu_s = [wall for wall, _ in took], [cpu for _, cpu in took]
        print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "version": llama_cpp.__version__}), flush=True)


if __name__ == "__main__":
    main()
