"""Whether the native engine chooses what torch's does: teacher-forced, behind every token of prompts and of the model's own
greedy answers to them.

Prompts are messages of the built-in corpus's held-out part. Says how often the choices are equal, and
for those that are not, how close the first engine's two candidates were. `--limit` chooses how many prompts.

    python benchmarks/native/agreement.py [--quick] [--json] [--bundle NAME] [--limit 1000]
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch

from openafm.bundle import Bundle, open_bundle, resolve_model
from openafm.data.synthetic.corpus import SyntheticConfig, example
from openafm.runtime.agreement import Agreement, agreement
from openafm.runtime.engine import Engine
from openafm.runtime.generation import generate
from openafm.runtime.grammar import GrammarCompiler
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.sampling import GreedyConfig
from openafm.runtime.torch_engine import TorchEngine
from openafm.tokenizer.conversation import AssistantTurn
from openafm.tokenizer.template import opened

ASKED = 0.999
MOST_ANSWER, MOST_PROMPT = 64, 400  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--bundle", help="a compressed bundle; by default the one that answers")
    parser.add_argument("--limit", type=int, default=1000, help="prompts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bundle = open_bundle(options.bundle or resolve_model())
    native, peer = NativeEngine(bundle, num_threads=1), TorchEngine.open(bundle)
    found = agreement(peer, native, sequences(bundle, native, 5 if options.quick else options.limit))
    report = {
        "figures": figures(found),
        "peer": "TorchEngine in the bundle's numerics",
        "setting": {
            "bundle": f"{bundle.name} {bundle.identity}",
            "asked": ASKED,
            "most_answer_tokens": MOST_ANSWER,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    if not options.json:
        for key, value in figures(found).items():
            print(f"{key:32} {value}")
    print(json.dumps(report))


def figures(found: Agreement) -> dict[str, float]:
    margins = np.array(found.margins or (0.0,))
    counts = {key: value for key, value in asdict(found).items() if key != "margins"}
    return counts | {
        "agreement": found.share,
        "largest_margin": found.largest_margin,
        "median_margin": float(np.median(margins)),
    }


def sequences(bundle: Bundle, engine: Engine, count: int) -> Iterator[list[int]]:
    """Prompts, each with the greedy answer that `engine` gives it."""
    tokenizer, template = bundle.tokenizer, bundle.template
    grammar = GrammarCompiler(tokenizer, template).text()
    index = 0
    while count:
        turns = opened(example(SyntheticConfig(split="held_out"), index).turns)
        index += 1
        first = next((i for i, turn in enumerate(turns) if isinstance(turn, AssistantTurn)), len(turns))
        opening = [*template.encode(tokenizer, turns[:first]).tokens, *template.generation_prompt(tokenizer)]
        if len(opening) > MOST_PROMPT:
            continue
        answer = generate(
            engine,
            engine.new_sequence(),
            opening,
            sampling=GreedyConfig(),
            stop_tokens=template.stop_tokens(tokenizer),
            max_tokens=MOST_ANSWER,
            grammar=grammar,
        )
        yield [*opening, *(event.token for event in answer)]
        count -= 1


if __name__ == "__main__":
    main()
