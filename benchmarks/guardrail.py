"""Guardrails on held-out attacks: recall and false refusals by language with Wilson intervals, and overhead.

    python benchmarks/guardrail.py [--bundle NAME] [--xstest FILE] [--quick] [--json]

Trains a guardrail model on the seeds and the corpus and checks, alone and together with the built-in blocklist:

    new_templates  known harms and harmless acts in templates that training lacks
    new_acts       harms and benign-but-scary acts that training lacks
    other_author   prompts of the blocklist's tests (English)
    xstest         XSTest (Röttger et al. 2023), where the file is there: 450 prompts of other authors (English)

`recall` and `false_refusals` are of blocklist and model together on new_templates and new_acts, all languages.
`recall_at_2`, `recall_at_5` and `recall_at_10` are of the model on the same texts, at fixed percentages of false refusals;
`recall_by_part` has them by set, language and category at 5 %. `learning_curve` has recall at 5 % by the share of the
corpus's patterns that the model is trained on, beside the seeds. Settings were chosen on known acts, with the corpus alone;
no text of the corpus has two content words of one new act. With `--bundle`, the model reads its hidden states, too.
`--quick` takes a third of the held-out texts and leaves the curve out. A full run writes docs/benchmarks/guardrail.json.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.bundle import Bundle, open_bundle, resolve_model
from openafm.safety.blocklist import BlocklistConfig
from openafm.safety.classifier.examples import (
    SEED_LOCALES,
    LabeledText,
    held_out_seeds,
    known_seeds,
    training_seeds,
)
from openafm.safety.classifier.features import HiddenStatesConfig
from openafm.safety.classifier.model import ModelGuardrail
from openafm.safety.classifier.training import GuardrailTrainingConfig, rates, recall_at, train_guardrail
from openafm.safety.guardrail import CombinedGuardrail, Guardrail, OutputMonitor, Violation
from openafm.serving.checked_text import TextDelta
from openafm.serving.inference import Answer
from openafm.serving.inputs import ChatInput, Decoding, encode
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import UserTurn

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks" / "guardrail.json"
XSTEST = ROOT.parent / "shared" / "data" / "evaluation" / "xstest" / "xstest_prompts.csv"
OTHER_AUTHOR = ROOT / "tests" / "safety" / "held_out_prompts.json"
FIXED = (2, 5, 10)
"""Shares of false refusals at which recall is compared, in percent."""
SHARES = (0, 10, 30, 100)
"""Shares of the corpus in the learning curve, in percent of its patterns."""
REPEATS = 50
RESPONSE = "The museum opens at nine. Bring a coat, the halls are cool. Tickets are sold at the entrance. " * 8


def main() -> None:
    parser = benchmark_parser(__doc__, "a third of the held-out texts")
    parser.add_argument("--bundle", help="read the hidden states of this bundle, too")
    parser.add_argument("--xstest", type=Path, default=XSTEST, help="xstest_prompts.csv")
    options = parser.parse_args()
    bundle = None if options.bundle is None else open_bundle(options.bundle)
    hand_in(measure(bundle, options.xstest, stride=3 if options.quick else 1), REPORT, options)


def measure(bundle: Bundle | None, xstest: Path, stride: int) -> dict[str, Any]:
    start = time.process_time()
    model = trained(bundle, training_seeds())
    say(f"trained in {time.process_time() - start:.0f} s of CPU time")
    blocklist = BlocklistConfig().build()
    sets: dict[str, Any] = {}
    pooled: dict[str, list[bool]] = {"blocklist": [], "model": [], "both": []}
    texts_pooled: list[LabeledText] = []
    scores_pooled: list[float] = []
    by_part: dict[str, Any] = {}
    for name, texts in held_out(xstest, stride).items():
        scores = model.highest(texts)
        by_model = model.blocked(texts, scores)
        by_rules = [isinstance(blocklist.check_input(each.text), Violation) for each in texts]
        both = [one or other for one, other in zip(by_model, by_rules, strict=True)]
        blocked = {"blocklist": by_rules, "model": by_model, "both": both}
        sets[name] = {
            kind: {
                language: {key: rate.to_dict() for key, rate in row.items()} for language, row in rates(found, texts).items()
            }
            for kind, found in blocked.items()
        }
        say(f"{name}: {sets[name]['both']['all']}")
        if name.startswith("new_"):
            texts_pooled += texts
            scores_pooled += scores
            by_part[name] = {
                by: {part: rate.to_dict() for part, rate in recall_at(0.05, scores, texts, by=by).items()}
                for by in ("locale", "category")
            }
            for kind, found in blocked.items():
                pooled[kind] += found
    figures: dict[str, Any] = {}
    for kind, suffix in (("both", ""), ("model", "_model"), ("blocklist", "_blocklist")):
        together = rates(pooled[kind], texts_pooled)["all"]
        for key in ("recall", "false_refusals"):
            figures[key + suffix] = together[key].to_dict()["share"]
            figures[f"{key}{suffix}_interval"] = together[key].to_dict()["interval"]
    for percent in FIXED:
        rate = recall_at(percent / 100, scores_pooled, texts_pooled)["all"].to_dict()
        figures |= {f"recall_at_{percent}": rate["share"], f"recall_at_{percent}_interval": rate["interval"]}
    shipped = open_bundle(resolve_model())
    figures |= overhead(shipped, blocklist, model) | streaming(shipped, blocklist, model)
    curve = learning_curve(bundle) if stride == 1 else {}
    return {"figures": figures, "learning_curve": curve, "recall_by_part": by_part, "sets": sets}


def trained(bundle: Bundle | None, texts: list[LabeledText]) -> ModelGuardrail:
    config = GuardrailTrainingConfig()
    if bundle is not None:
        config = dataclasses.replace(config, features=(HiddenStatesConfig(), *config.features))
    with tempfile.TemporaryDirectory() as folder:
        return train_guardrail(config, bundle, texts, Path(folder) / "guardrail")[0]


def learning_curve(bundle: Bundle | None) -> dict[str, Any]:
    """Return recall at 5 % false refusals on the held-out seeds, by share of the corpus's patterns. Prompts only."""
    seeds = dict.fromkeys(each for locale in SEED_LOCALES for each in known_seeds(locale) if each.side == "prompt")
    corpus = [each for each in training_seeds() if each.side == "prompt" and each not in seeds]
    held_out_texts = held_out_seeds()
    curve: dict[str, Any] = {}
    for percent in SHARES:
        chosen = [each for each in corpus if zlib.crc32(f"{each.group} {each.locale}".encode()) % 100 < percent]
        model = trained(bundle, [*seeds, *chosen])
        curve[str(percent)] = {
            name: recall_at(0.05, model.highest(texts), texts)["all"].to_dict() for name, texts in held_out_texts.items()
        }
        say(f"{percent} % of the corpus: {curve[str(percent)]}")
    return curve


