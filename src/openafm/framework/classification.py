"""`Classifier`: which label of a set fits a text, with probabilities.

A guided response under an `enum` prefers some labels for their name and place, whatever the text is. A classifier scores
every label, in the order given and in the reverse one, and subtracts a part of the score that it has for texts without
content (contextual calibration, arXiv 2102.09690). The score of a ranker, if the bundle has one, is added as it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openafm.framework.backends.language_model import LanguageModel
from openafm.framework.backends.loaded_model import LoadedModel
from openafm.framework.backends.system_model import SystemLanguageModel
from openafm.framework.errors import (
    ExceededContextWindowSizeError,
    RefusalError,
    UnsupportedCapabilityError,
)
from openafm.framework.session.answer_checks import framework_errors, violation_error
from openafm.safety.guardrail import Allowed, Refused, Violation
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, UserTurn
from openafm.tokenizer.schema_text import compact_json

CONTENT_FREE = ("", "N/A")
PRIOR_WEIGHT = 0.75
"""Of 0, 0.25, 0.5, 0.75 and 1 the best on requests of nano's training (`benchmarks/label_calibration.py`)."""


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The label with the highest probability, and the probabilities of all labels in the order given."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class _Prior:
    """Scores of texts without content, of a model and its weights. It keeps the model loaded, as a session does."""

    model: LoadedModel
    weights_version: int
    scores_L: NDArray[np.float64]


