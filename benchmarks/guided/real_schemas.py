"""Measure real schemas in the format of JSONSchemaBench (MaskBench): files of a schema and instances, valid and invalid.

The data has no license, so it stays outside of the repository: clone guidance-ai/jsonschemabench and pass its folder
`maskbench/data`. Each set contributes 40 schemas, drawn with a fixed seed.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from guided.decoding import RandomLogits, Tally, write_answer
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from openafm.core.progress import progress
from openafm.runtime.decoding.grammar import Grammar, GrammarCompiler
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import JsonSchema

SETS = ("BFCL", "Glaiveai2K", "Github_trivial", "Github_easy", "Github_medium", "Github_hard", "Github_ultra")
SETS += ("JsonSchemaStore", "Kubernetes", "Snowplow", "WashingtonPost")
PER_SET = 40
MAX_CHARACTERS = 4_000  # of an instance
NUM_ANSWERS = 2
MAX_TOKENS = 250


def measure(folder: Path, tokenizer: Tokenizer, seed: int = 0) -> dict[str, Any]:
    """Return counts over the sample: schemas, accepted ones, wrong verdicts, reasons of refusals."""
    files = sample(folder, seed)
    compiler, logits = GrammarCompiler(tokenizer, cache_size=0), RandomLogits(tokenizer, seed)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    with progress("real schemas", len(files)) as bar:
        for number, (name, file) in enumerate(files, start=1):
            case = json.loads(file.read_text(encoding="utf-8"))
            try:
                grammar = compiler.json_schema(case["schema"])
            except UnsupportedSchemaError as error:
                reasons[re.sub(r"^\S*\.(\w+): ", r"\1: ", str(error))[:100]] += 1
            else:
                accepted[name] += 1
                _count_instances(case["tests"], grammar, tokenizer, counts)
                _count_answers(case["schema"], grammar, tokenizer, logits, counts)
            bar.update(number, f"{sum(accepted.values())} accepted")
    return {
        "schemas": len(files),
        "accepted": sum(accepted.values()),
        "accepted_by_set": dict(accepted),
        "invalid": counts["invalid instances accepted"] + counts["invalid answers"],
        "invalid_instances": counts["invalid instances"],
        "valid_instances": counts["valid instances"],
        "valid_refused": counts["valid instances refused"],
        "answers": counts["answers"],
        "reasons": dict(reasons.most_common(20)),
    }


def sample(folder: Path, seed: int) -> list[tuple[str, Path]]:
    """Return (set, file) pairs."""
    by_set: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.glob("*.json")):
        name = file.name.split("---")[0] if "---" in file.name else re.sub(r"_[a-z_]*\d*\.json$", "", file.name)
        if name in SETS and file.stat().st_size:
            by_set[name].append(file)
    chooser = random.Random(seed)
    return [(name, file) for name in SETS for file in chooser.sample(by_set[name], min(PER_SET, len(by_set[name])))]


def _count_instances(tests: list[Any], grammar: Grammar, tokenizer: Tokenizer, counts: Counter[str]) -> None:
    for test in tests[:4]:
        text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
        if len(text) > MAX_CHARACTERS:
            continue
        kind = "valid instances" if test["valid"] else "invalid instances"
        counts[kind] += 1
        matcher = grammar.matcher()._matcher
        tokens = tokenizer.encode(text)
        is_accepted = matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens)
        if bool(is_accepted and matcher.is_accepting()) != test["valid"]:
            counts[f"{kind} {'refused' if test['valid'] else 'accepted'}"] += 1


def _count_answers(
    schema: JsonSchema, grammar: Grammar, tokenizer: Tokenizer, logits: RandomLogits, counts: Counter[str]
) -> None:
    """Judge answers decoded from random logits. Truncated ones do not count."""
    judge = validator_for(schema, default=Draft202012Validator)(schema)
    for seed in range(NUM_ANSWERS):
        tokens = write_answer(tokenizer, grammar.matcher(), logits, random.Random(seed), MAX_TOKENS, Tally())
        if tokens[-1] == tokenizer.special.turn_end:
            counts["answers"] += 1
            counts["invalid answers"] += not judge.is_valid(json.loads(tokenizer.decode_bytes(tokens[:-1])))
