"""Agreement of the native engine's choices with torch's after every token of prompts and of greedy answers, teacher-forced.

Prompts are messages of the built-in corpus's held-out part. Both engines read the texts 32 tokens at a time; a quarter of
them also in one step each, as in a session, and some with every set of kernels that this processor has. The figures are how
often the choices are equal, and for the others, how close the first engine's two candidates were.

    python benchmarks/native/agreement.py [--quick] [--json] [--bundle NAME] [--limit 1000]

A full run (about six minutes) writes docs/benchmarks/native_agreement.json. `--quick` runs the same code on 5 prompts and
claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from openafm.bundle import Bundle, open_bundle, resolve_model
from openafm.data.synthetic.corpus import SyntheticConfig, example
from openafm.runtime.agreement import ChoiceAgreement, compare_choices
from openafm.runtime.decoding.generation import generate
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine
from openafm.runtime.native.library import kernel_names, native_library
from openafm.tokenizer.conversation import AssistantTurn
from openafm.tokenizer.template import opened

REPORT = Path(__file__).parents[2] / "docs" / "benchmarks" / "native_agreement.json"
ASKED = 0.999
PROMPTS, QUICK_PROMPTS, KERNEL_PROMPTS = 1000, 5, 30
MOST_ANSWER, MOST_PROMPT = 64, 400  # tokens


@dataclass(frozen=True, kw_only=True)
class Text:
    """A prompt with the native engine's answer."""

    prompt: Sequence[int]
    answer: Sequence[int]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--bundle", help="a compressed bundle; by default the one that answers")
    parser.add_argument("--limit", type=int, default=PROMPTS, help="prompts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bundle = open_bundle(options.bundle or resolve_model())
    found = figures(bundle, QUICK_PROMPTS if options.quick else options.limit)
    report = {
        "figures": found,
        "peer": "TorchEngine in the bundle's numerics",
        "setting": {
            "bundle": f"{bundle.name} {bundle.identity}",
            "asked": ASKED,
            "most_answer_tokens": MOST_ANSWER,
            "kernels": kernel_names(native_library()),
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    if not options.json:
        for key, value in found.items():
            print(f"{key:36} {value}")
    print(json.dumps(report))
    if not options.quick and options.bundle is None and options.limit == PROMPTS:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def figures(bundle: Bundle, num_prompts: int) -> dict[str, float]:
    peer, native = TorchEngine.open(bundle), NativeEngine(bundle, num_threads=1)
    texts = list(islice(prompted(bundle, native), num_prompts))
    found = compare_choices(peer, native, [text.tokens for text in texts])
    num_prompt_tokens = sum(len(text.prompt) for text in texts)
    in_prompts = sum(difference.position < len(texts[difference.sequence].prompt) for difference in found.differences)
    in_answers = len(found.differences) - in_prompts
    whole = compare_choices(
        peer, native, [text.tokens for text in texts[: -(-num_prompts // 4)]], piece=bundle.config.context_length
    )
    report = {
        "num_prompts": len(texts),
        "num_positions": found.num_positions,
        "num_identical_texts": found.num_identical,
        "agreement": found.share,
        "agreement_prompts": 1 - in_prompts / num_prompt_tokens,
        "agreement_answers": 1 - in_answers / (found.num_positions - num_prompt_tokens),
        **margins("", found),
        "num_positions_in_one_step": whole.num_positions,
        "agreement_in_one_step": whole.share,
        **margins("_in_one_step", whole),
    }
    for kernels in kernel_names(native_library()):
        engine = NativeEngine(bundle, num_threads=1, kernels=kernels)
        few = compare_choices(peer, engine, [text.tokens for text in texts[:KERNEL_PROMPTS]])
        report |= {f"num_positions_{kernels}": few.num_positions, f"agreement_{kernels}": few.share}
    return report


def margins(name: str, found: ChoiceAgreement) -> dict[str, float]:
    all_of_them = [difference.margin for difference in found.differences] or [0.0]
    return {f"largest_margin{name}": found.largest_margin, f"median_margin{name}": float(np.median(all_of_them))}


def prompted(bundle: Bundle, engine: Engine) -> Iterator[Text]:
    """Prompts of the corpus, each with the greedy answer of `engine`."""
    tokenizer, template = bundle.tokenizer, bundle.template
    grammar = GrammarCompiler(tokenizer, template).text()
    index = 0
    while True:
        turns = opened(example(SyntheticConfig(split="held_out"), index).turns)
        index += 1
        first = next((i for i, turn in enumerate(turns) if isinstance(turn, AssistantTurn)), len(turns))
        prompt = [*template.encode(tokenizer, turns[:first]).tokens, *template.generation_prompt(tokenizer)]
        if len(prompt) > MOST_PROMPT:
            continue
        answer = generate(
            engine,
            engine.new_sequence(),
            prompt,
            sampling=GreedyConfig(),
            stop_tokens=template.stop_tokens(tokenizer),
            max_tokens=MOST_ANSWER,
            grammar=grammar,
        )
        yield Text(prompt=prompt, answer=[event.token for event in answer])


if __name__ == "__main__":
    main()
