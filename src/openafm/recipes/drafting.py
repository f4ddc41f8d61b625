"""Draft models: a run that distils one from the bundle that answers, and what it is worth there.

A target answers with its adapter on; a draft for an app's adapter is distilled from the two together, on the app's data.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.adapters.package import Adapter
from openafm.bundle import Bundle
from openafm.core.config import override
from openafm.data.documents import ChatDocument, DocumentFiles
from openafm.data.loader import SourceConfig
from openafm.data.synthetic import generate as generate_conversations
from openafm.recipes.config import CorpusConfig, FolderCorpusConfig, RunConfig, SyntheticCorpusConfig, build_run
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    JsonSchema,
    ToolDefinition,
    Turn,
    UserTurn,
)
from openafm.tokenizer.tool_calls import tool_calls_schema
from openafm.training.config import EvaluationConfig
from openafm.training.objectives.config import DistillationConfig, teacher_identity

if TYPE_CHECKING:
    from openafm.runtime.decoding.generation import Summary
    from openafm.runtime.decoding.sampling import SamplingConfig
    from openafm.runtime.decoding.speculation import Drafter

MOST_TOKENS = 200  # of an answer that is drafted to be measured


def draft_run(
    target: Bundle,
    *,
    size: str = "nano",
    adapter: Adapter | None = None,
    data: Path | None = None,
    evaluation: Path | None = None,
    changes: Mapping[str, str] | None = None,
) -> RunConfig:
    """The config of a run for `run_recipe` that distils a draft model of `size` from a bundle with its adapter or another.

    `data` and `evaluation` are chat JSONL or folders of it, instead of the built-in corpus.

    Raises:
        UnknownRecipeError, UnknownKeyError, ConfigError: the message names the nearest valid name.
    """
    config = taught_by(build_run("on_device.draft", size), target, adapter)
    if data is not None:
        config = _on_own_data(config, data, evaluation)
    return override(config, changes or {})


def taught_by(config: RunConfig, target: Bundle, adapter: Adapter | None = None) -> RunConfig:
    """The run with this target as its teacher: the student has its tokens and its context window."""
    trainer = config.trainer
    if not isinstance(trainer.objective, DistillationConfig):
        return config
    if adapter is not None:
        adapter.check_base(target.signature)
    objective = replace(
        trainer.objective,
        teacher=str(target.path.resolve()),
        adapter=None if adapter is None else str(adapter.path.resolve()),
        identity=teacher_identity(target, adapter),
        num_tokens=target.tokenizer.vocab_size,
    )
    rows, context_length = target.config.vocab_size, target.config.context_length
    model = replace(trainer.model, vocab_size=rows, context_length=context_length)
    data = replace(trainer.data, row_tokens=min(trainer.data.row_tokens, context_length))
    return replace(config, trainer=replace(trainer, objective=objective, model=model, data=data))


def _on_own_data(config: RunConfig, data: Path, evaluation: Path | None) -> RunConfig:
    files = {"own": data} | ({} if evaluation is None else {"held_out": evaluation})
    corpora = tuple(FolderCorpusConfig(name=name, learn="answers", path=str(path.resolve())) for name, path in files.items())
    loader = replace(config.trainer.data, sources=(SourceConfig(name="own", path="own"),))
    held_out = None
    if evaluation is not None:
        held_out = EvaluationConfig(
            data=replace(loader, sources=(SourceConfig(name="held_out", path="held_out"),)), num_batches=1
        )
    return replace(config, corpora=corpora, trainer=replace(config.trainer, data=loader, evaluation=held_out))


@dataclass(frozen=True, kw_only=True)
class DraftReport:
    """What a draft model is worth on the answers to some conversations, greedy, under a grammar where there is a schema.

    `acceptance` is the share of drafted tokens that the target chose too; passes are the target's steps for each token of
    the answers, those that prefill a prompt included: without a draft model every token that is not forced needs one.
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


@dataclass(frozen=True, kw_only=True)
class Question:
    """A conversation up to an answer, and what the answer may be; `is_call` where the data has calls of tools."""

    turns: tuple[Turn, ...]
    schema: JsonSchema | None
    tools: tuple[ToolDefinition, ...]
    is_call: bool


