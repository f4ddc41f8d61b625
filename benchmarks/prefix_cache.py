"""Time to the first token of a session with 4,096 tokens of instructions and tools (report 7): prefilled, shared, restored.

- `cold`: the first session of a process that has these instructions and tools; they are prefilled.
- `shared`: a later session of the process: they are read from the prefix cache.
- `restored`: `LanguageModelSession.load` of a saved session, without shared prefixes; the file is in the page cache.

Each is measured from before the session is created to its answer of one token. The three alternate, on one thread, in CPU
time of the process including the kernel's; medians over rounds. `new_tokens` is the number of prefilled tokens.
`restore_gb_s` is the rate of `Engine.load` over a file's bytes, checksum included, and `copy_gb_s` that of a plain copy of
as many; `fork_us` is the time to fork the whole sequence. Models have random weights, in the shape of `on_device.nano` with
a longer context, and of `on_device.base` (`--quick`: an eighth of its layers).

    python benchmarks/prefix_cache.py [--quick] [--json] [--bundle-folder FOLDER]

A full run writes docs/benchmarks/prefix_cache.json. `--quick` runs the same code for one round and claims nothing.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENAFM_THREADS": "1", "OPENAFM_ENGINE": "native"}

import numpy as np
from native.synthetic import NUMERICS, random_tensors, synthetic_bundle, synthetic_folder
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.bundle import Bundle, open_bundle, shipped_bundle, write_bundle
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.models.sizes import named_size
from openafm.runtime.engines.prefix_cache import PrefixCache
from openafm.tokenizer.chat_template import ChatTemplate

OPENING_TOKENS, CONTEXT_LENGTH, NUM_LAYERS, QUICK_LAYERS = 4096, 8192, 56, 7
MOST_BYTES = 2**30
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "prefix_cache.json"
SENTENCE = "When the ferry is late, say so first, then name the next one and what it costs. "
PROMPT = "When does the last ferry leave?"
ONE_TOKEN = fm.GenerationOptions(maximum_response_tokens=1, tool_calling_mode="disallowed")


@fm.tool
def timetable(harbour: str, day: str) -> str:
    """The ferries that leave a harbour on a day."""
    return f"{harbour}, {day}: 9, 12, 18"


@fm.tool
def price(harbour: str, island: str, passengers: int) -> str:
    """What a crossing costs."""
    return f"{harbour} to {island}: {passengers * 4}"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--bundle-folder", type=Path, default=synthetic_folder(), help="where the synthetic bundle is kept")
    options = parser.parse_args()
    num_layers = QUICK_LAYERS if options.quick else NUM_LAYERS

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = synthetic_bundle(options.bundle_folder, num_layers=num_layers)
        rounds = {"nano": 1 if options.quick else 9, "base": 1 if options.quick else 3}
        for name, bundle in (("nano", nano_bundle(Path(folder) / "nano")), ("base", base)):
            measured = measure(bundle, Path(folder), rounds[name])
            figures |= {f"{key}_{name}": value for key, value in measured.items()}
    report = {
        "figures": {"shared_ratio": figures["shared_ratio_base"], "restored_ratio": figures["restored_ratio_base"]}
        | figures,
        "peer": "the same session with its instructions prefilled; a plain copy of as many bytes",
        "setting": {
            "opening_tokens": OPENING_TOKENS,
            "rounds": rounds,
            "layers": {"nano": len(named_size("on_device.nano").layers), "base": num_layers},
            "threads": 1,
            "clock": "CPU time of the process",
            "machine": platform.machine(),
        },
    }
    hand_in(report, REPORT, options)


def nano_bundle(path: Path) -> Bundle:
    """The shape of `on_device.nano` with a context for 4,096 tokens and a prompt, and the shipped model's tokenizer."""
    tokenizer = open_bundle(shipped_bundle()).tokenizer
    config = replace(named_size("on_device.nano"), context_length=CONTEXT_LENGTH)
    return write_bundle(
        path,
        config=config,
        tokenizer=tokenizer,
        template=ChatTemplate(),
        tensors=random_tensors(config),
        numerics=NUMERICS,
    )


