"""Whether a model calls a tool where one fits, and no tool where none fits; and what it has learned of its own tools.

    hand_written    requests in sixteen languages by other authors, with and without a fitting tool
    natural         test parts of snips and home (`--natural`): five tools, and the same requests without the right one

For both: how well the probability of calls as the first token separates requests with a fitting tool from others (`area`
under the ROC curve, 0.5 is chance), and the right decisions by the likeliest token (`likeliest_...`) and by the rule of
greedy decoding, at least half of the probability (`half_...`). Probabilities are those after the ranker's prior.

`own_...` are answers to requests of the built-in corpus, of the frames and tools of training and of the held-out ones, in
English and in four other languages: the right tools (`tool`), also with all arguments (`call`), and no call (`none`).

    python benchmarks/tool_choice.py [BUNDLE[=NAME] ...] [--natural FOLDER] [--count 200] [--quick] [--json]

A full run writes docs/benchmarks/tool_choice.json. Models are measured in one run: requests change with the corpus.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.fresh.cases import Case, tool_cases
from openafm.evaluation.fresh.natural import natural_cases
from openafm.evaluation.tool_turns import next_turn
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import AssistantTurn, Instructions, UserTurn

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "tool_choice.json"
LANGUAGES = {"english": {"en": 1.0}, "others": {"de": 1.0, "fr": 1.0, "ja": 1.0, "tr": 1.0}}
SEED, MOST_TOKENS = 4242, 160


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("models", nargs="*", default=["nano"], metavar="BUNDLE[=NAME]")
    parser.add_argument("--natural", type=Path, help="folder of NAME-test.jsonl.gz files")
    parser.add_argument(
        "--count", type=int, default=200, help="requests of each natural set, and of each part of the corpus"
    )
    options = parser.parse_args()
    count = 8 if options.quick else options.count
    rows = [measure(model, options.natural, count) for model in options.models]
    hand_in({"figures": {row["model"]: row["scores"] for row in rows}, "rows": rows}, REPORT, options)


def measure(model: str, natural: Path | None, count: int) -> dict[str, Any]:
    """Return the row of a model, named by bundle or as BUNDLE=NAME."""
    bundle, _, name = model.partition("=")
    loaded = fm.SystemLanguageModel(bundle=bundle).load()
    fitting = [case for case in tool_cases() if case.expected]
    scores = separation("hand_written", loaded, fitting, [case for case in tool_cases() if not case.expected])
    if natural is not None:
        fitting = [case for case in natural_cases(natural, count) if case.tools]
        scores |= separation("natural", loaded, fitting, [without_its_tool(case) for case in fitting])
    for split in ("training", "held_out"):
        for title, languages in LANGUAGES.items():
            config = SyntheticConfig(
                seed=SEED, split="train" if split == "training" else "held_out", tasks={"tool": 1.0}, languages=languages
            )
            scores |= {f"own_{split}_{title}_{kind}": share for kind, share in own_answers(loaded, config, count).items()}
    return {"model": name or bundle, "requests": count, "scores": scores}


def without_its_tool(case: Case) -> Case:
    names = {name for name, _ in case.expected}
    return replace(case, tools=tuple(tool for tool in case.tools if tool.name not in names), expected=[])


def separation(title: str, model: LoadedModel, fitting: Sequence[Case], others: Sequence[Case]) -> dict[str, float]:
    """Return the area, and the shares of right decisions for requests with a fitting tool and for others."""
    given, absent = ([first_token(model, case) for case in cases] for cases in (fitting, others))
    pairs = [(a > b) + (a == b) / 2 for a, _ in given for b, _ in absent]
    figures = {
        "area": np.mean(pairs),
        "likeliest_calls": np.mean([is_call for _, is_call in given]),
        "likeliest_none": np.mean([not is_call for _, is_call in absent]),
        "half_calls": np.mean([probability >= 0.5 for probability, _ in given]),
        "half_none": np.mean([probability < 0.5 for probability, _ in absent]),
    }
    return {f"{title}_{name}": round(float(figure), 4) for name, figure in figures.items()}


def first_token(model: LoadedModel, case: Case) -> tuple[float, bool]:
    """Return the probability that the answer begins with calls, and whether they are its likeliest token."""
    turns = opened((Instructions(text=case.instructions, tools=case.tools), UserTurn(text=case.prompt)))
    prompt = [*model.template.encode(model.tokenizer, turns).tokens, *model.template.generation_prompt(model.tokenizer)]
    sequence = model.engine.new_sequence()
    (logits_V,) = model.engine.step([(sequence, prompt)])
    model.engine.close(sequence)
    for processor in model.prior(turns, None, case.tools).processors:
        processor.process(logits_V, ())
    weights_V = np.exp(logits_V[: model.tokenizer.vocab_size] - logits_V.max())
    (calls_token,) = model.template.tool_calls_prompt(model.tokenizer)
    return float(weights_V[calls_token] / weights_V.sum()), int(weights_V.argmax()) == calls_token


def own_answers(model: LoadedModel, config: SyntheticConfig, count: int) -> dict[str, float]:
    """Return the shares of right tools, of right calls and of right texts without calls."""
    grades: defaultdict[str, list[bool]] = defaultdict(list)
    for conversation in generate(config, count):
        instructions, request, gold = conversation.turns[:3]
        assert isinstance(instructions, Instructions)
        assert isinstance(gold, AssistantTurn)
        answer = next_turn(model, (instructions, request), instructions.tools, MOST_TOKENS)
        calls = None if answer is None else answer.tool_calls
        if not gold.tool_calls:
            grades["none"].append(calls == ())
            continue
        found = sorted(call.name for call in calls or ())
        grades["tool"].append(found == sorted(call.name for call in gold.tool_calls))
        grades["call"].append(grades["tool"][-1] and all(call in (calls or ()) for call in gold.tool_calls))
    return {kind: round(float(np.mean(each)), 4) for kind, each in grades.items()}


if __name__ == "__main__":
    main()
