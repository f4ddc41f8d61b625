"""What is known of the shipped model, and its card, written from that alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openafm.bundle.describe import Description
from openafm.evaluation.held_out import HeldOutScores, TaskScore


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of the recipe, as its folder tells it. `changes` are its differences from the recipe as `--set` takes them."""

    recipe: str
    size: str
    steps: int
    tokens: int
    seconds: float
    loss: float | None
    held_out_loss: float | None
    data: tuple[str, ...]
    changes: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """Scores of the shipped model, of itself without its adapter and of what it was before compression."""

    shipped: HeldOutScores
    without_adapter: HeldOutScores
    uncompressed: HeldOutScores

    def retention(self, task: str) -> float | None:
        """Share of the uncompressed model's score that the shipped one has; None where there is none to keep."""
        before = self.uncompressed.tasks[task].score
        return self.shipped.tasks[task].score / before if before else None


@dataclass(frozen=True, kw_only=True)
class ShippedResults:
    """Everything that the card says. `files` maps names in the bundle to bytes, the card left out."""

    description: Description
    uncompressed_bits_per_weight: float
    embedding_bytes: int
    files: dict[str, int]
    stages: tuple[Stage, ...]
    num_examples: int
    scores: ModelScores

    @property
    def has_adapter(self) -> bool:
        return self.description.adapter_bits_per_weight > 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the paths of the machine that made it."""
        description = self.description.to_dict() | {"path": None}
        scores = {name: getattr(self.scores, name).to_dict() for name in vars(self.scores)}
        retention = {task: self.scores.retention(task) for task in self.scores.shipped.tasks}
        return asdict(self) | {"description": description, "scores": scores, "retention": retention}


def shipped_card(results: ShippedResults) -> str:
    """The card as Markdown: what it is, how it was made, how good it is beside what it was, and what it cannot do."""
    about, count = results.description, results.num_examples
    return f"""# {about.name}: the model that comes with openafm

A decoder of {about.parameters:,} parameters after the on-device model of *Apple Intelligence Foundation Language Models:
Tech Report 2025*, compressed as its section 6 describes: {about.layers} layers, {about.sharing_layers} of them sharing keys
and values, dim {about.dim}, vocabulary {about.vocab_size:,}, context {about.context_length:,} tokens. Signature
`{about.signature}`. Licence: Apache-2.0, weights and all.

It extracts events and tags, puts sums to a calculator, summarises and rewrites, in sixteen languages, and calls tools and
fills forms in English; all of it in messages like those it was trained on.

## Numbers it computes with

{_numerics(results)}

{_files(results.files)}

## How it was made

Data: the built-in corpus, which rules make of word lists and sentence frames in sixteen languages (`openafm data sample`
shows it), and random tokens that repeat themselves. Nothing else. Requests with tools and forms of any small schema, both
made up on the spot, are in English; only the names in them are of every language.

{_stages(results.stages)}

{_commands(results.stages)}

## Held-out results

{count:,} examples of each task, 25 % English and 5 % each of fifteen other languages, with sentence frames, names, places
and titles that training never showed. "exact" is the share of right answers, for events and forms of their fields; "rouge_l"
is ROUGE-L with one reference. A `tool` answer is right if it is the right calls with the right arguments, or text where none
is called for; each `form` is one whose values all stand in the prompt. "Kept" is the share of the uncompressed model's
score; where that score is not ten points above every answer without a model, it says little.

{_scores(results)}

