"""Check that every schema of the framework compiles and holds, at the vocabulary size of the large models.

Report 7. A case is a random type over everything that can be generated (`guided/random_types.py`) or, one time in three, the
calls of one to four tools. The schema is compiled, an answer is decoded from random logits (`guided/decoding.py`), and
judged by `jsonschema`, by conversion to the Python type, and by an independent judge of Python values; calls also by the
parameters of their tool. An answer that does not end within the token limit is invalid.

The vocabulary of 150,000 tokens is trained on generated conversations and on the 16 artificial languages of
`tokenizer_extension.py`. Times are process CPU time of one thread; schemas are compiled from scratch; masks are those of
positions with a choice.

    python benchmarks/schema_coverage.py [--quick] [--bench FOLDER] [--json] [--out FILE]

With `--bench` it measures the real schemas of a folder instead (`guided/real_schemas.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guided import real_schemas
from guided.decoding import RandomLogits, Tally, write_answer
from guided.judges import judge_text, judge_value
from guided.random_types import RandomType, TypeMaker, annotated
from tokenizer_extension import FULL as LANGUAGES
from tokenizer_extension import generated_language

import openafm as fm
from openafm.core.files import write_json
from openafm.core.progress import progress
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig, train_tokenizer
from openafm.tokenizer.conversation import JsonSchema, ToolDefinition
from openafm.tokenizer.tool_calls import tool_calls_schema

MAX_TOKENS = 4_000
TOOLS_EVERY = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Number of cases and vocabulary."""

    cases: int
    vocab_size: int
    num_languages: int
    seed: int = 0


FULL = Setting(cases=10_000, vocab_size=150_000, num_languages=16)
QUICK = Setting(cases=150, vocab_size=8_192, num_languages=1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schema and the judge that raises on an invalid text."""

    schema: JsonSchema
    judge: Callable[[str], None]


@dataclass
class Count:
    """Counts over all cases."""

    compiled: int = 0
    invalid: int = 0
    compile_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run(setting: Setting) -> dict[str, Any]:
    """Run all cases and return the figures."""
    tokenizer = _tokenizer(setting)
    compiler, logits = GrammarCompiler(tokenizer, cache_size=0), RandomLogits(tokenizer, setting.seed)
    count, tally = Count(), Tally()
    with progress("schema coverage", setting.cases) as bar:
        for case in range(setting.cases):
            seed = setting.seed * 1_000_000 + case
            try:
                made = _tools_case(seed) if case % TOOLS_EVERY == 0 else _type_case(seed)
                _run_case(seed, made, tokenizer, compiler, logits, count, tally)
            except Exception as error:  # any failure is a finding
                count.invalid += 1
                count.problems.append(f"case {seed}: {type(error).__name__}: {error}"[:500])
            bar.update(case + 1, f"{count.invalid} invalid")
    return {
        "cases": setting.cases,
        "compiled": count.compiled,
        "invalid": count.invalid,
        "mean_mask_us": round(1e6 * tally.mask_s / max(1, tally.num_masks), 1),
        "compile_p50_ms": round(1e3 * statistics.median(count.compile_s), 2),
        "compile_p99_ms": round(1e3 * statistics.quantiles(count.compile_s, n=100)[-1], 2),
        "masks": tally.num_masks,
        "forced_share": round(tally.num_forced / max(1, tally.num_tokens), 3),
        "mean_tokens": round(tally.num_tokens / setting.cases, 1),
        "problems": count.problems[:20],
    }


def _run_case(
    seed: int,
    case: Case,
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
    logits: RandomLogits,
    count: Count,
    tally: Tally,
) -> None:
    start_s = time.process_time()
    matcher = compiler.json_schema(case.schema).matcher()
    count.compile_s.append(time.process_time() - start_s)
    count.compiled += 1
    tokens = write_answer(tokenizer, matcher, logits, random.Random(seed), MAX_TOKENS, tally)
    if tokens[-1] != tokenizer.special.turn_end:
        raise AssertionError(f"no end after {MAX_TOKENS} tokens: {tokenizer.decode(tokens)[:200]!r}")
    case.judge(tokenizer.decode_bytes(tokens[:-1]).decode())


def _type_case(seed: int) -> Case:
    made = TypeMaker(seed).root()
    schema = fm.GenerationSchema(annotated(made))
    return Case(schema=schema.to_dict(), judge=lambda text: judge_text(text, made, schema))


def _tools_case(seed: int) -> Case:
    chooser, maker = random.Random(seed), TypeMaker(seed)
    made = {f"tool_{i}": maker.class_of_arguments() for i in range(chooser.randint(1, 4))}
    schemas = {name: fm.GenerationSchema(arguments.annotation) for name, arguments in made.items()}
    tools = [ToolDefinition(name=name, description="", parameters=schemas[name].to_dict()) for name in made]
    return Case(schema=tool_calls_schema(tools), judge=lambda text: _judge_calls(text, made, schemas))


def _judge_calls(text: str, made: dict[str, RandomType], schemas: dict[str, fm.GenerationSchema]) -> None:
    calls = json.loads(text)
    if not isinstance(calls, list) or not calls:
        raise AssertionError(f"no list of calls: {text!r}")
    for call in calls:
        if list(call) != ["name", "arguments"] or call["name"] not in made:
            raise AssertionError(f"no call of a tool: {call!r}")
        judge_value(call["arguments"], made[call["name"]], schemas[call["name"]])


def _tokenizer(setting: Setting) -> Tokenizer:
    conversations = generate(SyntheticConfig(seed=0), 4_000)
    texts = [turn.text for conversation in conversations for turn in conversation.turns]
    for seed in range(setting.num_languages):
        texts += generated_language(seed, LANGUAGES)
    return train_tokenizer(TokenizerConfig(vocab_size=setting.vocab_size), texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code; claims nothing")
    parser.add_argument(
        "--bench", type=Path, metavar="FOLDER", help="measure real schemas: maskbench/data of JSONSchemaBench"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    setting = QUICK if arguments.quick or arguments.bench else FULL
    figures = run(setting) if arguments.bench is None else real_schemas.measure(arguments.bench, _tokenizer(setting))
    result = {
        "figures": figures,
        "peer": f"jsonschema {version('jsonschema')} (Draft 2020-12), and judges of the Python values",
        "setting": {
            "quick": arguments.quick,
            "bench": arguments.bench is not None,
            **dataclasses.asdict(setting),
            "max_tokens": MAX_TOKENS,
            "llguidance": version("llguidance"),
            "pydantic": version("pydantic"),
        },
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