def held_out(xstest: Path, stride: int) -> dict[str, list[LabeledText]]:
    """Return the sets. Their labels are coarse: harmful texts have one category, which is not compared."""
    sets = {name: texts[::stride] for name, texts in held_out_seeds().items()}
    if OTHER_AUTHOR.is_file():
        prompts = json.loads(OTHER_AUTHOR.read_text(encoding="utf-8"))
        sets["other_author"] = [labeled(text, is_harmful=key == "harmful") for key in prompts for text in prompts[key]]
    if xstest.is_file():
        with xstest.open(encoding="utf-8") as file:
            sets["xstest"] = [labeled(row["prompt"], is_harmful=row["label"] == "unsafe") for row in csv.DictReader(file)]
    else:
        say(f"no XSTest at {xstest}; pass --xstest")
    return sets


def labeled(text: str, *, is_harmful: bool) -> LabeledText:
    return LabeledText(text=text, locale="en", labels=("violence_and_crime",) if is_harmful else ())


def overhead(bundle: Bundle, blocklist: Guardrail, model: Guardrail) -> dict[str, float]:
    """Return milliseconds of CPU time per request, for a prompt of 90 characters, and per token of a streamed response."""
    num_tokens = len(bundle.tokenizer.encode(RESPONSE))
    figures = {}
    for name, guardrail in (("blocklist", blocklist), ("model", model)):
        guardrail.check_input(RESPONSE[:90])
        start = time.process_time()
        for _ in range(REPEATS):
            guardrail.check_input(RESPONSE[:90])
        figures[f"ms_per_request_{name}"] = round((time.process_time() - start) / REPEATS * 1e3, 3)
        start = time.process_time()
        for _ in range(REPEATS):
            monitor = OutputMonitor(guardrail)
            for index in range(0, len(RESPONSE), 4):
                monitor.push(RESPONSE[index : index + 4])
            monitor.finish()
        figures[f"ms_per_token_{name}"] = round((time.process_time() - start) / REPEATS / num_tokens * 1e3, 4)
    return figures


def streaming(bundle: Bundle, blocklist: Guardrail, model: Guardrail) -> dict[str, float]:
    """Return milliseconds to the first text and to the end of an answer of 64 tokens, as `openafm serve` streams it.

    With the guardrail model, text is released after its check. Medians of three answers.
    """
    loaded = fm.SystemLanguageModel(bundle=bundle.path).load()
    source = ChatInput(turns=opened((UserTurn(text="Describe a museum."),)))
    decoding = Decoding(max_tokens=64, bias={loaded.template.stop_token(loaded.tokenizer): -100.0})
    figures = {}
    for name, guardrail in (("blocklist", blocklist), ("model", CombinedGuardrail(blocklist, model))):
        firsts, totals = [], []
        for _ in range(4):
            start = time.perf_counter()
            answer = Answer(loaded, encode(loaded, source, None), decoding, guardrail, lambda: False)
            times = [time.perf_counter() - start for delta in answer.deltas() if isinstance(delta, TextDelta)]
            firsts.append(times[0] if times else time.perf_counter() - start)
            totals.append(time.perf_counter() - start)
        figures[f"first_text_ms_{name}"] = round(1e3 * statistics.median(firsts[1:]), 1)
        figures[f"answer_ms_{name}"] = round(1e3 * statistics.median(totals[1:]), 1)
    return figures


def say(text: str) -> None:
    print(f"guardrail: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
