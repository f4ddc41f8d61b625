"""Requests that people wrote, with intents and slots, as labels, tools and forms of the corpus.

The sets are read from a folder that the project does not contain; `ATTRIBUTIONS` goes into the card of a model trained on
them. Only their training parts are read. Requests that are nearly the same as one of any set's test part are left out.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.data.synthetic.reference import fill
from openafm.data.synthetic.schemas import STYLES, PropertyDraft, answer_object, object_schema, styled
from openafm.data.synthetic.tasks.labels import NamedLabel, labeled_turns
from openafm.data.synthetic.text_files.frames import frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, ToolCall, ToolDefinition, ToolTurn, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

ATTRIBUTIONS = {
    "snips": "Snips Voice Platform (arXiv 1805.10190), CC0 1.0",
    "clinc150": "CLINC150, Larson et al., EMNLP 2019, CC BY 3.0",
    "banking77": "Banking77, PolyAI, CC BY 4.0",
    "nlupp": "NLU++, PolyAI, CC BY 4.0",
    "restaurant8k": "Restaurant-8k, PolyAI, CC BY 4.0",
    "home": "Liu et al., Benchmarking Natural Language Understanding Services, IWSDS 2019, CC BY 4.0",
}
_TOOL_SETS, _LABEL_SETS = ("snips", "home", "clinc150"), ("snips", "home", "clinc150", "banking77", "nlupp")
_FORM_SETS = ("restaurant8k", "snips", "home", "nlupp")
_KINDS, _KIND_SHARES = ("label", "tool", "form"), (0.4, 0.4, 0.2)
_NO_CALL_SHARE, _MOST_TOOLS = 0.3, 6
_SEVERAL_SHARE, _SEVERAL = 0.6, (2, 7)  # requests of a conversation with one list of labels or one set of tools
_NONE, _NONE_SHARE = ("none", "other", "none of these", "something else", "no label fits"), 0.4
_OUT_OF_SCOPE_SHARE, _MOST_DRAWS = 0.3, 8
_ALIKE = 0.8
_RARE_SLOT = 0.02
_DONE = ("Done", "OK", "ok", "Ready", "success")


class NaturalDataError(OpenAFMError):
    """The folder of natural requests lacks a file, or a line of it is not a request."""


@dataclass(frozen=True)
class NaturalRequest:
    """A text with its intents and slots; no intent is out of scope."""

    text: str
    intents: tuple[str, ...]
    slots: Mapping[str, str]


@dataclass(frozen=True)
class NaturalSet:
    """The requests of one source, by intent, and the slots that an intent may have."""

    name: str
    requests: tuple[NaturalRequest, ...]
    by_intent: Mapping[str, tuple[NaturalRequest, ...]]
    out_of_scope: tuple[NaturalRequest, ...]
    slots: Mapping[str, tuple[str, ...]]


def natural_turns(rng: random.Random, folder: Path) -> tuple[Turn, ...]:
    """Return one request as a label, tool or form task, or several to one list of labels or one set of tools.

    Raises:
        NaturalDataError: the folder lacks a set, or one has fewer than two intents.
    """
    match rng.choices(_KINDS, _KIND_SHARES)[0]:
        case "label":
            return _label_turns(rng, natural_set(folder, rng.choice(_LABEL_SETS)))
        case "tool":
            return _tool_turns(rng, natural_set(folder, rng.choice(_TOOL_SETS)))
    return _form_turns(rng, natural_set(folder, rng.choice(_FORM_SETS)))


def words_of_intent(intent: str) -> str:
    """Return `AddToPlaylist` and `card_arrival` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", intent).replace("_", " ").lower()


@functools.cache
def natural_set(folder: Path, name: str) -> NaturalSet:
    """Return the training part of a set, read once, without near-duplicates of the test parts, also those of other sets.

    Raises:
        NaturalDataError: the file is missing or damaged, or has fewer than two intents.
    """
    file, known = folder / f"{name}-train.jsonl.gz", _test_texts(folder)
    requests = tuple(request for request in _read(file) if not known.has(request.text))
    by_intent: dict[str, list[NaturalRequest]] = defaultdict(list)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for request in requests:
        for intent in request.intents:
            by_intent[intent].append(request)
            counts[intent].update(list(request.slots))
    if len(by_intent) == 1:
        raise NaturalDataError(f"{file} has one intent; labels and tools are chosen among two or more")
    return NaturalSet(
        name=name,
        requests=requests,
        by_intent={intent: tuple(found) for intent, found in by_intent.items()},
        out_of_scope=tuple(request for request in requests if not request.intents),
        slots={
            intent: tuple(slot for slot, count in found.items() if count >= _RARE_SLOT * len(by_intent[intent]))
            for intent, found in counts.items()
        },
    )


