"""The results of the shipped model and its model card, which is generated from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openafm.bundle.describe import Description
from openafm.data.synthetic.tasks.natural import ATTRIBUTIONS
from openafm.evaluation.fresh.figures import FreshFigure
from openafm.evaluation.fresh.samples import NUM_CASES, FreshSample
from openafm.evaluation.held_out import HeldOutScores, TaskScore

_SOURCES = "; ".join(ATTRIBUTIONS.values())
_FRESH = """Hand-written messages, texts and requests in sixteen languages, whose authors did not see the frames of the
corpus, and the test parts of sets that people wrote in English (snips, home, clinc150, banking77, nlupp), whose training
parts are in the mixture. Greedy, as shipped, with the rankers. "Patterns" are regular expressions."""
_FRESH_TITLES = {
    "event": "fields of an event",
    "event_or_none": "fields of an event, where there may be none",
    "event_iso": "fields of an event with a date in ISO form",
    "event_whole": "whole events",
    "weekday": "dates of events on a weekday",
    "nothing": "no event, said so",
    "form": "fields of a form",
    "label_first": "label, the right one listed first",
    "label_last": "label, the right one listed last",
    "tool": "calls with all arguments",
    "tool_name": "calls of the right tools",
    "no_call": "no call needed, none made",
    "natural_label": "people's requests: label of 4",
    "natural_tool": "people's requests: tool of 5",
    "natural_slots": "people's requests: arguments",
}
SAMPLED = ("event", "form", "label_first", "natural_label", "natural_tool")
"""Sets whose best and worst answers are examples in the card."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A training stage as its run folder records it. `changes` are differences from the recipe in the form of `--set`.

    `note` describes what was done to its start weights beside these commands; it is written into the results file by hand.
    """

    recipe: str
    size: str
    steps: int
    tokens: int
    seconds: float
    loss: float | None
    held_out_loss: float | None
    data: tuple[str, ...]
    changes: dict[str, str]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """Scores of the shipped model, the same without its adapter, and the model before compression."""

    shipped: HeldOutScores
    without_adapter: HeldOutScores
    uncompressed: HeldOutScores

    def retention(self, task: str) -> float | None:
        """Return the shipped model's score divided by the uncompressed model's; None if that is 0."""
        before = self.uncompressed.tasks[task].score
        return self.shipped.tasks[task].score / before if before else None


@dataclass(frozen=True, kw_only=True)
class ShippedResults:
    """The figures of the card. `files` maps names in the bundle to bytes, without the card.

    `former` are the stages of the shipped model whose decoded weights start the first one of `stages`.
    """

    description: Description
    uncompressed_bits_per_weight: float
    embedding_bytes: int
    files: dict[str, int]
    former: tuple[Stage, ...]
    stages: tuple[Stage, ...]
    num_examples: int
    scores: ModelScores
    fresh: dict[str, FreshFigure]
    samples: tuple[FreshSample, ...]

    @property
    def has_adapter(self) -> bool:
        return self.description.adapter_bits_per_weight > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON without local paths."""
        description = self.description.to_dict() | {"path": None}
        scores = {name: getattr(self.scores, name).to_dict() for name in vars(self.scores)}
        retention = {task: self.scores.retention(task) for task in self.scores.shipped.tasks}
        return asdict(self) | {"description": description, "scores": scores, "retention": retention}


