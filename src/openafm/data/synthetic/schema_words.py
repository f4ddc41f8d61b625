"""The English words of tools and forms, as data (`lexicon/schemas.json`), split like the lexicons."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from typing import ClassVar

from openafm.core.config import from_dict
from openafm.data.synthetic.lexicons import Section, Split, Texts, section_part
from openafm.data.synthetic.slots import Slots, draw_person


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary(Section):
    """Short texts of one kind; their slots are other vocabularies, or those of every lexicon."""

    kind: str
    texts: Texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field(Section):
    """What a value is called, and what it is: `kind` is a vocabulary, or integer, number, boolean or choice.

    `phrase` is how a request says it, with the value in the place of `{}`.
    """

    closed: ClassVar[frozenset[str]] = frozenset({"range", "choices", "descriptions"})

    label: str
    kind: str = "word"
    phrase: str = ""
    range: tuple[int, ...] = ()
    choices: Texts = ()
    descriptions: Texts = ()
    optional: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action(Section):
    """What a tool does: names to choose from, and requests that call for it, whose slots are labels of fields."""

    closed: ClassVar[frozenset[str]] = frozenset({"names", "descriptions", "requests", "fields", "outputs"})

    names: Texts
    descriptions: Texts
    requests: Texts
    fields: tuple[Field, ...] = ()
    outputs: Texts = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallTalk(Section):
    """Something said for which no tool is needed, and what to say to it."""

    prompt: str
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaWords(Section):
    """All words of one split."""

    closed: ClassVar[frozenset[str]] = frozenset({"vocabularies"})

    split: Split = "train"
    vocabularies: tuple[Vocabulary, ...]
    fields: tuple[Field, ...]
    actions: tuple[Action, ...]
    verbs: tuple[Action, ...]  # become actions with a noun in the place of `{noun}` and with any fields
    nouns: Texts  # what verbs act on, and what forms describe
    instructions: Texts
    explicit: Texts  # slots: tool, values
    wraps: Texts  # slot: request
    also: Texts  # slots: first, second
    then: Texts  # slots: first, label, tool
    outputs: Texts  # slot noun
    errors: Texts  # slot noun
    answers: Texts  # slot: output
    again: Texts  # prompts for the last output, once more
    small_talk: tuple[SmallTalk, ...]  # slots of vocabularies
    generate: Texts  # slot: a_noun
    generate_with: Texts  # slots: a_noun, labels
    generate_stated: Texts  # slots: a_noun, values
    extract: Texts  # slots: noun, values
    form_instructions: Texts

    def vocabulary(self, kind: str) -> Texts:
        return _vocabularies(self.split)[kind]


class SchemaSlots(Slots):
    """Slots that are also drawn from the vocabularies."""

    def _draw(self, name: str) -> str:
        if name == "code":
            return str(self.rng.randint(100, 9999))
        if name == "given":
            return draw_person(self.rng, self.words)
        texts = _vocabularies(self.words.split).get(name)
        return super()._draw(name) if texts is None else self.choose(texts)


@functools.cache
def schema_words(split: Split) -> SchemaWords:
    """The words of a split; the last quarter of every open list is held out."""
    file = importlib.resources.files("openafm.data.synthetic").joinpath("lexicon", "schemas.json")
    whole = from_dict(SchemaWords, json.loads(file.read_text("utf-8")))
    return dataclasses.replace(section_part(whole, split), split=split)


@functools.cache
def _vocabularies(split: Split) -> dict[str, Texts]:
    return {vocabulary.kind: vocabulary.texts for vocabulary in schema_words(split).vocabularies}
