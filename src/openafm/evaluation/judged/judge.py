"""A judge compares two answers, twice with places swapped. Its prompts are per locale.

A reply without a verdict is nonsense: it is asked once more, then counted apart and never as a tie.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.evaluation.harness.answerer import ANSWERED_WITH_FAILURE, Answerer
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.task import Prompt

VERDICTS: Mapping[str, float] = {"A>>B": 1.0, "A>B": 0.75, "A=B": 0.5, "B>A": 0.25, "B>>A": 0.0}
"""The share of the first answer by verdict, as in Arena-Hard."""
_VERDICT = re.compile(r"\[\[\s*([AB])\s*(>>|<<|>|<|=)\s*([AB])\s*\]\]")
_MAX_TOKENS = 1024
_AGAIN = "\n\nEnd your reply with exactly one of [[A>>B]], [[A>B]], [[A=B]], [[B>A]], [[B>>A]]."
_FIELDS = ("prompt", "first", "second")


class JudgePromptError(OpenAFMError):
    """A judge's prompt of a locale lacks a field, or the file is not an object of texts."""


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """The judge's comparison of two answers to one prompt.

    Attributes:
        score: the share of answer b, from 0 to 1: the mean over both orders. None if a reply had no verdict.
        verdicts: the verdicts as replied, first with a in first place, then with b in first place.
        is_consistent: both orders prefer the same answer, or one of them is a tie.
        lengths: characters of a and b.
    """

    id: str
    language: str
    group: str
    score: float | None
    verdicts: tuple[str | None, ...]
    replies: tuple[str, ...]
    is_consistent: bool
    lengths: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A model as a judge. `prompts` are texts by language with {prompt}, {first} and {second}."""

    answerer: Answerer
    cache: OutputCache
    prompts: Mapping[str, str]

    def compare(self, id: str, language: str, group: str, prompt: str, a: str, b: str) -> Judgment:
        """Return the judgment of two answers."""
        replies, verdicts = [], []
        for first, second in ((a, b), (b, a)):
            reply, verdict = self._verdict(language, prompt, first, second)
            replies.append(reply)
            verdicts.append(verdict)
        shares = [None if verdict is None else VERDICTS[verdict] for verdict in verdicts]
        score, is_consistent = None, False
        if shares[0] is not None and shares[1] is not None:
            score = ((1 - shares[0]) + shares[1]) / 2
            is_consistent = (shares[0] - 0.5) * (shares[1] - 0.5) <= 0
        return Judgment(
            id=id,
            language=language,
            group=group,
            score=score,
            verdicts=tuple(verdicts),
            replies=tuple(replies),
            is_consistent=is_consistent,
            lengths=(len(a), len(b)),
        )

    def _verdict(self, language: str, prompt: str, first: str, second: str) -> tuple[str, str | None]:
        text = _filled(prompt_of(self.prompts, language), prompt=prompt, first=first, second=second)
        reply = ""
        for suffix in ("", _AGAIN):
            reply = self._reply(Prompt(text=text + suffix, max_tokens=_MAX_TOKENS))
            if verdict := read_verdict(reply):
                return reply, verdict
        return reply, None

    def _reply(self, prompt: Prompt) -> str:
        known = self.cache.get(self.answerer.signature, prompt)
        if known is None:
            try:
                known = self.answerer.answer(prompt, lambda: False).encodable()
            except ANSWERED_WITH_FAILURE as error:
                return f"{type(error).__name__}: {error}"
            self.cache.put(self.answerer.signature, prompt, known)
        return known.text


def read_verdict(reply: str) -> str | None:
    """Return the last verdict of a reply in one of the forms of `VERDICTS`; None if it has none, or two contradict."""
    found = [_normal(*match) for match in _VERDICT.findall(reply)]
    verdicts = {verdict for verdict in found if verdict is not None}
    if len({_side(verdict) for verdict in verdicts}) != 1 or None in found:
        return None
    return found[-1]


def own_prompts(path: Path | None) -> Mapping[str, str]:
    """Return the judge's prompts by language: the built-in English one, and those of a JSON file.

    Raises:
        JudgePromptError: the file is not an object of texts, or a text lacks a field.
    """
    prompts = {"en": _built_in()}
    if path is not None:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise JudgePromptError(f"{path} cannot be read: {error}") from error
        if not isinstance(values, dict) or not all(isinstance(text, str) for text in values.values()):
            raise JudgePromptError(f'{path} must be a JSON object of prompts by language, such as {{"de": "..."}}')
        prompts |= values
    for language, text in prompts.items():
        missing = [field for field in _FIELDS if f"{{{field}}}" not in text]
        if missing:
            raise JudgePromptError(
                f"the judge's prompt for {language} lacks {{{missing[0]}}}; it needs all of {', '.join(_FIELDS)}"
            )
    return prompts


def prompt_of(prompts: Mapping[str, str], language: str) -> str:
    """Return the prompt of a locale, of its language, or the English one: pt-BR, pt, en."""
    return prompts.get(language) or prompts.get(language.partition("-")[0]) or prompts["en"]


def _filled(template: str, **texts: str) -> str:
    """Return the template with its fields replaced in one pass: a text may hold a field's name."""
    return re.sub(r"\{(prompt|first|second)\}", lambda match: texts[match[1]], template)


def _normal(left: str, relation: str, right: str) -> str | None:
    if left == right:
        return None
    if relation == "=":
        return "A=B"
    if relation.startswith("<"):
        left, relation, right = right, relation.replace("<", ">"), left
    return f"{left}{relation}{right}"


def _side(verdict: str) -> str:
    return "" if verdict == "A=B" else verdict[0]


@cache
def _built_in() -> str:
    return files("openafm.evaluation.judged").joinpath("prompt.txt").read_text(encoding="utf-8")


def judge_all(
    judge: Judge,
    pairs: Sequence[tuple[str, str, str, str, str, str]],
    threads: int,
    on_item: Callable[[int], None] = lambda _: None,
) -> list[Judgment]:
    """Return the judgments of (id, language, group, prompt, a, b), in their order."""
    from concurrent.futures import ThreadPoolExecutor

    judgments = []
    with ThreadPoolExecutor(threads, thread_name_prefix="openafm-judge") as pool:
        for done, judgment in enumerate(pool.map(lambda pair: judge.compare(*pair), pairs), start=1):
            judgments.append(judgment)
            on_item(done)
    return judgments
