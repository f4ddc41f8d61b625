"""Labels: a text and a set of labels in any order in, the label that fits out. Tags: several labels of a text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.languages import LANGUAGES, Split, locale_of
from openafm.data.synthetic.reference import fill
from openafm.data.synthetic.rendering import render, text_of
from openafm.data.synthetic.styles import restyle
from openafm.data.synthetic.tasks.messages import Distractors, draw_other_message
from openafm.data.synthetic.text_files.catalogs import TOPICS, Label, LabelSet, catalog_of
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_MOST_LABELS, _MAX_TAGS = 8, 3
_OTHER = ("other", "none", "something else", "unknown", "other")
_OTHER_SHARE, _OTHER_IS_RIGHT_SHARE, _ALIAS_SHARE = 0.2, 0.5, 0.3
_SCHEMA_SHARE, _TOP_LEVEL_SHARE, _DESCRIBED_SHARE, _LANGUAGE_SHARE = 0.45, 0.2, 0.3, 0.04
_PROPERTIES = ("label", "category", "class", "kind", "topic", "type", "answer", "result", "tag", "value")
_FREE_TAGS_SHARE, _MOST_FURTHER_TEXTS = 0.3, 15


@dataclass(frozen=True)
class NamedLabel:
    """A label under the name that this example uses; `label` has its texts, if it is of a label set."""

    name: str
    description: str
    label: Label | None = None


def label_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a text, labels to choose from, and the right one; in training up to sixteen texts with the same choices."""
    frames = frames_of(language, split)
    if rng.random() < _LANGUAGE_SHARE:
        text, gold, others = _draw_language(rng, split)
        return labeled_turns(rng, text, gold, others, language, split, "Language of the text")
    label_sets = catalog_of(language, split).label_sets
    # Scores of held-out texts count each set alike.
    weights = [labels.weight if split == "train" else 1.0 for labels in label_sets]
    (labels,) = rng.choices(label_sets, weights)
    text, gold, others = _draw_text(rng, labels, frames)
    choices, answer = _draw_choices(rng, gold, others)
    texts = [(text, answer)]
    for _ in range(rng.randint(0, _MOST_FURTHER_TEXTS) if split == "train" else 0):
        further, answer = _draw_further_text(rng, labels, choices, frames)
        if further not in [text for text, _ in texts]:  # the answer would be a copy
            texts.append((further, answer))
    return _choice_turns(rng, texts, choices, language, split, labels.question)


def labeled_turns(
    rng: random.Random,
    text: str,
    gold: NamedLabel,
    others: Sequence[NamedLabel],
    language: str,
    split: Split,
    question: str = "",
) -> tuple[Turn, ...]:
    """Return a text with labels to choose from, as a schema or in the instructions, and the right one."""
    choices, answer = _draw_choices(rng, gold, others)
    return _choice_turns(rng, [(text, answer)], choices, language, split, question)


def _choice_turns(
    rng: random.Random,
    texts: Sequence[tuple[str, str]],
    choices: Sequence[NamedLabel],
    language: str,
    split: Split,
    question: str,
) -> tuple[Turn, ...]:
    """The choices, and texts with their labels."""
    wording = frames_of(language if rng.random() < 0.5 else "en", split)
    names = [choice.name for choice in choices]
    schema, name = None, None
    if rng.random() >= _SCHEMA_SHARE:
        listed = rng.choice((", ", ", ", " / ", " | ", "; ")).join(names)
        task = fill(rng, rng.choice(wording.instructions["label_list"]), labels=listed)
    else:
        task = fill(rng, rng.choice(wording.instructions["label"]))
        if question and rng.random() < 0.25:
            task = f"{task} {question}."
        schema, name = _choice_schema(rng, names)
    turns: list[Turn] = [Instructions(text=_described(rng, task, choices))]
    for text, answer in texts:
        turns.append(UserTurn(text=text, response_format=schema))
        turns.append(AssistantTurn(text=answer if schema is None else compact_json({name: answer} if name else answer)))
    return tuple(turns)


