"""CPU time of the HTTP layer for each streamed token.

The server runs in a thread of this process; a client process reads the stream. `ms_per_token` is the CPU time of this
process, all threads, for an answer over HTTP minus that of the same answer from `serving.inference.Answer`, divided by its
tokens; medians over alternating rounds. Required: at most 0.2 ms.

    python benchmarks/http_overhead.py [--quick] [--json]

A full run writes docs/benchmarks/http_overhead.json. `--quick` runs the same code for few rounds and claims nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

os.environ["OPENAFM_THREADS"] = "1"

import uvicorn
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.serving.app import build_app
from openafm.serving.config import ServerConfig
from openafm.serving.inference import Answer, Ended
from openafm.serving.inputs import ChatInput, Decoding, encode
from openafm.serving.server import bind, uvicorn_config
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import UserTurn

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "http_overhead.json"
PROMPT = "Count."
# Reads a streamed answer of many tokens; its CPU time is not that of this process.
CLIENT = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/v1/chat/completions", body=sys.argv[2])
reply = connection.getresponse()
assert reply.status == 200, reply.read()
while reply.read(65536):
    pass
"""


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    rounds, num_tokens = (8, 300) if options.quick else (15, 1000)
    model = fm.SystemLanguageModel(bundle="nano").load()
    bias = {model.template.stop_token(model.tokenizer): -100.0}  # the answer does not end
    source = ChatInput(turns=opened((UserTurn(text=PROMPT),)))
    decoding = Decoding(max_tokens=num_tokens, bias=bias)
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": num_tokens,
        "logit_bias": {str(token): value for token, value in bias.items()},
        "stream": True,
    }

    def direct() -> int:
        ended = None
        for delta in Answer(model, encode(model, source, None), decoding, None, lambda: False).deltas():
            ended = delta
        assert isinstance(ended, Ended)
        return ended.num_generated

    costs: dict[str, list[float]] = {"http": [], "direct": []}
    with running_server() as port:
        for _ in range(rounds + 1):
            started = time.process_time()
            subprocess.run([sys.executable, "-c", CLIENT, str(port), json.dumps(body)], check=True)
            costs["http"].append(time.process_time() - started)
            started = time.process_time()
            count = direct()
            costs["direct"].append(time.process_time() - started)
    http_s, direct_s = (statistics.median(costs[name][1:]) for name in ("http", "direct"))
    figures = {
        "ms_per_token": round(1000 * (http_s - direct_s) / count, 4),
        "direct_ms_per_token": round(1000 * direct_s / count, 4),
        "tokens": count,
    }
    machine = {"machine": platform.processor() or platform.machine(), "load_average": os.getloadavg()[0], "rounds": rounds}
    hand_in({"figures": figures, "setting": machine}, REPORT, options)


@contextlib.contextmanager
def running_server() -> Iterator[int]:
    config = ServerConfig(port=0, models=("nano",), guardrails=False)
    with bind(config) as bound:
        server = uvicorn.Server(uvicorn_config(config, build_app(config)))
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield bound.getsockname()[1]
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