@functools.cache
def _test_texts(folder: Path) -> NearDuplicates:
    return NearDuplicates(request.text for test in sorted(folder.glob("*-test.jsonl.gz")) for request in _read(test))


class NearDuplicates:
    """Texts, and whether another text shares most of its runs of three words with one of them."""

    def __init__(self, texts: Iterator[str] | Sequence[str]) -> None:
        self._shingles = [_shingles(text) for text in texts]
        self._found: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, shingles in enumerate(self._shingles):
            for shingle in shingles:
                self._found[shingle].append(index)

    def has(self, text: str) -> bool:
        shingles = _shingles(text)
        shared = Counter(index for shingle in shingles for index in self._found.get(shingle, ()))
        return any(count / (len(shingles) + len(self._shingles[index]) - count) >= _ALIKE for index, count in shared.items())


def _shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = ["", *re.findall(r"\w+", text.lower()), ""]
    return frozenset(tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2)))


def _read(file: Path) -> Iterator[NaturalRequest]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield _request(json.loads(line))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise NaturalDataError(f"{file} cannot be read as natural requests: {error}") from error


def _request(row: Mapping[str, Any]) -> NaturalRequest:
    """A row; values are given the letters that the text has, and values that it lacks are left out."""
    text = row["text"]
    pairs = row.get("slots", ())
    if "plain" in row and any(value.lower() not in text.lower() for _, value in pairs):
        text = row["plain"]
    slots: dict[str, str] = {}
    for name, value in pairs:
        at = text.lower().find(value.lower())
        if at >= 0 and name not in slots and len(text) == len(text.lower()):
            slots[name] = text[at : at + len(value)]
    intents = row.get("intents") or ([row["intent"]] if row.get("intent") else [])
    return NaturalRequest(text=text, intents=tuple(intents), slots=slots)


def _label_turns(rng: random.Random, requests: NaturalSet) -> tuple[Turn, ...]:
    """One request with labels to choose from, or several requests to one list of labels."""
    request = rng.choice(requests.requests)
    if not request.intents:
        drawn = rng.sample(list(requests.by_intent), min(len(requests.by_intent), rng.randint(2, 6)))
        others = [NamedLabel(words_of_intent(intent), "") for intent in drawn]
        return labeled_turns(rng, request.text, NamedLabel("out of scope", ""), others, "en", "train")
    gold = rng.choice(request.intents)
    absent = [intent for intent in requests.by_intent if intent not in request.intents]
    near = [intent for intent in absent if set(words_of_intent(intent).split()) & set(words_of_intent(gold).split())]
    chosen = {*rng.sample(near, min(len(near), 2)), *rng.sample(absent, min(len(absent), rng.randint(1, 6)))}
    if rng.random() < _SEVERAL_SHARE:
        return _listed_turns(rng, requests, request, gold, sorted(chosen))
    others = [NamedLabel(words_of_intent(intent), "") for intent in sorted(chosen)]
    return labeled_turns(rng, request.text, NamedLabel(words_of_intent(gold), ""), others, "en", "train")


def _listed_turns(
    rng: random.Random, requests: NaturalSet, first: NaturalRequest, gold: str, others: Sequence[str]
) -> tuple[Turn, ...]:
    """Several requests to one list of labels; in some lists a label stands for all intents that are not listed."""
    intents = [gold, *others]
    rng.shuffle(intents)
    rest = rng.choice(_NONE) if rng.random() < _NONE_SHARE else None
    names = [words_of_intent(intent) for intent in intents]
    if rest is not None:
        names.insert(rng.randrange(len(names) + 1), rest)
    pairs = {first.text: words_of_intent(gold)}
    for _ in range(rng.randint(*_SEVERAL) - 1):
        request = None if rest is None or rng.random() >= _NO_CALL_SHARE else _draw_absent(rng, requests, intents)
        if request is not None:
            pairs.setdefault(request.text, str(rest))
            continue
        intent = rng.choice(intents)
        drawn = (rng.choice(requests.by_intent[intent]) for _ in range(_MOST_DRAWS))
        # A request with two of the intents would have two right labels.
        request = next((each for each in drawn if sum(name in intents for name in each.intents) == 1), None)
        if request is not None:
            pairs.setdefault(request.text, words_of_intent(intent))
    answers = list(pairs.items())
    rng.shuffle(answers)
    listed = rng.choice((", ", ", ", " / ", " | ", "; ")).join(names)
    task = fill(rng, rng.choice(frames_of("en", "train").instructions["label_list"]), labels=listed)
    answered = [turn for text, answer in answers for turn in (UserTurn(text=text), AssistantTurn(text=answer))]
    return Instructions(text=task), *answered