{about.name} by language, the uncompressed model in brackets; of each task about {count // 4:,} examples in English and
{count // 20:,} in every other language:

{_languages(results.scores)}

## What it cannot do

It does what its data shows and nothing else: it knows nothing of the world, does not reason, holds no conversation and
writes no code. Messages unlike the corpus, long ones above all, are often misread. Structured answers always satisfy their
schema; that says nothing about whether they are right. It has had no training for safety: do not use it where a wrong answer
does harm.
"""


def _numerics(results: ShippedResults) -> str:
    about = results.description
    base = about.bits_per_weight - about.adapter_bits_per_weight
    embedding = 8 * results.embedding_bytes / about.parameters
    rows = [
        ("layers", f"`{about.weights}`, scales and norms included", f"{base - embedding:.2f}"),
        ("embedding", f"`{about.embedding}`, scales and minima included", f"{embedding:.2f}"),
    ]
    if results.has_adapter:
        rows.append(("recovery adapter", "float16", f"{about.adapter_bits_per_weight:.2f}"))
    rows.append(("**all weights**", "", f"**{about.bits_per_weight:.2f}**"))
    rows.append(("before compression", "", f"{results.uncompressed_bits_per_weight:.2f}"))
    return f"""{_table(("", "", "bits for each weight of the model"), rows)}

Activations `{about.activations}`; keys and values `{about.kv}`, {about.kv_bytes_per_token:,} bytes a token, scales
included, and {about.kv_bytes_at_4096:,} at 4,096 tokens."""


def _files(files: Mapping[str, int]) -> str:
    total = ("in all, this card apart", f"{sum(files.values()):,}")
    return _table(("file", "bytes"), [*((name, f"{size:,}") for name, size in files.items()), total])


def _stages(stages: Sequence[Stage]) -> str:
    header = ("stage", "data", "steps", "tokens", "time", "loss", "held-out loss")
    return _table(header, [_stage_row(stage) for stage in stages])


def _stage_row(stage: Stage) -> tuple[str, ...]:
    return (
        f"`{stage.recipe}`",
        "; ".join(stage.data),
        f"{stage.steps:,}",
        f"{stage.tokens:,}",
        f"{stage.seconds / 60:,.0f} min",
        _number(stage.loss),
        _number(stage.held_out_loss),
    )


def _commands(stages: Sequence[Stage]) -> str:
    lines = []
    for before, stage in zip((None, *stages), stages, strict=False):
        start = f" --from {before.recipe}-{before.size}" if before else ""
        changes = "".join(f" --set '{key}={value}'" for key, value in stage.changes.items())
        lines.append(f"    openafm train {stage.recipe} --size {stage.size}{start}{changes}")
    note = ", with the recipes' own values where a command changes one" if any(stage.changes for stage in stages) else ""
    everything = f"`make nano` does all of it, scores the result and writes this card{note}."
    return "\n".join((*lines, "", everything))


def _scores(results: ShippedResults) -> str:
    scores = results.scores
    columns = ["uncompressed"] + (["compressed, no adapter"] if results.has_adapter else []) + [results.description.name]
    rows = []
    for task, shipped in scores.shipped.tasks.items():
        before = scores.uncompressed.tasks[task]
        values = [before, *([scores.without_adapter.tasks[task]] if results.has_adapter else []), shipped]
        kept = scores.retention(task)
        means_something = "" if before.is_well_above_baselines else " (says little)"
        baselines = ", ".join(f"{name} {_percent(value)}" for name, value in shipped.baselines.items())
        cells = [_percent(value.score) for value in values]
        rows.append((task, shipped.metric, *cells, f"{'-' if kept is None else _percent(kept)}{means_something}", baselines))
    return _table(("task", "metric", *columns, "kept", "without a model"), rows)


def _languages(scores: ModelScores) -> str:
    shipped, before = scores.shipped.tasks, scores.uncompressed.tasks
    languages = sorted({language for task in shipped.values() for language in task.languages})
    rows = [(language, *(_pair(language, shipped[task], before[task]) for task in shipped)) for language in languages]
    return _table(("language", *shipped), rows)


def _pair(language: str, shipped: TaskScore, before: TaskScore) -> str:
    if language not in shipped.languages:
        return "-"
    return f"{_percent(shipped.languages[language])} ({_percent(before.languages[language])})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