def shipped_card(results: ShippedResults) -> str:
    """Return the card as Markdown: the model, its training, its scores against the uncompressed model, its limits."""
    about, count = results.description, results.num_examples
    return f"""# {about.name}: the model that comes with openafm

A decoder of {about.parameters:,} parameters after the on-device model of *Apple Intelligence Foundation Language Models:
Tech Report 2025*, compressed as its section 6 describes: {about.layers} layers, {about.sharing_layers} of them sharing keys
and values, dim {about.dim}, vocabulary {about.vocab_size:,}, context {about.context_length:,} tokens. Signature
`{about.signature}`. License: Apache-2.0, weights and all.

It extracts typed values from messages, chooses labels and calls tools, in sixteen languages. It is no chat model.

Two rankers of hashed word features, trained on the same texts, give the decoder probabilities of labels, of tools and of
calling one (`ranker/`), and of spans of the prompt as values (`spans/`). A reader of pages (`reader/`) gives it the printed
Latin letters of an image as text, and an adapter (`pages`) is trained on such text; `docs/vision.md` has the parts,
`docs/benchmarks.md` the scores.

## Numerics

{_numerics(results)}

{_files(results.files)}

## How it was made

Data: the built-in corpus, generated by rules from word lists and hand-written sentence frames in sixteen languages
(`openafm data sample` prints examples), repeated random token sequences, and requests that people wrote where the table
names them.

{_stages(results)}

Sources of these requests: {_SOURCES}.

{_commands(results)}

## Results on sets by other authors

{_FRESH}

{_fresh(results.fresh)}

Examples: of the first {NUM_CASES} cases of a set, the best answer and the worst one.

{_samples(results.samples)}

## Held-out results of the generator

{count:,} examples of each task, 25 % English and 5 % each of fifteen other languages, with sentence frames, names, places,
titles, forms, label sets and tools that are not in the training data. "exact" is the share of correct answers, of correct
fields for events and forms. A `tool` answer is correct if it has the right calls with the right arguments, or text where no
call is needed. "Kept" is the share of the uncompressed model's score; "(near the baselines)" marks scores less than ten
points above the baselines. The rankers are not used.

{_scores(results)}

{about.name} by language, the uncompressed model in brackets; of each task about {count // 4:,} examples in English and
{count // 20:,} in every other language:

{_languages(results.scores)}

## What it cannot do

It can only do what its data shows: it has no knowledge of the world, does not reason, cannot hold a conversation and writes
no code. It often misreads messages unlike the corpus, long ones above all. Structured answers always satisfy their schema,
whether their values are right or wrong. It has had no safety training: do not use it where a wrong answer does harm.
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
    total = ("total without this card", f"{sum(files.values()):,}")
    return _table(("file", "bytes"), [*((name, f"{size:,}") for name, size in files.items()), total])


def _fresh(figures: Mapping[str, FreshFigure]) -> str:
    rows = [
        (_FRESH_TITLES.get(name, name), *map(_percent, (figure.model, figure.constant, figure.regex)), f"{figure.cases:,}")
        for name, figure in figures.items()
    ]
    return _table(("figure", "model", "constant answer", "patterns", "cases"), rows)


def _samples(samples: Sequence[FreshSample]) -> str:
    rows = [
        (f"`{sample.figure}`", _cell(sample.prompt), _code(sample.answer), _code(sample.expected), _percent(sample.grade))
        for sample in samples
    ]
    return _table(("set", "text", "answer", "right", "grade"), rows)


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _stages(results: ShippedResults) -> str:
    header = ("stage", "data", "steps", "tokens", "time", "loss", "held-out loss")
    table = _table(header, [_stage_row(stage) for stage in (*results.former, *results.stages)])
    if not results.former:
        return table
    return f"""{table}

The first {len(results.former)} stages made the former {results.description.name}; its weights, decoded from 2 bits, start
the {len(results.stages)} others."""


def _stage_row(stage: Stage) -> tuple[str, ...]:
    return (
        f"`{stage.recipe}`",
        "; ".join(stage.data).replace(f" ({_SOURCES})", ""),  # named once, below the table
        f"{stage.steps:,}",
        f"{stage.tokens:,}",
        f"{stage.seconds / 60:,.0f} min",
        _number(stage.loss),
        _number(stage.held_out_loss),
    )


def _commands(results: ShippedResults) -> str:
    stages, name = (*results.former, *results.stages), results.description.name
    lines = []
    for index, stage in enumerate(stages):
        bundle = f"{stages[index - 1].recipe}-{stage.size}" if index else ""
        is_first = bool(results.former) and index == len(results.former)
        bundle = name if is_first else bundle
        if is_first or (bundle.startswith("on_device.qat") and stage.recipe != "on_device.recovery_adapter"):
            lines.append(f"    openafm compress decode {bundle}")
            bundle = f"{bundle}-decoded"
        lines += [f"    # {stage.note}"] if stage.note else []
        start = f" --from {bundle}" if bundle else ""
        changes = "".join(f" --set '{key}={value}'" for key, value in stage.changes.items())
        lines.append(f"    openafm train {stage.recipe} --size {stage.size}{start}{changes}")
    note = ", with the recipes' own values instead of the changed ones" if any(stage.changes for stage in stages) else ""
    everything = f"`make nano` runs all stages, scores the result and writes this card{note}."
    return "\n".join((*lines, "", everything))


def _scores(results: ShippedResults) -> str:
    scores = results.scores
    columns = ["uncompressed"] + (["compressed, no adapter"] if results.has_adapter else []) + [results.description.name]
    rows = []
    for task, shipped in scores.shipped.tasks.items():
        before = scores.uncompressed.tasks[task]
        values = [before, *([scores.without_adapter.tasks[task]] if results.has_adapter else []), shipped]
        kept = scores.retention(task)
        means_something = "" if before.is_well_above_baselines else " (near the baselines)"
        baselines = ", ".join(f"{name} {_percent(value)}" for name, value in shipped.baselines.items())
        change = shipped.change_from(before)
        cells = [*(value.text for value in values), "-" if change is None else change.text]
        rows.append((task, shipped.metric, *cells, f"{'-' if kept is None else _percent(kept)}{means_something}", baselines))
    return _table(("task", "metric", *columns, "change", "kept", "without a model"), rows)


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
