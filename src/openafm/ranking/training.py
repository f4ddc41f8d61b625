"""Train a ranker: the right choice of a set against the others, and against those of the other sets of a step.

Shapes: T texts of a step, C choices of a step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from openafm.ranking.encoder import DualEncoder, Words
from openafm.ranking.features import words_of
from openafm.ranking.optimization import TableTrainingConfig, optimize
from openafm.ranking.ranker import RankerConfig

_OTHER = ("other", "none", "something else", "unknown")


@dataclass(frozen=True, kw_only=True)
class RankedChoice:
    """A choice under one or several names, with texts that it fits."""

    names: tuple[str, ...]
    texts: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class ChoiceSet:
    """Choices of which a text fits one; training draws a set by its weight.

    `may_be_none`: in most steps texts of left-out choices, and `none_texts`, fit none of the choices.
    """

    choices: tuple[RankedChoice, ...]
    weight: float
    may_be_none: bool = False
    none_texts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankerTrainingConfig(TableTrainingConfig):
    """How a ranker is trained. Shares are of texts, but for `open_share` and `other_share`: of the sets of all steps."""

    num_buckets: int = 1 << 15
    dim: int = 128
    num_steps: int = 48_000
    learning_rate: float = 0.005
    sets_per_step: int = 8
    texts_per_set: int = 12
    most_choices: int = 16
    dropped_words: float = 0.5
    described_share: float = 0.35
    open_share: float = 0.7
    """Steps of a set that may be none, in which texts can fit no choice."""
    none_share: float = 0.4
    talk_share: float = 0.5
    other_share: float = 0.2
    """Steps of any other set with the choice "other" for a choice that is left out."""
    across_sets: float = 0.5
    """Weight of the loss over the choices of all sets of a step."""


@dataclass(frozen=True, kw_only=True)
class _Choice:
    names: tuple[Words, ...]
    texts: tuple[Words, ...]
    description: Words


@dataclass(frozen=True, kw_only=True)
class _Set:
    choices: tuple[_Choice, ...]
    may_be_none: bool
    none_texts: tuple[Words, ...]


class _Step:
    """The texts and choices of one step."""

    def __init__(self) -> None:
        self.texts: list[Words] = []
        self.choices: list[Words] = []
        self.gold: list[int] = []  # index of the choice, -1 for none
        self.spans: list[tuple[int, int]] = []  # the choices of the set of a text
        self.is_open: list[bool] = []  # whether a text may fit none


def train_ranker(
    config: RankerTrainingConfig,
    sets: Sequence[ChoiceSet],
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[RankerConfig, dict[str, NDArray[Any]]]:
    """Return the config and the weights of a ranker, as `write_ranker` takes them. Deterministic on one thread.

    Args:
        on_step: called after each step with its number, from 1, and its loss.
    """
    torch.manual_seed(config.seed)
    rng = random.Random(config.seed)
    found = [(_prepared(each, config.num_buckets), each.weight) for each in sets]
    prepared, weights = zip(*(pair for pair in found if pair[0].choices), strict=True)
    encoder = DualEncoder(config.num_buckets, config.dim, config.dropped_words)

    def next_loss() -> Tensor:
        drawn = rng.choices(prepared, weights, k=config.sets_per_step)
        return _loss(config, encoder, _drawn_step(config, rng, drawn), rng)

    optimize(config, encoder.table.weight, encoder.dense_parameters(), next_loss, on_step)
    return encoder.exported()


def _loss(config: RankerTrainingConfig, encoder: DualEncoder, step: _Step, rng: random.Random) -> Tensor:
    """Cross entropy of the right choice in its set, with none where the set is open, and among all choices of the step."""
    score_TC, none_T = encoder.scores(step.texts, step.choices, rng)
    num_choices = len(step.choices)
    gold_T = torch.tensor([num_choices if gold < 0 else gold for gold in step.gold])
    place_C, span_T2 = torch.arange(num_choices), torch.tensor(step.spans)
    is_own_TC = (place_C >= span_T2[:, :1]) & (place_C < span_T2[:, 1:])
    own_TC = score_TC.masked_fill(~is_own_TC, -torch.inf)
    open_T = none_T.masked_fill(~torch.tensor(step.is_open), -torch.inf)
    fits_T = gold_T < num_choices
    across = cross_entropy(score_TC[fits_T], gold_T[fits_T], reduction="sum") / max(1, int(fits_T.sum()))
    return cross_entropy(torch.cat([own_TC, open_T[:, None]], 1), gold_T) + config.across_sets * across


def _prepared(choices: ChoiceSet, num_buckets: int) -> _Set:
    def words(texts: Sequence[str]) -> tuple[Words, ...]:
        return tuple(found for text in texts if (found := words_of(text, num_buckets)))

    prepared = (
        _Choice(names=words(choice.names), texts=words(choice.texts), description=words_of(choice.description, num_buckets))
        for choice in choices.choices
    )
    return _Set(
        choices=tuple(choice for choice in prepared if choice.names and choice.texts),
        may_be_none=choices.may_be_none,
        none_texts=words(choices.none_texts),
    )


def _drawn_step(config: RankerTrainingConfig, rng: random.Random, sets: Sequence[_Set]) -> _Step:
    step = _Step()
    for each in sets:
        if each.may_be_none and rng.random() < config.open_share:
            _draw_open(config, rng, each, step)
        else:
            _draw_closed(config, rng, each, step)
    return step


def _draw_closed(config: RankerTrainingConfig, rng: random.Random, drawn: _Set, step: _Step) -> None:
    """Texts that fit one of the choices, in some steps "other"."""
    first = len(step.choices)
    chosen = rng.sample(drawn.choices, min(len(drawn.choices), config.most_choices))
    step.choices += [_written(config, rng, choice) for choice in chosen]
    if len(chosen) > 2 and not drawn.may_be_none and rng.random() < config.other_share:
        step.choices[-1] = words_of(rng.choice(_OTHER), config.num_buckets)
    for _ in range(config.texts_per_set):
        place = rng.randrange(len(chosen))
        _add_text(step, first, rng.choice(chosen[place].texts), first + place, is_open=False)


def _draw_open(config: RankerTrainingConfig, rng: random.Random, drawn: _Set, step: _Step) -> None:
    """Texts that fit one of the choices, or none of them."""
    first = len(step.choices)
    order = rng.sample(drawn.choices, len(drawn.choices))
    count = rng.randint(1, max(1, min(config.most_choices, len(order) - 1)))
    chosen, others = order[:count], order[count:]
    step.choices += [_written(config, rng, choice) for choice in chosen]
    for _ in range(config.texts_per_set):
        if rng.random() >= config.none_share:
            place = rng.randrange(len(chosen))
            _add_text(step, first, rng.choice(chosen[place].texts), first + place, is_open=True)
        elif drawn.none_texts and (not others or rng.random() < config.talk_share):
            _add_text(step, first, rng.choice(drawn.none_texts), -1, is_open=True)
        elif others:
            _add_text(step, first, rng.choice(rng.choice(others).texts), -1, is_open=True)


def _add_text(step: _Step, first: int, text: Words, gold: int, *, is_open: bool) -> None:
    step.texts.append(text)
    step.gold.append(gold)
    step.spans.append((first, len(step.choices)))
    step.is_open.append(is_open)


def _written(config: RankerTrainingConfig, rng: random.Random, choice: _Choice) -> Words:
    """A name of a choice, in some cases with its description."""
    name = rng.choice(choice.names)
    return [*name, *choice.description] if rng.random() < config.described_share else name