def _draw_absent(rng: random.Random, requests: NaturalSet, intents: Sequence[str]) -> NaturalRequest | None:
    """Return a request that has none of these intents, some of them out of scope, or None where the draws found none."""
    if requests.out_of_scope and rng.random() < _OUT_OF_SCOPE_SHARE:
        return rng.choice(requests.out_of_scope)
    drawn = (rng.choice(requests.requests) for _ in range(_MOST_DRAWS))
    return next((request for request in drawn if not set(request.intents) & set(intents)), None)


def _tool_turns(rng: random.Random, requests: NaturalSet) -> tuple[Turn, ...]:
    """One request, or several, to a set of tools; some need a tool that the set lacks."""
    frames, style = frames_of("en", "train"), rng.choice(STYLES[:6])
    request = rng.choice(requests.requests)
    absent = [intent for intent in requests.by_intent if intent not in request.intents]
    chosen = rng.sample(absent, min(len(absent), rng.randint(1, _MOST_TOOLS - 1)))
    if request.intents and rng.random() >= _NO_CALL_SHARE:
        chosen = [request.intents[0], *chosen[: _MOST_TOOLS - 1]]
        rng.shuffle(chosen)
    tools = {intent: _define(rng, requests, intent, style) for intent in chosen}
    task = fill(rng, rng.choice(frames.instructions["tool"])) if rng.random() < 0.8 else ""
    turns: list[Turn] = [Instructions(text=task, tools=tuple(tools.values())), *_answered(rng, request, tools)]
    asked = {request.text}
    for _ in range(rng.randint(*_SEVERAL) - 1 if rng.random() < _SEVERAL_SHARE else 0):
        found = _draw_absent(rng, requests, chosen) if rng.random() < _NO_CALL_SHARE else None
        found = found or rng.choice(requests.by_intent[rng.choice(chosen)])
        if found.text not in asked:  # the same text again would teach to copy the answer
            turns += _answered(rng, found, tools)
            asked.add(found.text)
    return tuple(turns)


def _answered(rng: random.Random, request: NaturalRequest, tools: Mapping[str, ToolDefinition]) -> tuple[Turn, ...]:
    """A request, whose set has one intent for each, and the call of its tool, or a text where the tool is absent."""
    frames, prompt = frames_of("en", "train"), UserTurn(text=request.text)
    tool = next((tools[intent] for intent in request.intents if intent in tools), None)
    if tool is None:
        return prompt, AssistantTurn(text=fill(rng, rng.choice(frames.instructions["no_tool"])))
    arguments = {name: request.slots[name] for name in tool.parameters["x-order"] if name in request.slots}
    output = rng.choice(_DONE)
    return (
        prompt,
        AssistantTurn(tool_calls=(ToolCall(name=tool.name, arguments=arguments),)),
        ToolTurn(name=tool.name, text=output),
        AssistantTurn(text=fill(rng, rng.choice(frames.instructions["answer"]), output=output)),
    )


def _define(rng: random.Random, requests: NaturalSet, intent: str, style: str) -> ToolDefinition:
    words = words_of_intent(intent)
    slots = list(requests.slots.get(intent, ()))
    rng.shuffle(slots)
    properties = [PropertyDraft(slot, {"type": "string"}, "omitted") for slot in slots]
    return ToolDefinition(
        name=styled(words, style),
        description=rng.choice((words.capitalize() + ".", words.capitalize(), "")) or words,
        parameters=object_schema(styled(words, "pascal"), properties),
    )


def _form_turns(rng: random.Random, requests: NaturalSet) -> tuple[Turn, ...]:
    """One request with its slots as fields, among slots that it does not have."""
    frames = frames_of("en", "train")
    request = rng.choice(requests.requests)
    intent = rng.choice(request.intents) if request.intents else ""
    everything = requests.slots.get(intent) or sorted({name for each in requests.requests[:500] for name in each.slots})
    names = list(dict.fromkeys([*request.slots, *rng.sample(everything, min(len(everything), rng.randint(0, 4)))]))
    names = names or list(everything[:2]) or ["value"]
    rng.shuffle(names)
    absence, style = rng.choice(("omitted", "null")), rng.choice(STYLES)
    renamed = {name: styled(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower(), style) for name in names}
    properties = [PropertyDraft(renamed[name], {"type": "string"}, absence) for name in names]
    values = {renamed[name]: value for name, value in request.slots.items() if name in renamed}
    title = styled(words_of_intent(intent or rng.choice(("booking", "request", "details"))), "pascal")
    return (
        Instructions(text=fill(rng, rng.choice(frames.instructions["form"]))),
        UserTurn(text=request.text, response_format=object_schema(title, properties)),
        AssistantTurn(text=compact_json(answer_object(properties, values))),
    )
