"""Train the ranker of a bundle on the built-in corpus and on requests that people wrote: minutes on one core.

    python -m openafm.recipes.shipping.ranker --out ranker [--natural FOLDER] [--steps N]

The folder `ranker` of a bundle is read by `openafm.ranking.ranker.open_ranker`. Held-out texts and sets are not read.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from openafm.core.progress import progress
from openafm.data.synthetic.languages import LANGUAGES
from openafm.data.synthetic.rendering import render, text_of
from openafm.data.synthetic.tasks.natural import natural_set, words_of_intent
from openafm.data.synthetic.text_files.catalogs import catalog_of
from openafm.data.synthetic.text_files.source_text import Frame
from openafm.ranking.ranker import write_ranker
from openafm.ranking.training import ChoiceSet, RankedChoice, RankerTrainingConfig, train_ranker

SEED = 20261130
SHARES = {"labels": 0.5, "natural": 0.25, "tools": 0.2, "forms": 0.05}
NATURAL_SETS = ("snips", "home", "clinc150", "banking77", "nlupp")
_DRAWS = 2  # of each frame: it may have alternatives


def choice_sets(natural: Path | None) -> list[ChoiceSet]:
    """Return the sets of the training parts. Within a kind a set is drawn by the square root of its number of texts.

    Raises:
        NaturalDataError: the folder lacks a set.
    """
    rng = random.Random(SEED)
    kinds: dict[str, list[ChoiceSet]] = {
        "labels": [each for language in LANGUAGES for each in _label_sets(rng, language)],
        "tools": [_tools(rng, language) for language in LANGUAGES],
        "forms": [_forms(rng, language) for language in LANGUAGES],
        "natural": [] if natural is None else [_intents(natural, name) for name in NATURAL_SETS],
    }
    return [each for kind, sets in kinds.items() for each in _weighted(sets, SHARES[kind])]


def _weighted(sets: Sequence[ChoiceSet], share: float) -> Iterator[ChoiceSet]:
    usable = [each for each in sets if len(each.choices) > 1]
    roots = [sum(len(choice.texts) for choice in each.choices) ** 0.5 for each in usable]
    for each, root in zip(usable, roots, strict=True):
        yield replace(each, weight=share * root / sum(roots))


def _label_sets(rng: random.Random, language: str) -> Iterator[ChoiceSet]:
    for labels in catalog_of(language, "train").label_sets:
        choices = (
            RankedChoice(
                names=(label.name, *label.aliases), texts=_texts(rng, label.texts, language), description=label.description
            )
            for label in labels.labels
        )
        yield ChoiceSet(choices=tuple(choices), weight=1.0)


def _tools(rng: random.Random, language: str) -> ChoiceSet:
    catalog = catalog_of(language, "train")
    choices = (
        RankedChoice(
            names=(tool_words(tool.name),), texts=_texts(rng, tool.requests, language), description=tool.description
        )
        for tool in catalog.tools
    )
    talk = _texts(rng, [talk.prompt for talk in catalog.small_talk], language)
    return ChoiceSet(choices=tuple(choices), weight=1.0, may_be_none=True, none_texts=talk)


def _forms(rng: random.Random, language: str) -> ChoiceSet:
    choices = (
        RankedChoice(names=(tool_words(form.name),), texts=_texts(rng, form.texts, language), description=form.description)
        for form in catalog_of(language, "train").forms
    )
    return ChoiceSet(choices=tuple(choices), weight=1.0)


def _intents(folder: Path, name: str) -> ChoiceSet:
    found = natural_set(folder, name)
    choices = (
        RankedChoice(names=(words_of_intent(intent),), texts=tuple(request.text for request in requests))
        for intent, requests in sorted(found.by_intent.items())
    )
    none_texts = tuple(request.text for request in found.out_of_scope)
    return ChoiceSet(choices=tuple(choices), weight=1.0, may_be_none=name != "nlupp", none_texts=none_texts)


def tool_words(name: str) -> str:
    """Return the name of a tool as words."""
    return words_of_intent(name)


def _texts(rng: random.Random, frames: Iterable[Frame], language: str) -> tuple[str, ...]:
    """The texts of frames without the values of their slots."""
    drawn = (text_of(render(frame, rng, lambda _: (), language=language)) for frame in frames for _ in range(_DRAWS))
    return tuple(dict.fromkeys(text for text in (" ".join(text.split()) for text in drawn) if text))


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the ranker")
    parser.add_argument("--natural", type=Path, help="folder of NAME-train.jsonl.gz files")
    parser.add_argument("--steps", type=int, default=RankerTrainingConfig.num_steps)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = RankerTrainingConfig(num_steps=options.steps)
    with progress("training the ranker", config.num_steps) as bar:
        ranker, weights = train_ranker(
            config, choice_sets(options.natural), lambda step, loss: bar.update(step, f"loss {loss:.2f}")
        )
    write_ranker(options.out, ranker, weights)


if __name__ == "__main__":
    main()
