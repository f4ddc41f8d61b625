"""Draft models: a run that distils one from the bundle that answers, and what it is worth there.

A target answers with its adapter on; a draft for an app's adapter is distilled from the two together, on the app's data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openafm.adapters.package import Adapter
from openafm.bundle import Bundle
from openafm.core.config import override
from openafm.data.documents import ChatDocument, DocumentFiles
from openafm.data.loader import SourceConfig
from openafm.data.synthetic import generate as generate_conversations
from openafm.recipes.config import CorpusConfig, FolderCorpusConfig, RunConfig, SyntheticCorpusConfig, build_run
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn
from openafm.tokenizer.tool_calls import tool_calls_schema
from openafm.training.config import DistillationConfig, EvaluationConfig, teacher_identity

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

    num_conversations: int
    num_tokens: int
    num_drafted: int
    num_accepted: int
    acceptance: float
    target_passes_per_token: float
    plain_passes_per_token: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_draft(
    draft: Bundle, target: Bundle, conversations: Iterable[Conversation], adapter: Adapter | None = None, num_tokens: int = 5
) -> DraftReport:
    """Answer the last prompt of each conversation, drafting `num_tokens` at a time, and count."""
    from openafm.runtime.engines import open_engine
    from openafm.runtime.generation import generate
    from openafm.runtime.grammar import GrammarCompiler
    from openafm.runtime.sampling import GreedyConfig
    from openafm.runtime.speculation import Drafter

    engine, drafter = open_engine(target, adapter), Drafter(open_engine(draft), num_tokens)
    tokenizer, template = target.tokenizer, target.template
    grammars = GrammarCompiler(tokenizer, template)
    summaries = []
    for question in filter(None, map(_question, conversations)):
        prompt = [*template.encode(tokenizer, opened(question.turns)).tokens, *template.generation_prompt(tokenizer)]
        if len(prompt) + MOST_TOKENS >= engine.context_length:
            continue
        tools = question.tools if template.can_call_tools else ()
        generation = generate(
            engine,
            engine.new_sequence(),
            prompt,
            sampling=GreedyConfig(),
            stop_tokens=template.stop_tokens(tokenizer),
            max_tokens=MOST_TOKENS,
            grammar=grammars.answer(question.schema, tool_calls_schema(tools) if tools else None),
            drafter=drafter,
        )
        for _ in generation:
            pass
        summaries.append(generation.summary)
    num_answers_tokens = max(sum(s.num_tokens for s in summaries), 1)
    num_drafted, num_accepted = sum(s.num_drafted for s in summaries), sum(s.num_accepted for s in summaries)
    num_plain = sum(1 + s.num_tokens - s.num_forced_tokens for s in summaries)
    return DraftReport(
        num_conversations=len(summaries),
        num_tokens=sum(s.num_tokens for s in summaries),
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        acceptance=num_accepted / max(num_drafted, 1),
        target_passes_per_token=sum(s.num_target_steps for s in summaries) / num_answers_tokens,
        plain_passes_per_token=num_plain / num_answers_tokens,
    )


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


@dataclass(frozen=True, kw_only=True)
class _Question:
    """A conversation up to an answer, and what the answer must be."""

    turns: tuple[Any, ...]
    schema: dict[str, Any] | None
    tools: tuple[Any, ...]


def _question(conversation: Conversation) -> _Question | None:
    """The conversation up to its last answer; None where there is no answer."""
    turns = conversation.turns
    places = [index for index, turn in enumerate(turns) if isinstance(turn, AssistantTurn) and index]
    if not places:
        return None
    before = turns[: places[-1]]
    schemas = [turn.response_format for turn in before if isinstance(turn, UserTurn)]
    tools = [tool for turn in before[:1] if isinstance(turn, Instructions) for tool in turn.tools]
    return _Question(turns=before, schema=schemas[-1] if schemas else None, tools=tuple(tools))
