"""What a model has learned of the labels of the built-in corpus, beside naive Bayes over the words of the same texts.

For sets with at least `LEAST` texts (`LEAST_UNSEEN` of unseen ones): their texts, each with its label and up to three others
in random order. The model answers under a schema, greedily; its ranker, if it has one, chooses alone; naive Bayes, fitted on
the set's texts for training, chooses among the same labels.

    training    texts that the corpus trains on (naive Bayes is not asked)
    held_out    texts of the same sets that it does not train on
    unseen      texts of English sets of which it has none (naive Bayes cannot be asked)

    python benchmarks/label_choice.py [BUNDLE[=NAME] ...] [--count 300] [--quick] [--json]

A full run writes docs/benchmarks/label_choice.json. Models are measured in one run: questions change with the corpus.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.text_files.catalogs import Label, LabelSet, catalog_of
from openafm.framework.options import GenerationOptions, SamplingMode
from openafm.framework.session.session import LanguageModelSession

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "label_choice.json"
LANGUAGES = {"english": ("en",), "others": ("de", "fr", "ja", "tr")}
LEAST, LEAST_UNSEEN, MOST_CHOICES, SEED, SMOOTHING = 60, 20, 4, 4242, 0.3


@dataclass(frozen=True, kw_only=True)
class Question:
    """A text, the labels to choose from, and the right one."""

    task: str
    text: str
    choices: tuple[str, ...]
    gold: str
    guess: str | None  # of naive Bayes


class NaiveBayes:
    """Multinomial naive Bayes with equal priors over the words of the texts of each label."""

    def __init__(self, labels: Sequence[Label]) -> None:
        self.counts = {label.name: Counter(word for text in texts_of(label) for word in words(text)) for label in labels}
        self.num_words = len(set().union(*self.counts.values()))

    def best(self, text: str, choices: Sequence[str]) -> str:
        def score(name: str) -> float:
            counts = self.counts[name]
            total = counts.total() + SMOOTHING * self.num_words
            return sum(math.log((counts[word] + SMOOTHING) / total) for word in words(text))

        return max(choices, key=score)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("models", nargs="*", default=["nano"], metavar="BUNDLE[=NAME]")
    parser.add_argument("--count", type=int, default=300, help="texts of each part")
    options = parser.parse_args()
    count = 6 if options.quick else options.count
    rows = [measure(model, count) for model in options.models]
    hand_in({"figures": {row["model"]: row["scores"] for row in rows}, "rows": rows}, REPORT, options)


def measure(model: str, count: int) -> dict[str, Any]:
    """Return the row of a model, named by bundle or as BUNDLE=NAME."""
    bundle, _, name = model.partition("=")
    loaded = fm.SystemLanguageModel(bundle=bundle)
    scores: dict[str, float] = {}
    num_texts: dict[str, int] = {}
    for title, languages in LANGUAGES.items():
        for part in ("training", "held_out", "unseen") if title == "english" else ("training", "held_out"):
            rng = random.Random(SEED)
            questions = [question for language in languages for question in questions_of(part, language, rng)]
            drawn = rng.sample(questions, min(count, len(questions)))
            num_texts[f"{title}_{part}"] = len(drawn)
            scores |= {f"{title}_{part}_{kind}": share for kind, share in shares(loaded, drawn).items()}
    return {"model": name or bundle, "texts": num_texts, "scores": scores}


def questions_of(part: str, language: str, rng: random.Random) -> Iterator[Question]:
    """Every text of a part with its choices."""
    known = {labels.name: labels for labels in catalog_of(language, "train").label_sets}
    split: Split = "train" if part == "training" else "held_out"
    for labels in catalog_of(language, split).label_sets:
        learned = known.get(labels.name)
        if (learned is None) != (part == "unseen") or size_of(learned or labels) < (LEAST if learned else LEAST_UNSEEN):
            continue
        bayes = NaiveBayes(learned.labels) if learned and part == "held_out" else None
        names = [label.name for label in (learned or labels).labels]
        for label in labels.labels:
            for text in texts_of(label):
                others = rng.sample([name for name in names if name != label.name], min(MOST_CHOICES, len(names)) - 1)
                choices = tuple(rng.sample([label.name, *others], len(others) + 1))
                guess = None if bayes is None else bayes.best(text, choices)
                yield Question(task=labels.question, text=text, choices=choices, gold=label.name, guess=guess)


def shares(model: fm.SystemLanguageModel, questions: Sequence[Question]) -> dict[str, float]:
    """Return the shares of right answers of the model, of its ranker alone, of naive Bayes, and of chance."""
    right: defaultdict[str, list[float]] = defaultdict(list)
    options = GenerationOptions(sampling=SamplingMode.greedy(), maximum_response_tokens=60)
    priors = model.load().priors
    for question in questions:
        schema = {
            "title": "Classification",
            "type": "object",
            "properties": {"label": {"type": "string", "enum": list(question.choices)}},
            "required": ["label"],
        }
        session = LanguageModelSession(f"Classify the text. {question.task}.", model)
        answer = session.respond_blocking(question.text, json_schema=schema, options=options)
        right["model"].append(json.loads(answer.to_json())["label"] == question.gold)
        right["chance"].append(1 / len(question.choices))
        if priors is not None:
            ranked = priors.of_labels(question.text, dict.fromkeys(question.choices, ""))
            right["ranker"].append(question.choices[ranked.index(max(ranked))] == question.gold)
        if question.guess is not None:
            right["bayes"].append(question.guess == question.gold)
    return {kind: round(sum(each) / len(each), 4) for kind, each in right.items()}


def size_of(labels: LabelSet) -> int:
    return sum(len(label.texts) for label in labels.labels)


def texts_of(label: Label) -> Iterator[str]:
    """The texts without slots, as they are."""
    return (text.line.text for text in label.texts if not re.search(r"[\[{(<\\]", text.line.text))


def words(text: str) -> list[str]:
    """The words of a text, and of a script without spaces each two characters that follow each other."""
    found = re.findall(r"[\u3040-\u30ff\u4e00-\u9fff]+|\w+", text.casefold())
    pairs = [[word[at : at + 2] for at in range(len(word) - 1)] if word[0] >= "\u3040" else [word] for word in found]
    return [part for each in pairs for part in each]


if __name__ == "__main__":
    main()
