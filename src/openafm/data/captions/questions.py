"""Questions and answers about images by a teacher: prompts, the JSON that it answers with, and checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from openafm.data.captions.cache import Answer, NoAnswer, Outcome
from openafm.data.captions.checks import cleaned, num_words, prose_problem
from openafm.data.images.documents import Question

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "questions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
                "required": ["question", "answer"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["questions"],
    "additionalProperties": False,
}
"""The JSON that teachers answer with."""
FORMAT = 'Write JSON only: {"questions": [{"question": "...", "answer": "..."}]}'

_MAX_QUESTION_WORDS = 80
_MAX_ANSWER_WORDS = 200


def questions_check(prompt: str, max_questions: int) -> Callable[[str], Outcome]:
    """Return the check of an answer with questions; its text is the JSON list of the valid ones, for `read_questions`.

    A question without text, with a refusing or garbled answer, or asked twice is left out. An answer without any valid
    question has the reason of the first.
    """

    def check(text: str) -> Outcome:
        try:
            values = json.loads(cleaned(text))
            pairs = [(each["question"], each["answer"]) for each in values["questions"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            return NoAnswer(reason="format", detail=f"{error}: {text[:120]}")
        problems: list[NoAnswer] = []
        kept = list(_valid(pairs, prompt, problems))[:max_questions]
        if not kept:
            return problems[0] if problems else NoAnswer(reason="empty", detail=text[:120])
        return Answer(text=json.dumps(kept, ensure_ascii=False))

    return check


def read_questions(answer: Answer, kind: str) -> tuple[Question, ...]:
    """Return the questions of a checked answer."""
    return tuple(Question(question=question, answer=text, kind=kind) for question, text in json.loads(answer.text))


def _valid(pairs: list[tuple[Any, Any]], prompt: str, problems: list[NoAnswer]) -> Iterator[tuple[str, str]]:
    """Yield the valid pairs of question and answer; append what is wrong with the others to `problems`."""
    seen: set[str] = set()
    for question, answer in pairs:
        if not isinstance(question, str) or not isinstance(answer, str):
            problems.append(NoAnswer(reason="format", detail=f"{question!r:.60}: {answer!r:.60}"))
            continue
        question, answer = question.strip(), answer.strip()
        problem = prose_problem(question, prompt) or _answer_problem(answer, prompt)
        if problem is None and num_words(question) > _MAX_QUESTION_WORDS:
            problem = NoAnswer(reason="too_long", detail=question[:120])
        if problem is None and question.casefold() in seen:
            problem = NoAnswer(reason="repetitive", detail=question[:120])
        seen.add(question.casefold())
        if problem is None:
            yield question, answer
        else:
            problems.append(problem)


def _answer_problem(answer: str, prompt: str) -> NoAnswer | None:
    """Return why an answer is not usable; unlike prose it may be a number or a symbol."""
    if answer and not any(each.isalpha() for each in answer):
        return None
    problem = prose_problem(answer, prompt)
    if problem is None and num_words(answer) > _MAX_ANSWER_WORDS:
        return NoAnswer(reason="too_long", detail=answer[:120])
    return problem
