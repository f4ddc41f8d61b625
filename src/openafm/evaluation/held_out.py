"""Held-out scores of a model on the tasks of the built-in corpus. The split shares no frame or word with training.

Answers are greedy, each in a new session, and guided if the example has a
response format.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation import calculator, events, tool_requests
from openafm.evaluation.forms import share_of_fields
from openafm.evaluation.guesses import guess
from openafm.evaluation.harness.statistics import Difference, estimate, paired_difference
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn
from openafm.tokenizer.schema_text import compact_json

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel

MAX_TOKENS = 128
"""Token limit of an answer; the longest references have about 100 tokens."""
WELL_ABOVE = 0.1
"""Margin over the best baseline above which a score is meaningful."""

Weights: TypeAlias = dict[str, float]
ExampleT = TypeVar("ExampleT", events.EventExample, calculator.WordProblem, tool_requests.ToolRequest, "TextExample")


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """The mean score of a task from 0 to 1, the scores by language, and those of baselines.

    `metric` is "exact": the share of correct answers, or of correct fields for events and forms. `values` are the scores of
    the examples, in the same order for every model; empty if an older version stored the score.
    """

    score: float
    metric: str
    num_examples: int
    languages: dict[str, float]
    baselines: dict[str, float]
    values: tuple[float, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the score; None without values."""
        return estimate(self.values).interval if self.values else None

    @property
    def text(self) -> str:
        """The score with its interval, in percent."""
        if self.interval is None:
            return f"{100 * self.score:.1f} %"
        low, high = (100 * max(0.0, min(1.0, bound)) for bound in self.interval)
        return f"{100 * self.score:.1f} % [{low:.0f}, {high:.0f}]"

    def change_from(self, before: TaskScore) -> Difference | None:
        """Return the difference to another model's score on the same examples; None without the values of both."""
        if not self.values or len(self.values) != len(before.values):
            return None
        return paired_difference(before.values, self.values)

    @property
    def is_well_above_baselines(self) -> bool:
        """Return whether the score is at least ten points above every baseline."""
        return self.score >= max(self.baselines.values()) + WELL_ABOVE

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"interval": self.interval, "is_well_above_baselines": self.is_well_above_baselines}


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Scores by task."""

    tasks: dict[str, TaskScore]

    @property
    def exact_match(self) -> float | None:
        """Return the mean over the tasks with metric "exact"; None without such a task."""
        exact = [task.score for task in self.tasks.values() if task.metric == "exact"]
        return sum(exact) / len(exact) if exact else None

    def to_dict(self) -> dict[str, Any]:
        return {"exact_match": self.exact_match, "tasks": {name: task.to_dict() for name, task in self.tasks.items()}}


@dataclass(frozen=True, kw_only=True)
class TextExample:
    """Instructions, a text, the schema of the answer if it has one, and the reference answer."""

    instructions: str
    text: str
    schema: dict[str, Any] | None
    gold: str
    language: str


@dataclass(frozen=True, kw_only=True)
class HeldOutTask(Generic[ExampleT]):
    """The examples, solver, grading and baselines of a task. `examples` takes a count and the weights of languages."""

    metric: str
    examples: Callable[[int, Weights | None], Sequence[ExampleT]]
    solver: Callable[[SystemLanguageModel], Callable[[ExampleT], Any]]
    grade: Callable[[ExampleT, Any], float]
    baselines: Mapping[str, Callable[[ExampleT], Any]]

    def score(
        self,
        model: SystemLanguageModel,
        num_examples: int,
        languages: Weights | None = None,
        on_each: Callable[[int], None] = lambda _: None,
    ) -> TaskScore:
        """Return the scores of a model and the baselines. `on_each` is called with the number of examples done."""
        examples = self.examples(num_examples, languages)
        solve = self.solver(model)
        values: list[float] = []
        for done, example in enumerate(examples, start=1):
            values.append(self.grade(example, solve(example)))
            on_each(done)
        grades: dict[str, list[float]] = {}
        for example, value in zip(examples, values, strict=True):
            grades.setdefault(example.language, []).append(value)
        return TaskScore(
            score=_mean(values),
            metric=self.metric,
            num_examples=num_examples,
            languages={language: _mean(of_language) for language, of_language in sorted(grades.items())},
            baselines={
                name: _mean([self.grade(example, answer(example)) for example in examples])
                for name, answer in self.baselines.items()
            },
            values=tuple(values),
        )


def held_out_scores(
    model: SystemLanguageModel,
    tasks: Sequence[str] | None = None,
    num_examples: int = 50,
    languages: Weights | None = None,
    on_each: Callable[[int], None] = lambda _: None,
) -> HeldOutScores:
    """Return the scores of a model on `num_examples` of each task, in the corpus's languages or in `languages` by weight.

    `on_each` is called with the number of examples done, over all tasks.

    Raises:
        UsageError: an unknown task, with the nearest name, or no examples.
    """
    if num_examples < 1:
        raise UsageError(f"scores need at least one example of each task, got {num_examples}")
    scores = {}
    for index, name in enumerate(TASKS if tasks is None else tasks):
        if name not in TASKS:
            raise UsageError(f"no held-out scores of the task '{name}'{nearest(name, list(TASKS))}")

        def on_each_of_all(done: int, before: int = index * num_examples) -> None:
            on_each(before + done)

        scores[name] = TASKS[name].score(model, num_examples, languages, on_each_of_all)
    return HeldOutScores(tasks=scores)


def grade_event(example: events.EventExample, answer: dict[str, Any]) -> float:
    """Return the share of correct fields."""
    return events.score(lambda _: answer, [example]).exact_match


def grade_tags(example: TextExample, answer: str) -> float:
    """Return 1 if the JSON value equals the reference, else 0. A truncated answer is empty."""
    return float(bool(answer) and json.loads(answer) == json.loads(example.gold))


def grade_form(example: TextExample, answer: str) -> float:
    """Return the share of correct fields. A truncated answer is empty."""
    return share_of_fields(json.loads(example.gold), json.loads(answer)) if answer else 0.0


def grade_answer(example: TextExample, answer: str) -> float:
    """Return 1 if the answer equals the reference, compared by value if it is JSON, else 0."""
    if example.schema is None:
        return float(answer.strip() == example.gold)
    return float(bool(answer) and json.loads(answer) == json.loads(example.gold))


def first_label(example: TextExample) -> str:
    """Baseline: return the first of the labels to choose from."""
    choice = example.schema
    if choice is None:
        return re.split(r"[,/|;:.\n?]", example.instructions.partition(":")[2])[0].strip()
    name = next(iter(choice.get("properties", ())), None)
    if name is None:
        return json.dumps(choice["enum"][0])
    return json.dumps({name: choice["properties"][name]["enum"][0]})


def last_value(example: TextExample) -> str:
    """Baseline: return the last word of the list."""
    listed = f"{example.instructions}\n{example.text}".split("\n")[-2]
    value = re.split(r"[\s,;:|\"]+", listed.strip(' |".}'))[-1]
    return value if example.schema is None else json.dumps({next(iter(example.schema["properties"])): value})


def first_choice(example: TextExample) -> str:
    """Baseline: return the first allowed tag."""
    items = (example.schema or {})["properties"]["tags"]["items"]
    return json.dumps({"tags": items.get("enum", [""])[:1]})


def labeled_values(example: TextExample) -> str:
    """Baseline: return the text after the names of the form's fields."""
    return compact_json(guess(example.schema or {}, example.text))