def measure(bundle: Bundle, folder: Path, num_rounds: int) -> dict[str, Any]:
    """The three sessions, alternating, and the engine's own rates."""
    model = fm.SystemLanguageModel(bundle=bundle.path)
    loaded, saved = model.load(), folder / f"{bundle.name}.session"
    instructions = long_instructions(model)

    def cold() -> fm.LanguageModelSession:
        loaded.prefixes = PrefixCache(loaded.engine, MOST_BYTES)
        return fm.LanguageModelSession(instructions, model, [timetable, price])

    def shared() -> fm.LanguageModelSession:
        return fm.LanguageModelSession(instructions, model, [timetable, price])

    def restored() -> fm.LanguageModelSession:
        loaded.prefixes = PrefixCache(loaded.engine, 0)
        return fm.LanguageModelSession.load(saved, model, [timetable, price])

    warm = fm.LanguageModelSession("Be brief.", model, [timetable, price])
    warm.respond_blocking(PROMPT, options=ONE_TOKEN)  # weights, grammar and threads
    sides: dict[str, Callable[[], fm.LanguageModelSession]] = {"cold": cold, "shared": shared, "restored": restored}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    new_tokens: dict[str, int] = {}
    answers: set[str] = set()
    for _ in range(num_rounds):
        for name, begin in sides.items():
            if name == "restored":
                save_opening(shared(), saved)
            gc.collect()
            started = process_time()
            session = begin()
            answers.add(session.respond_blocking(PROMPT, options=ONE_TOKEN))
            seconds[name].append(process_time() - started)
            new_tokens[name] = session.usage.prompt_tokens - session.usage.cached_tokens
            del session
    assert len(answers) == 1, answers
    ms = {name: 1000 * statistics.median(each) for name, each in seconds.items()}
    return (
        {f"{name}_ms": round(value, 2) for name, value in ms.items()}
        | {f"{name}_ratio": round(ms[name] / ms["cold"], 5) for name in ("shared", "restored")}
        | {f"new_tokens_{name}": count for name, count in new_tokens.items()}
        | under_them(loaded, folder / "sequence", max(5, num_rounds))
    )


def save_opening(session: fm.LanguageModelSession, path: Path) -> None:
    """Save a session that has prefilled its instructions and generated nothing."""
    session._responder.prewarm("", lambda: False)
    session.save_blocking(path)


def under_them(loaded: LoadedModel, path: Path, num_rounds: int) -> dict[str, float]:
    """A fork and a file of 4,096 tokens, compared with a plain copy of as many bytes."""
    engine = loaded.engine
    sequence = engine.new_sequence()
    tokens = np.random.default_rng(0).integers(engine.vocab_size, size=OPENING_TOKENS).tolist()
    for start in range(0, OPENING_TOKENS, 512):
        engine.step([(sequence, tokens[start : start + 512])])
    engine.save(sequence, path)
    source = np.frombuffer(path.read_bytes(), np.uint8)
    work: dict[str, Callable[[], object]] = {
        "fork": lambda: engine.fork(sequence),
        "restore": lambda: engine.load(path),
        "copy": lambda: source.copy(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(num_rounds):
        for name, run in work.items():
            started = process_time()
            run()
            seconds[name].append(process_time() - started)
    median_s = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "file_mb": round(len(source) / 1e6, 2),
        "fork_us": round(1e6 * median_s["fork"], 1),
        "restore_ms": round(1e3 * median_s["restore"], 2),
        "restore_gb_s": round(len(source) / median_s["restore"] / 1e9, 2),
        "copy_gb_s": round(len(source) / median_s["copy"] / 1e9, 2),
    }


def long_instructions(model: fm.SystemLanguageModel) -> str:
    """Instructions that are 4,096 tokens together with the tools, within a few."""

    def count(num_words: int) -> int:
        text = " ".join((SENTENCE * OPENING_TOKENS).split()[:num_words])
        return model.token_count_blocking(fm.LanguageModelSession(text, model, [timetable, price]).transcript)

    per_word = (count(1000) - count(500)) / 500
    num_words = int((OPENING_TOKENS - count(500)) / per_word) + 500
    while count(num_words) < OPENING_TOKENS:
        num_words += 1
    return " ".join((SENTENCE * OPENING_TOKENS).split()[:num_words])


if __name__ == "__main__":
    main()
