"""Draft models for speculative decoding: the run that distills one, and the measurement of its acceptance.

The target computes with its adapter. A draft model for an app's adapter is distilled from base and adapter together, on the
app's data.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.core.config import override
from openafm.evaluation.answers import Answerer, questions
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.own_data import read_data, with_data
from openafm.tokenizer.conversation import Conversation

if TYPE_CHECKING:
    from openafm.runtime.decoding.generation import Summary


def draft_run(
    target: Bundle,
    *,
    size: str = "nano",
    adapter: AdapterPackage | None = None,
    data: Path | None = None,
    evaluation: Path | None = None,
    changes: Mapping[str, str] | None = None,
) -> RunConfig:
    """Return the config of a run that distills a draft model of `size` from a bundle, with its adapter or another.

    `data` is the user's data or a description of it, `evaluation` an evaluation file; `data` replaces the built-in corpus.

    Raises:
        UnknownRecipeError, UnknownKeyError, ConfigError: the message names the nearest valid name.
        AdapterMismatchError: `adapter` was trained on another base.
    """
    config = build_run("on_device.draft", size)
    taught = config.trainer.objective.with_teacher(config.trainer, target, adapter)
    assert taught is not None, "on_device.draft learns from a teacher"
    config = replace(config, trainer=taught)
    if data is not None:
        config = with_data(config, read_data(data, evaluation))
    return override(config, changes or {})


@dataclass(frozen=True, kw_only=True)
class DraftReport:
    """Acceptance of a draft model on the answers to some conversations, greedy, under a grammar where there is a schema.

    `acceptance` is the share of drafted tokens that equal the target's choice. Passes are steps of the target per generated
    token, prefill included; without a draft model every token that the grammar does not force takes one.
    """

    num_answers: int
    num_tokens: int
    num_drafted: int
    num_accepted: int
    acceptance: float
    target_passes_per_token: float
    plain_passes_per_token: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_draft(
    draft: Bundle,
    target: Bundle,
    conversations: Iterable[Conversation],
    adapter: AdapterPackage | None = None,
    num_tokens: int = 5,
) -> DraftReport:
    """Generate every answer of the conversations, drafting `num_tokens` tokens a step, and return the counts."""
    from openafm.runtime.decoding.draft_length import DraftLengthConfig
    from openafm.runtime.decoding.speculation import Drafter
    from openafm.runtime.engines.base import ContextWindowError
    from openafm.runtime.engines.selection import open_engine

    # A fixed cost: a measured one depends on the load of the machine.
    answerer, drafter = Answerer(target, adapter), Drafter(open_engine(draft), num_tokens, DraftLengthConfig(cost=0.2))
    summaries = []
    for question in itertools.chain.from_iterable(map(questions, conversations)):
        with contextlib.suppress(ContextWindowError):
            summaries.append(answerer.answer(question, drafter).summary)
    return draft_report(summaries)


def draft_report(summaries: Sequence[Summary]) -> DraftReport:
    """Return the sums over drafted answers."""
    num_tokens = sum(summary.num_tokens for summary in summaries)
    num_drafted, num_accepted = sum(s.num_drafted for s in summaries), sum(s.num_accepted for s in summaries)
    # Without drafts `generate` takes one step to prefill and one for each token that the grammar does not force.
    num_plain = sum(1 + s.num_tokens - s.num_forced_tokens for s in summaries)
    return DraftReport(
        num_answers=len(summaries),
        num_tokens=num_tokens,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        acceptance=num_accepted / max(num_drafted, 1),
        target_passes_per_token=sum(s.num_target_steps for s in summaries) / max(num_tokens, 1),
        plain_passes_per_token=num_plain / max(num_tokens, 1),
    )


def held_out_conversations(config: RunConfig, count: int) -> list[Conversation]:
    """Return the first conversations of a run's evaluation data, or of its training data if it has no evaluation."""
    evaluation = config.trainer.evaluation
    sources = config.trainer.data.sources if evaluation is None else evaluation.data.sources
    names = {source.name for source in sources}
    conversations = (corpus.conversations() for corpus in config.corpora if corpus.name in names)
    return list(itertools.islice(itertools.chain.from_iterable(conversations), count))