def text_solver(model: SystemLanguageModel) -> Callable[[TextExample], str]:
    """Return a function that gives text of at most `MAX_TOKENS`, or JSON under the example's schema; empty if truncated."""
    from openafm.framework.errors import DecodingFailureError
    from openafm.framework.options import GenerationOptions, SamplingMode
    from openafm.framework.session.session import LanguageModelSession

    options = GenerationOptions(sampling=SamplingMode.greedy(), maximum_response_tokens=MAX_TOKENS)

    def solve(example: TextExample) -> str:
        session = LanguageModelSession(example.instructions, model)
        if example.schema is None:
            return session.respond_blocking(example.text, options=options)
        try:
            content = session.respond_blocking(example.text, json_schema=example.schema, options=options)
        except DecodingFailureError:
            return ""
        return str(content.to_json())

    return solve


def held_out_texts(task: str, count: int, languages: Weights | None = None) -> list[TextExample]:
    """Return the first `count` held-out examples of a task, each with its first prompt and answer."""
    return list(itertools.islice(_texts(task, languages), count))


def _texts(task: str, languages: Weights | None) -> Iterator[TextExample]:
    config = SyntheticConfig(split="held_out", tasks={task: 1.0})
    if languages is not None:
        config = replace(config, languages=languages)
    return map(_text_example, generate(config, sys.maxsize))


def _text_example(conversation: Conversation) -> TextExample:
    instructions, user, assistant = conversation.turns[:3]
    assert isinstance(instructions, Instructions)
    assert isinstance(user, UserTurn)
    assert isinstance(assistant, AssistantTurn)
    return TextExample(
        instructions=instructions.text,
        text=user.text,
        schema=user.response_format,
        gold=assistant.text,
        language=conversation.language,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


TASKS: dict[str, HeldOutTask[Any]] = {
    "event": HeldOutTask(
        metric="exact",
        examples=lambda count, languages: events.held_out_events(count, languages=languages),
        solver=events.model_extractor,
        grade=grade_event,
        baselines={"constant": events.constant_extractor, "regex": events.regex_extractor},
    ),
    "tagging": HeldOutTask(
        metric="exact",
        examples=lambda count, languages: held_out_texts("tagging", count, languages),
        solver=text_solver,
        grade=grade_tags,
        baselines={"first_choice": first_choice},
    ),
    "label": HeldOutTask(
        metric="exact",
        examples=lambda count, languages: held_out_texts("label", count, languages),
        solver=text_solver,
        grade=grade_answer,
        baselines={"first_label": first_label},
    ),
    "lookup": HeldOutTask(
        metric="exact",
        examples=lambda count, languages: held_out_texts("lookup", count, languages),
        solver=text_solver,
        grade=grade_answer,
        baselines={"last_value": last_value},
    ),
    "arithmetic": HeldOutTask(
        metric="exact",
        examples=lambda count, languages: calculator.held_out_problems(count, languages=languages),
        solver=calculator.Solver,
        grade=calculator.grade,
        baselines={"add": calculator.add_first_numbers},
    ),
    "tool": HeldOutTask(
        metric="exact",
        examples=lambda count, languages: tool_requests.held_out_requests(count, languages=languages),
        solver=tool_requests.solver,
        grade=tool_requests.grade,
        baselines={"first_tool": tool_requests.first_tool},
    ),
    "form": HeldOutTask(
        metric="exact",
        examples=lambda count, languages: held_out_texts("form", count, languages),
        solver=text_solver,
        grade=grade_form,
        baselines={"labels": labeled_values},
    ),
}
