"""Scores of a bundle on the user's held-out data: loss by source and language, and answers compared with the data's."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openafm.bundle import Bundle
from openafm.core.errors import UsageError
from openafm.data.documents import AnyDocument, ChatDocument, DocumentFiles
from openafm.evaluation.answers import MAX_TOKENS, Answerer, Question, questions
from openafm.evaluation.forms import share_of_fields
from openafm.runtime.decoding.likelihood import Scorer
from openafm.tokenizer.chat_template import MalformedAnswerError
from openafm.tokenizer.conversation import AssistantTurn


@dataclass(kw_only=True)
class SourceScores:
    """Sums over the documents of a source, and the means of them.

    The loss is over the assistant's turns of conversations and over all tokens of texts. `exact` counts answers that equal
    the data's, `fields` sums the share of equal fields of JSON answers and of equal calls.
    """

    num_documents: int = 0
    num_skipped: int = 0
    num_tokens: int = 0
    total_loss: float = 0.0
    num_answers: int = 0
    num_exact: int = 0
    fields: list[float] = field(default_factory=list)

    @property
    def loss(self) -> float | None:
        """Return the mean loss in nats per token; None without tokens."""
        return self.total_loss / self.num_tokens if self.num_tokens else None

    def add(self, other: SourceScores) -> None:
        """Add the sums of another source."""
        self.num_documents += other.num_documents
        self.num_skipped += other.num_skipped
        self.num_tokens += other.num_tokens
        self.total_loss += other.total_loss
        self.num_answers += other.num_answers
        self.num_exact += other.num_exact
        self.fields += other.fields

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.num_documents,
            "skipped": self.num_skipped,
            "tokens": self.num_tokens,
            "loss": self.loss,
            "answers": self.num_answers,
            "exact": self.num_exact / self.num_answers if self.num_answers else None,
            "fields": sum(self.fields) / len(self.fields) if self.fields else None,
        }


@dataclass(frozen=True, kw_only=True)
class DataScores:
    """The scores of a bundle by source (file) and by language; `total` is over all of them."""

    total: SourceScores
    sources: dict[str, SourceScores]
    languages: dict[str, SourceScores]

    def to_dict(self) -> dict[str, Any]:
        parts = {"sources": self.sources, "languages": self.languages}
        return {"total": self.total.to_dict()} | {
            name: {key: scores.to_dict() for key, scores in by_key.items()} for name, by_key in parts.items()
        }


def data_scores(
    bundle: Bundle,
    path: Path,
    *,
    max_documents: int | None = None,
    with_answers: bool = True,
    on_each: Callable[[int], None] = lambda _: None,
) -> DataScores:
    """Score a bundle, in its numerics and with its recovery adapter, on the documents of a file or folder.

    Conversations that exceed the context window are skipped and counted; texts are scored in windows. `on_each` is called
    with the number of documents done.

    Raises:
        InputPathError, NotADocumentError, NotTextError: the data cannot be read; the message names file and line.
        UsageError: the data has no document.
    """
    evaluator = _Evaluator(bundle, with_answers)
    total = SourceScores()
    sources: dict[str, SourceScores] = {}
    languages: dict[str, SourceScores] = {}
    documents: Iterable[AnyDocument] = DocumentFiles(path)
    for done, document in enumerate(itertools.islice(documents, max_documents), start=1):
        scores = evaluator.scores(document)
        language = document.conversation.language if isinstance(document, ChatDocument) else document.language
        name = Path(document.read_from.partition(" (item")[0].rpartition(":")[0] or document.read_from).name
        for group, key in ((sources, name), (languages, language or "und")):
            group.setdefault(key, SourceScores()).add(scores)
        total.add(scores)
        on_each(done)
    if not total.num_documents:
        raise UsageError(f"{path} has no documents to evaluate on")
    return DataScores(total=total, sources=sources, languages=dict(sorted(languages.items())))


class _Evaluator:
    def __init__(self, bundle: Bundle, with_answers: bool) -> None:
        self._bundle, self._with_answers = bundle, with_answers
        self._answerer = Answerer(bundle)
        self._scorer = Scorer(engine=self._answerer.engine, tokenizer=bundle.tokenizer)

    def scores(self, document: AnyDocument) -> SourceScores:
        from openafm.runtime.engines.base import ContextWindowError

        scores = SourceScores(num_documents=1)
        if not isinstance(document, ChatDocument):
            likelihood = self._scorer.loglikelihood_rolling(document.text)
            scores.num_tokens, scores.total_loss = likelihood.num_tokens, -likelihood.log_probability
            return scores
        try:
            encoded = self._bundle.template.encode_conversation(self._bundle.tokenizer, document.conversation)
            log_p_N, _ = self._scorer.token_scores(encoded.tokens)
        except ContextWindowError:
            scores.num_skipped = 1
            return scores
        mask_N = list(encoded.loss_mask)[1:]
        scores.num_tokens, scores.total_loss = sum(mask_N), -float(log_p_N[mask_N].sum())
        for question in questions(document.conversation) if self._with_answers else ():
            with contextlib.suppress(ContextWindowError):
                self._grade(question, scores)
        return scores

    def _grade(self, question: Question, scores: SourceScores) -> None:
        answer = self._answerer.answer(question, None, max_tokens=MAX_TOKENS)
        try:
            turn = self._bundle.template.parse_assistant(self._bundle.tokenizer, answer.tokens)
        except MalformedAnswerError:
            turn = AssistantTurn()
        reference = question.reference
        scores.num_answers += 1
        if reference.tool_calls:
            share = share_of_calls(reference, turn)
            scores.fields.append(share)
            scores.num_exact += share == 1.0
        elif question.schema is not None:
            share = _share_of_json(reference.text, turn.text)
            scores.fields.append(share)
            scores.num_exact += share == 1.0
        else:
            scores.num_exact += turn.text.strip() == reference.text.strip() and not turn.tool_calls


def share_of_calls(reference: AssistantTurn, answer: AssistantTurn) -> float:
    """Return the share of the calls of both turns that are equal in name and arguments, in any order."""
    remaining = list(answer.tool_calls)
    equal = 0
    for call in reference.tool_calls:
        if call in remaining:
            remaining.remove(call)
            equal += 1
    return equal / max(len(reference.tool_calls), len(answer.tool_calls))


def _share_of_json(reference: str, answer: str) -> float:
    """Return the share of equal fields; 0 for an answer that is not JSON, as one that was cut off."""
    try:
        return share_of_fields(json.loads(reference), json.loads(answer))
    except ValueError:
        return float(reference.strip() == answer.strip())