class Classifier:
    """Choose one of a set of labels for each text. Thread-safe.

    Args:
        labels: two or more names, or names with descriptions, which the model reads; an empty one is left out.
        instructions: what is decided, such as "What does the customer want?".
        model: a model on this machine; by default that of sessions. Its use case adds nothing to the instructions.
        prior_weight: the part, from 0 to 1, of the scores of texts without content that is subtracted.

    Raises:
        ValueError: fewer than two labels, an empty one, one given twice, or a part outside 0 to 1.
        UnsupportedCapabilityError: the model is a server, which gives no scores of labels.
    """

    def __init__(
        self,
        labels: Sequence[str] | Mapping[str, str],
        instructions: str = "Classify the text.",
        *,
        model: LanguageModel | None = None,
        prior_weight: float = PRIOR_WEIGHT,
    ) -> None:
        self.labels = tuple(labels)
        if isinstance(labels, str) or len(self.labels) < 2:
            raise ValueError(f"'labels' needs two or more labels, got {labels!r}")
        if not all(isinstance(label, str) and label.strip() for label in self.labels):
            raise ValueError(f"'labels' must be texts that are not empty, got {labels!r}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"'labels' has a label twice: {labels!r}")
        if not 0 <= prior_weight <= 1:
            raise ValueError(f"'prior_weight' must be from 0 to 1, got {prior_weight}")
        self.model = SystemLanguageModel() if model is None else model
        if not isinstance(self.model, SystemLanguageModel):
            raise UnsupportedCapabilityError(
                f"a classifier needs the scores of labels, which the model {self.model.name} does not give; use a"
                " SystemLanguageModel, or a session with an enum in its schema"
            )
        self._descriptions = dict(labels) if isinstance(labels, Mapping) else dict.fromkeys(self.labels, "")
        described = (f"{name}: {text}" for name, text in self._descriptions.items() if text)
        self.instructions = "\n".join([instructions, *described])
        self.prior_weight = prior_weight
        self._lock = threading.Lock()
        self._prior: _Prior | None = None

    async def classify(self, text: str) -> Classification:
        """As `classify_blocking`, without blocking the event loop."""
        return await asyncio.to_thread(self.classify_blocking, text)

    def classify_blocking(self, text: str) -> Classification:
        """Return the label of a text and the probabilities of all.

        Raises:
            ValueError: the text is empty.
            GuardrailViolationError: a guardrail blocked the text.
            RefusalError: the guardrail declined it.
            ExceededContextWindowSizeError: labels and text exceed the context window.
            AssetsUnavailableError: the model is not on this machine, or is damaged.
        """
        if not text.strip():
            raise ValueError("there is no text to classify")
        assert isinstance(self.model, SystemLanguageModel)
        try:
            with framework_errors():
                self.model.check_context((self._question(text, self.labels),))  # before the guardrail, which reads all of it
                self._check(text)
                loaded = self.model.load()
                scores_L = self._scores(loaded, text) - self.prior_weight * self._priors(loaded)
                if loaded.priors is not None:
                    scores_L += loaded.priors.of_labels(text, self._descriptions)
        except ExceededContextWindowSizeError as error:
            raise ExceededContextWindowSizeError(
                error.token_count,
                error.context_size,
                f"labels and text need {error.token_count} tokens, but the context window of this model has"
                f" {error.context_size}; shorten the text, or pass fewer labels",
            ) from error
        odds_L = np.exp(scores_L - scores_L.max())
        probabilities = dict(zip(self.labels, (odds_L / odds_L.sum()).tolist(), strict=True))
        return Classification(label=self.labels[int(scores_L.argmax())], probabilities=probabilities)

    def _check(self, text: str) -> None:
        guardrail = self.model.guardrail(is_guided=True)
        match Allowed() if guardrail is None else guardrail.check_input(text):
            case Violation() as violation:
                raise violation_error(violation, "prompt")
            case Refused(reason=reason):
                raise RefusalError(f"the model declined to classify the text: {reason}", lambda: reason)

    def _priors(self, loaded: LoadedModel) -> NDArray[np.float64]:
        """The mean scores of texts without content, [L], computed once for the weights."""
        version = loaded.engine.weights_version
        with self._lock:
            known = self._prior
            if known is None or known.model is not loaded or known.weights_version != version:
                scores_L = np.zeros(len(self.labels))
                if self.prior_weight:
                    scores_L = np.mean([self._scores(loaded, text) for text in CONTENT_FREE], axis=0)
                known = self._prior = _Prior(model=loaded, weights_version=version, scores_L=scores_L)
            return known.scores_L

    def _scores(self, loaded: LoadedModel, text: str) -> NDArray[np.float64]:
        """The log probability of each label as the whole answer, [L], the mean of both orders of the labels."""
        tokenizer, template = loaded.tokenizer, loaded.template
        answers = [self._answer(loaded, label) for label in self.labels]
        opening = Instructions(text=self.instructions)
        scores_OL = []
        for labels in (self.labels, self.labels[::-1]):
            turns = opened((opening, self._question(text, labels)))
            prompt = [*template.encode(tokenizer, turns).tokens, *template.generation_prompt(tokenizer)]
            sequence = loaded.prefixes.begin(prompt[:-1])
            try:
                scores_OL.append(loaded.scorer.choice_scores(sequence, prompt, answers))
                loaded.prefixes.keep(sequence, len(template.encode_turn(tokenizer, turns[0])), "opening")
            finally:
                loaded.engine.close(sequence)
        mean_L: NDArray[np.float64] = np.mean(scores_OL, axis=0)
        return mean_L

    def _question(self, text: str, labels: Sequence[str]) -> UserTurn:
        return UserTurn(text=text, response_format=_schema(labels))

    def _answer(self, loaded: LoadedModel, label: str) -> list[int]:
        """The tokens that the model would generate for a label."""
        encoded = loaded.template.encode_turn(loaded.tokenizer, AssistantTurn(text=compact_json({"label": label})))
        return [token for token, is_generated in zip(encoded.tokens, encoded.loss_mask, strict=True) if is_generated]


def _schema(labels: Sequence[str]) -> JsonSchema:
    return {
        "title": "Label",
        "type": "object",
        "properties": {"label": {"type": "string", "enum": list(labels)}},
        "required": ["label"],
        "additionalProperties": False,
        "x-order": ["label"],
    }