def tagging_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a message of one to three sentences, each about another topic, and its tags."""
    frames = frames_of(language, split)
    topics = list(_topics(language, split).labels)
    rng.shuffle(topics)
    num_tags = rng.randint(1, min(_MAX_TAGS, len(topics) - 1))
    space = "" if language in ("zh-Hans", "zh-Hant", "ja") else " "
    sentences = [_write(rng, topic, frames) for topic in topics[:num_tags]]
    tags = [topic.name for topic in topics]
    choices: list[str] = []
    if rng.random() >= _FREE_TAGS_SHARE:
        choices = tags[: rng.randint(min(num_tags + 1, len(tags)), min(len(tags), 12))]
        rng.shuffle(choices)
    return (
        Instructions(text=fill(rng, rng.choice(frames.instructions["tag"]))),
        UserTurn(text=space.join(sentences), response_format=tags_schema(choices)),
        AssistantTurn(text=compact_json({"tags": tags[:num_tags]})),
    )


def tags_schema(choices: Sequence[str] = ()) -> JsonSchema:
    """Return the schema of one to three tags, out of `choices` if there are any."""
    item: JsonSchema = {"type": "string"} | ({"enum": list(choices)} if choices else {})
    return {
        "title": "Tags",
        "type": "object",
        "properties": {"tags": {"type": "array", "items": item, "minItems": 1, "maxItems": _MAX_TAGS}},
        "required": ["tags"],
        "additionalProperties": False,
        "x-order": ["tags"],
    }


def _topics(language: str, split: Split) -> LabelSet:
    """The label set `topic`, of which the held-out split has the texts that training lacks."""
    return next(labels for labels in catalog_of(language, split).label_sets if labels.name == TOPICS)


def _draw_text(rng: random.Random, labels: LabelSet, frames: LanguageFrames) -> tuple[str, NamedLabel, list[NamedLabel]]:
    """A text of a label set, its label, and the other labels."""
    gold = rng.choice(labels.labels)
    by_alias = rng.random() < _ALIAS_SHARE
    named = [
        NamedLabel(rng.choice(label.aliases) if by_alias and label.aliases else label.name, label.description, label)
        for label in labels.labels
    ]
    position = labels.labels.index(gold)
    return _write(rng, gold, frames), named[position], named[:position] + named[position + 1 :]


def _draw_further_text(
    rng: random.Random, labels: LabelSet, choices: Sequence[NamedLabel], frames: LanguageFrames
) -> tuple[str, str]:
    """Another text to the same choices, and its choice. "other" is right for the labels that are no choice."""
    known = [choice.label for choice in choices if choice.label]
    rest = [label for label in labels.labels if label not in known]
    choice = rng.choice([choice for choice in choices if choice.label or rest])
    return _write(rng, choice.label or rng.choice(rest), frames), choice.name


def _write(rng: random.Random, label: Label, frames: LanguageFrames) -> str:
    values = Distractors(rng, frames, draw_reference_day(rng))
    pieces = render(rng.choice(label.texts), rng, values, language=frames.language)
    return text_of(restyle(rng, pieces, frames.language)).strip()


def _draw_language(rng: random.Random, split: Split) -> tuple[str, NamedLabel, list[NamedLabel]]:
    """A message of any language, the language's name, and those of other languages."""
    left_out = rng.choice(("zh-Hans", "zh-Hant"))  # both are called Chinese
    codes = rng.sample([code for code in LANGUAGES if code != left_out], rng.randint(2, _MOST_LABELS))
    as_code = rng.random() < 0.3
    named = [NamedLabel(code if as_code else str(locale_of(code).get_language_name("en")), "") for code in codes]
    frames = frames_of(codes[0], split)
    return draw_other_message(rng, frames, draw_reference_day(rng)).text, named[0], named[1:]


def _draw_choices(rng: random.Random, gold: NamedLabel, others: Sequence[NamedLabel]) -> tuple[list[NamedLabel], str]:
    """Two to eight labels in any order, and the right one; in some cases "other", which may be right."""
    most = min(len(others), _MOST_LABELS - 1)
    choices = rng.sample(list(others), rng.randint(1, most))
    answer = gold.name
    if rng.random() < _OTHER_SHARE and len(others) > 1:
        other = NamedLabel(rng.choice(_OTHER), "")
        if rng.random() < _OTHER_IS_RIGHT_SHARE:
            answer = other.name
        else:
            choices = [*choices[: _MOST_LABELS - 2], gold]
        choices.append(other)
    else:
        choices.append(gold)
    style = rng.choice((str, str, str, str.lower, str.upper, str.capitalize))
    choices = [replace(choice, name=style(choice.name)) for choice in choices]
    rng.shuffle(choices)
    return choices, style(answer)


def _choice_schema(rng: random.Random, names: Sequence[str]) -> tuple[JsonSchema, str | None]:
    """The schema of a choice, and the property that has it; None for a lone value."""
    choice: JsonSchema = {"type": "string", "enum": list(names)}
    if rng.random() < _TOP_LEVEL_SHARE:
        return choice, None
    name = rng.choice(_PROPERTIES)
    return {
        "title": rng.choice((name.capitalize(), "Classification", "Result")),
        "type": "object",
        "properties": {name: choice},
        "required": [name],
        "additionalProperties": False,
        "x-order": [name],
    }, name


def _described(rng: random.Random, task: str, choices: Sequence[NamedLabel]) -> str:
    """The task, in some cases with a description of each label."""
    described = [choice for choice in choices if choice.description]
    if not described or rng.random() >= _DESCRIBED_SHARE:
        return task
    return "\n".join([task, *(f"{choice.name}: {choice.description}" for choice in described)])
