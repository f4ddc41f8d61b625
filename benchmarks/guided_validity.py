"""Check that guided generation never returns an invalid value: random types, random logits, an independent judge (report 7).

Every case makes a random type over everything that `@generable` can express (`guided/random_types.py`), and chooses
by random logits among the tokens that the grammar allows. The text must then satisfy three judges that do not use the
grammar: `jsonschema` on the published schema, conversion to the Python type, and a judge of the Python value that does not
use the schema. A text that does not end within the token limit is invalid too.

Under random logits numbers, strings and lists would hardly ever end, so tokens that close something (`}`, `]`, `"`, then
`,`, and the stop token) get a bonus that grows with the length of the answer. One case in ten is cut off on purpose: there,
the text so far must convert to the partial form of the type.

    python benchmarks/guided_validity.py [--quick] [--json] [--out FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guided.decoding import RandomLogits, Tally, write_answer
from guided.judges import judge_beginning, judge_text
from guided.random_types import TypeMaker, annotated

import openafm as fm
from openafm.core.files import write_json
from openafm.core.progress import progress
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer

MAX_TOKENS = 4_000
CUT_OFF_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Number of cases and vocabulary."""

    cases: int
    vocab_size: int
    seed: int = 0


FULL = Setting(cases=10_000, vocab_size=16_384)
QUICK = Setting(cases=300, vocab_size=4_096)


def run(setting: Setting, tally: Tally) -> dict[str, Any]:
    """Run all cases and return the figures."""
    tokenizer = _tokenizer(setting.vocab_size)
    compiler, logits = GrammarCompiler(tokenizer), RandomLogits(tokenizer, setting.seed)
    with progress("guided validity", setting.cases) as bar:
        for case in range(setting.cases):
            seed = setting.seed * 1_000_000 + case
            try:
                _case(seed, tokenizer, compiler, logits, tally, is_cut_off=case % CUT_OFF_EVERY == CUT_OFF_EVERY - 1)
            except Exception as error:  # any failure is a finding
                tally.num_invalid += 1
                tally.problems.append(f"case {seed}: {type(error).__name__}: {error}")
            bar.update(case + 1, f"{tally.num_invalid} invalid")
    return {
        "cases": setting.cases,
        "invalid": tally.num_invalid,
        "cut_off_on_purpose": tally.num_cut_off,
        "mean_mask_us": round(1e6 * tally.mask_s / max(1, tally.num_masks), 1),
        "mean_compile_ms": round(1e3 * tally.compile_s / setting.cases, 2),
        "forced_share": round(tally.num_forced / max(1, tally.num_tokens), 3),
        "mean_tokens": round(tally.num_tokens / setting.cases, 1),
        "kinds": dict(sorted(tally.kinds.items())),
        "problems": tally.problems[:20],
    }


def _case(
    seed: int, tokenizer: Tokenizer, compiler: GrammarCompiler, logits: RandomLogits, tally: Tally, is_cut_off: bool
) -> None:
    chooser = random.Random(seed)
    made = TypeMaker(seed).root()
    schema = fm.GenerationSchema(annotated(made))
    tally.kinds.update(_kinds(schema.to_dict()))
    start_s = time.process_time()
    matcher = compiler.json_schema(schema.to_dict()).matcher()
    tally.compile_s += time.process_time() - start_s
    limit = chooser.randrange(1, 30) if is_cut_off else MAX_TOKENS
    tokens = write_answer(tokenizer, matcher, logits, chooser, limit, tally)
    if tokens[-1] == tokenizer.special.turn_end:
        judge_text(tokenizer.decode_bytes(tokens[:-1]).decode(), made, schema)
    elif is_cut_off:
        tally.num_cut_off += 1
        judge_beginning(tokenizer.decode(tokens), schema)
    else:
        raise AssertionError(f"no end after {limit} tokens: {tokenizer.decode(tokens)[:200]!r}")


def _kinds(schema: Any) -> set[str]:
    """Return the features of a schema; the report lists how often each occurred."""
    if isinstance(schema, list):
        return set().union(*map(_kinds, schema))
    if not isinstance(schema, dict):
        return set()
    named = {"pattern", "enum", "anyOf", "minItems", "maxItems", "minimum", "maximum", "format", "default", "$ref"}
    own = {key for key in schema if key in named} | ({schema["type"]} if isinstance(schema.get("type"), str) else set())
    return own.union(*map(_kinds, schema.values()))


def _tokenizer(vocab_size: int) -> Tokenizer:
    conversations = generate(SyntheticConfig(seed=0), 4_000)
    texts = [turn.text for conversation in conversations for turn in conversation.turns]
    return train_tokenizer(TokenizerConfig(vocab_size=vocab_size), texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code; claims nothing")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    setting = QUICK if arguments.quick else FULL
    figures = run(setting, Tally())
    result = {
        "figures": figures,
        "peer": f"jsonschema {version('jsonschema')} (Draft 2020-12, dates checked), and judges of the Python values",
        "setting": {"quick": arguments.quick, **dataclasses.asdict(setting), "max_tokens": MAX_TOKENS},
    }
    if not arguments.json:
        for name, figure in figures.items():
            print(f"{name:20} {figure}")
    if arguments.out:
        write_json(arguments.out, result)
    print(json.dumps(result))
    return 1 if figures["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
