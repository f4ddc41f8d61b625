"""Powers of the ranker's probabilities as priors of labels, tools and calls, on held-out parts of the built-in corpus.

    guided, classifier    right labels of 300 texts, up to four labels: a guided response, and `Classifier`
    tool                  the right one of the tools of a request, where the model must call one
    call, none            right decisions for requests with a fitting tool, and for others
    form, event           right fields of 200 guided responses each, by the power of the probabilities of spans

for English texts of known label sets (`held_out`), English label sets without a text in training (`unseen`), and German,
French, Japanese and Turkish (`others`). Power 0 is the decoder alone, `ranker` the ranker alone. `ms` are medians of a
guided response to one short text, with and without the ranker. The powers of `framework/backends/answer_priors.py` are
chosen here.

    python benchmarks/answer_priors.py [BUNDLE] [--count 300] [--quick] [--json]

A full run writes docs/benchmarks/answer_priors.json.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from label_choice import LANGUAGES, Question, questions_of
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.fresh.cases import label_schema
from openafm.framework.backends import answer_priors
from openafm.framework.backends.answer_priors import tool_text
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.session.session import LanguageModelSession
from openafm.ranking.ranker import Ranker, open_ranker
from openafm.runtime.decoding.generation import generate as generate_answer
from openafm.runtime.decoding.sampling import GreedyConfig
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "answer_priors.json"
POWERS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
VALUE_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
CHOSEN = {name: getattr(answer_priors, name) for name in ("LABEL_WEIGHT", "TOOL_WEIGHT", "CALL_WEIGHT", "VALUE_WEIGHT")}
SEED, MOST_TOKENS, NUM_TIMED = 4242, 160, 60


@dataclass(frozen=True)
class Request:
    """Instructions with tools, a request, and the name of the tool to call; None to call none."""

    instructions: Instructions
    turn: UserTurn
    gold: str | None


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("bundle", nargs="?", default="nano", metavar="BUNDLE")
    parser.add_argument("--count", type=int, default=300, help="texts of each part, and requests")
    options = parser.parse_args()
    count = 8 if options.quick else options.count
    model = fm.SystemLanguageModel(bundle=options.bundle)
    folder = model.load().bundle.ranker
    if folder is None:
        parser.error(f"the bundle {options.bundle} has no ranker")
    rng = random.Random(SEED)
    parts = {
        "held_out": drawn("held_out", LANGUAGES["english"], count, rng),
        "unseen": drawn("unseen", LANGUAGES["english"], count, rng),
        "others": drawn("held_out", LANGUAGES["others"], count, rng),
    }
    groups = {
        title: list(requests(dict.fromkeys(languages, 1.0), count))
        for title, languages in (("english", LANGUAGES["english"]), ("others", LANGUAGES["others"]))
    }
    rows = [row(model, power, parts, groups) for power in POWERS]
    rows.append({"power": "ranker", **ranker_alone(open_ranker(folder), parts, groups)})
    for name, power in CHOSEN.items():
        setattr(answer_priors, name, power)
    values = [value_row(model, power, count) for power in VALUE_POWERS]
    answer_priors.VALUE_WEIGHT = CHOSEN["VALUE_WEIGHT"]
    hand_in({"figures": {"rows": rows, "values": values, "ms": milliseconds(model)}}, REPORT, options)


def drawn(part: str, languages: Sequence[str], count: int, rng: random.Random) -> list[Question]:
    found = [question for language in languages for question in questions_of(part, language, rng)]
    return rng.sample(found, min(count, len(found)))


def requests(languages: dict[str, float], count: int) -> Iterator[Request]:
    """Held-out requests that need one call, or none."""
    config = SyntheticConfig(seed=SEED, split="held_out", tasks={"tool": 1.0}, languages=languages)
    for conversation in generate(config, count):
        instructions, turn, gold = conversation.turns[:3]
        assert isinstance(instructions, Instructions)
        assert isinstance(turn, UserTurn)
        assert isinstance(gold, AssistantTurn)
        if len(gold.tool_calls) < 2:
            yield Request(instructions, turn, gold.tool_calls[0].name if gold.tool_calls else None)


def set_power(power: float) -> None:
    answer_priors.LABEL_WEIGHT = answer_priors.TOOL_WEIGHT = answer_priors.CALL_WEIGHT = power


def row(
    model: fm.SystemLanguageModel, power: float, parts: dict[str, list[Question]], groups: dict[str, list[Request]]
) -> dict[str, Any]:
    """The shares of right answers with this power of all priors."""
    set_power(power)
    scores: dict[str, Any] = {"power": power}
    for name, questions in parts.items():
        scores[f"{name}_guided"] = mean(guided(model, question) == question.gold for question in questions)
        scores[f"{name}_classifier"] = mean(classified(model, question) == question.gold for question in questions)
    loaded = model.load()
    for name, found in groups.items():
        fitting, others = split(found)
        scores[f"{name}_tool"] = mean(called_tool(loaded, request) == request.gold for request in fitting)
        scores[f"{name}_call"] = mean(calls(loaded, request) for request in fitting)
        scores[f"{name}_none"] = mean(not calls(loaded, request) for request in others)
    return scores


def value_row(model: fm.SystemLanguageModel, power: float, count: int) -> dict[str, Any]:
    """The shares of right fields of held-out forms and events with this power of the probabilities of spans."""
    answer_priors.VALUE_WEIGHT = power
    scores: dict[str, Any] = {"power": power}
    for title, languages in LANGUAGES.items():
        for task in ("form", "event"):
            config = SyntheticConfig(seed=SEED, split="held_out", tasks={task: 1.0}, languages=dict.fromkeys(languages, 1.0))
            grades = [grade for each in generate(config, 2 * count // 3) for grade in right_fields(model, each)]
            scores[f"{title}_{task}"] = mean(grades)
    return scores


def right_fields(model: fm.SystemLanguageModel, conversation: Conversation) -> Iterator[bool]:
    """Whether each field of the right or of the given answer is the same in both; nothing for other answers than objects."""
    instructions, turn, gold = conversation.turns[:3]
    assert isinstance(instructions, Instructions)
    assert isinstance(turn, UserTurn)
    assert isinstance(gold, AssistantTurn)
    expected = json.loads(gold.text)
    if turn.response_format is None or not isinstance(expected, dict):
        return
    session = LanguageModelSession(instructions.text, model)
    given = json.loads(session.respond_blocking(turn.text, json_schema=turn.response_format).to_json())
    given = given if isinstance(given, dict) else {}
    yield from (given.get(name) == expected.get(name) for name in expected.keys() | given.keys())


def split(found: Sequence[Request]) -> tuple[list[Request], list[Request]]:
    return [each for each in found if each.gold is not None], [each for each in found if each.gold is None]


def mean(grades: Iterator[bool] | Any) -> float:
    return round(float(np.mean(list(grades))), 4)


def guided(model: fm.SystemLanguageModel, question: Question) -> str:
    session = LanguageModelSession(f"Classify the text. {question.task}.", model)
    content = session.respond_blocking(question.text, json_schema=label_schema(list(question.choices)))
    return str(json.loads(content.to_json())["label"])


def classified(model: fm.SystemLanguageModel, question: Question) -> str:
    classifier = fm.Classifier(question.choices, f"Classify the text. {question.task}.", model=model)
    return classifier.classify_blocking(question.text).label


def called_tool(model: LoadedModel, request: Request) -> str | None:
    """The tool of an answer that must be one call."""
    turns, tools = opened((request.instructions, request.turn)), request.instructions.tools
    generation = generate_answer(
        model.engine,
        model.engine.new_sequence(),
        [*model.template.encode(model.tokenizer, turns).tokens, *model.template.generation_prompt(model.tokenizer)],
        sampling=GreedyConfig(),
        stop_tokens=model.template.stop_tokens(model.tokenizer),
        max_tokens=MOST_TOKENS,
        grammar=model.grammar(None, tools, must_call=True, max_calls=1),
        processors=model.prior(turns, None, tools).processors,
    )
    text = model.tokenizer.decode([event.token for event in generation])
    return next((tool.name for tool in tools if f'"name":"{tool.name}"' in text), None)


def calls(model: LoadedModel, request: Request) -> bool:
    """Whether tool calls have at least half of the probability, as greedy answers require."""
    turns, tools = opened((request.instructions, request.turn)), request.instructions.tools
    prompt = [*model.template.encode(model.tokenizer, turns).tokens, *model.template.generation_prompt(model.tokenizer)]
    sequence = model.engine.new_sequence()
    (logits_V,) = model.engine.step([(sequence, prompt)])
    model.engine.close(sequence)
    for processor in model.prior(turns, None, tools).processors:
        processor.process(logits_V, ())
    weights_V = np.exp(logits_V[: model.tokenizer.vocab_size] - logits_V.max())
    (calls_token,) = model.template.tool_calls_prompt(model.tokenizer)
    return bool(2 * weights_V[calls_token] >= weights_V.sum())


def ranker_alone(ranker: Ranker, parts: dict[str, list[Question]], groups: dict[str, list[Request]]) -> dict[str, float]:
    scores = {}
    for name, questions in parts.items():
        found = (each.choices[int(ranker.log_probabilities(each.text, each.choices).argmax())] for each in questions)
        right = [choice == each.gold for choice, each in zip(found, questions, strict=True)]
        scores[f"{name}_guided"] = scores[f"{name}_classifier"] = mean(right)
    for name, requested in groups.items():
        fitting, others = split(requested)
        of = {id(each): log_probabilities(ranker, each) for each in requested}
        names = {id(each): [tool.name for tool in each.instructions.tools] for each in requested}
        scores[f"{name}_tool"] = mean(names[id(each)][int(of[id(each)][:-1].argmax())] == each.gold for each in fitting)
        scores[f"{name}_call"] = mean(of[id(each)][-1] < np.log(0.5) for each in fitting)
        scores[f"{name}_none"] = mean(of[id(each)][-1] >= np.log(0.5) for each in others)
    return scores


def log_probabilities(ranker: Ranker, request: Request) -> Any:
    tools = [tool_text(tool) for tool in request.instructions.tools]
    return ranker.log_probabilities(request.turn.text, tools, may_be_none=True)


def milliseconds(model: fm.SystemLanguageModel) -> dict[str, float]:
    """Medians of a guided response, with the ranker and without, in turn."""
    question = Question(
        task="What is wanted", text="wake me up at six", choices=("set alarm", "play music", "weather"), gold="", guess=None
    )
    loaded = model.load()
    times: dict[str, list[float]] = {"with_ranker": [], "decoder": []}
    priors = loaded.priors
    for _ in range(NUM_TIMED):
        for name, each in (("with_ranker", priors), ("decoder", None)):
            loaded.priors = each
            started = time.perf_counter()
            guided(model, question)
            times[name].append(1000 * (time.perf_counter() - started))
    loaded.priors = priors
    return {name: round(statistics.median(each), 2) for name, each in times.items()}


if __name__ == "__main__":
    main()