class Answerer:
    """Greedy answers of a bundle with its adapter or another, under a grammar, with and without a draft model."""

    def __init__(self, target: Bundle, adapter: Adapter | None = None) -> None:
        from openafm.runtime.decoding.grammar import GrammarCompiler
        from openafm.runtime.engines.selection import open_engine

        self.engine, self._bundle = open_engine(target, adapter), target
        self._grammars = GrammarCompiler(target.tokenizer, target.template)

    def answer(
        self,
        question: Question,
        drafter: Drafter | None,
        *,
        sampling: SamplingConfig | None = None,
        max_tokens: int = MOST_TOKENS,
        must_call: bool = False,
    ) -> DraftedAnswer:
        """The answer in a new sequence.

        Raises:
            ContextWindowError: question and answer do not fit.
        """
        from openafm.runtime.decoding.generation import generate
        from openafm.runtime.decoding.sampling import GreedyConfig

        tokenizer, template = self._bundle.tokenizer, self._bundle.template
        tools = question.tools if template.can_call_tools else ()
        generation = generate(
            self.engine,
            self.engine.new_sequence(),
            [*template.encode(tokenizer, opened(question.turns)).tokens, *template.generation_prompt(tokenizer)],
            sampling=sampling or GreedyConfig(),
            stop_tokens=template.stop_tokens(tokenizer),
            max_tokens=max_tokens,
            grammar=self._grammars.answer(question.schema, tool_calls_schema(tools) if tools else None, must_call=must_call),
            drafter=drafter,
        )
        tokens = tuple(event.token for event in generation)
        return DraftedAnswer(tokens=tokens, summary=generation.summary)


@dataclass(frozen=True, kw_only=True)
class DraftedAnswer:
    """The tokens of an answer, the one that ends it included, and what they took."""

    tokens: tuple[int, ...]
    summary: Summary


def measure_draft(
    draft: Bundle, target: Bundle, conversations: Iterable[Conversation], adapter: Adapter | None = None, num_tokens: int = 5
) -> DraftReport:
    """Have the target give every answer of the conversations itself, drafting `num_tokens` at a time, and count."""
    from openafm.runtime.decoding.draft_length import DraftLengthConfig
    from openafm.runtime.decoding.speculation import Drafter
    from openafm.runtime.engines.base import ContextWindowError
    from openafm.runtime.engines.selection import open_engine

    # By the clock it would draft now more and now less, and nothing where steps of this target are short.
    answerer, drafter = Answerer(target, adapter), Drafter(open_engine(draft), num_tokens, DraftLengthConfig(cost=0.2))
    summaries = []
    for question in itertools.chain.from_iterable(map(questions, conversations)):
        with contextlib.suppress(ContextWindowError):
            summaries.append(answerer.answer(question, drafter).summary)
    return draft_report(summaries)


def draft_report(summaries: Sequence[Summary]) -> DraftReport:
    """Summed over drafted answers."""
    num_tokens = sum(summary.num_tokens for summary in summaries)
    num_drafted, num_accepted = sum(s.num_drafted for s in summaries), sum(s.num_accepted for s in summaries)
    # One step to prefill, and one for each token that the grammar leaves to choose: what `generate` takes without drafts.
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


def questions(conversation: Conversation) -> Iterator[Question]:
    """Every answer of a conversation that can be asked for again."""
    turns = conversation.turns
    tools = tuple(tool for turn in turns[:1] if isinstance(turn, Instructions) for tool in turn.tools)
    schema: JsonSchema | None = None
    for index, turn in enumerate(turns):
        if isinstance(turn, UserTurn):
            schema = turn.response_format
        elif isinstance(turn, AssistantTurn) and index:
            yield Question(turns=turns[:index], schema=schema, tools=tools, is_call=bool(turn.tool_calls))


def held_out_conversations(config: RunConfig, count: int) -> list[Conversation]:
    """The first conversations of what a run is evaluated on, else of what it is trained on."""
    evaluation = config.trainer.evaluation
    sources = config.trainer.data.sources if evaluation is None else evaluation.data.sources
    names = {source.name for source in sources}
    corpora = [corpus for corpus in config.corpora if corpus.name in names]
    return list(itertools.islice(itertools.chain.from_iterable(map(_conversations, corpora)), count))


def _conversations(corpus: CorpusConfig) -> Iterator[Conversation]:
    match corpus:
        case SyntheticCorpusConfig(synthetic=synthetic, num_examples=num_examples):
            yield from generate_conversations(synthetic, num_examples)
        case FolderCorpusConfig(path=path):
            documents = DocumentFiles(Path(path))
            yield from (document.conversation for document in documents if isinstance(document, ChatDocument))
