"""The built-in corpus: conversations in sixteen languages, each a pure function of seed, split and index."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from openafm.core.config import Config, nearest
from openafm.data.synthetic.languages import LANGUAGES, Split
from openafm.data.synthetic.tasks.arithmetic import arithmetic_turns
from openafm.data.synthetic.tasks.events import event_turns, plain_event_turns
from openafm.data.synthetic.tasks.forms import form_turns
from openafm.data.synthetic.tasks.labels import label_turns, tagging_turns
from openafm.data.synthetic.tasks.lookup import lookup_turns, reorder_turns
from openafm.data.synthetic.tasks.natural import natural_turns
from openafm.data.synthetic.tasks.notes import agenda_turns, note_turns
from openafm.data.synthetic.tasks.notices import notice_turns
from openafm.data.synthetic.tasks.tools import tool_turns
from openafm.tokenizer.conversation import Conversation, Turn

_TASKS: dict[str, Callable[[random.Random, str, Split], tuple[Turn, ...]]] = {
    "event": event_turns,
    "plain_event": plain_event_turns,
    "note": note_turns,
    "agenda": agenda_turns,
    "notice": notice_turns,
    "form": form_turns,
    "label": label_turns,
    "tool": tool_turns,
    "lookup": lookup_turns,
    "reorder": reorder_turns,
    "tagging": tagging_turns,
    "arithmetic": arithmetic_turns,
}
TASKS = tuple(_TASKS)
TASKS_WITH_TOOLS = ("tool", "arithmetic")


def _default_tasks() -> dict[str, float]:
    return {"event": 0.25, "tool": 0.25, "form": 0.2, "label": 0.2, "lookup": 0.05, "tagging": 0.03, "arithmetic": 0.02}


def _default_languages() -> dict[str, float]:
    return {language: 0.25 if language == "en" else 0.05 for language in LANGUAGES}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig(Config):
    """An endless stream of examples. Weights need not sum to one.

    `held_out` shares no sentence frame, word, form, tool or label set with `train`, whatever the seeds;
    only the lines of a notice beside its title are few, and in both. A share
    `natural_share` of the examples of `train` are requests that people wrote, from the folder `natural`; without a folder,
    there are none.
    """

    seed: int = 0
    split: Split = "train"
    tasks: dict[str, float] = dataclasses.field(default_factory=_default_tasks)
    languages: dict[str, float] = dataclasses.field(default_factory=_default_languages)
    natural: str = ""
    natural_share: float = 0.0

    def __post_init__(self) -> None:
        self._check(self.tasks, TASKS, "task")
        self._check(self.languages, LANGUAGES, "language")
        self.require(0 <= self.natural_share <= 1, f"natural_share is a share from 0 to 1, got {self.natural_share}")

    def without_tools(self) -> SyntheticConfig:
        """Return the corpus without the tasks that use tools, for chat templates without a place for them.

        Raises:
            ConfigError: no other task has a positive weight.
        """
        return dataclasses.replace(self, tasks={name: w for name, w in self.tasks.items() if name not in TASKS_WITH_TOOLS})

    def _check(self, weights: Mapping[str, float], known: tuple[str, ...], kind: str) -> None:
        for name, weight in weights.items():
            self.require(name in known, f"unknown {kind} '{name}'{nearest(name, list(known))}")
            self.require(weight >= 0, f"{kind} '{name}': expected a weight of 0 or more, got {weight}")
        self.require(sum(weights.values()) > 0, f"expected at least one {kind} with a positive weight")


def example(config: SyntheticConfig, index: int) -> Conversation:
    """Return example `index` of the stream, the same in every process."""
    key = hashlib.blake2b(f"{config.seed} {config.split} {index}".encode(), digest_size=8).digest()
    rng = random.Random(int.from_bytes(key, "big"))
    if config.natural and config.split == "train" and rng.random() < config.natural_share:
        return Conversation(turns=natural_turns(rng, Path(config.natural)), task="natural", language="en")
    task = rng.choices(tuple(config.tasks), tuple(config.tasks.values()))[0]
    language = rng.choices(tuple(config.languages), tuple(config.languages.values()))[0]
    turns = _TASKS[task](rng, language, config.split)
    return Conversation(turns=turns, task=task, language=language)


def generate(config: SyntheticConfig, count: int) -> Iterator[Conversation]:
    """Return the first `count` examples of the stream."""
    return (example(config, index) for index in range(count))
