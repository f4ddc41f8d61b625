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
from openafm.data.synthetic.tasks.emoji import emoji_turns
from openafm.data.synthetic.tasks.events import event_turns, plain_event_turns
from openafm.data.synthetic.tasks.forms import form_turns
from openafm.data.synthetic.tasks.labels import label_turns, tagging_turns
from openafm.data.synthetic.tasks.lookup import lookup_turns, reorder_turns
from openafm.data.synthetic.tasks.natural import natural_turns
from openafm.data.synthetic.tasks.notes import agenda_turns, note_turns
from openafm.data.synthetic.tasks.notices import notice_turns
from openafm.data.synthetic.tasks.tools import tool_turns
from openafm.data.synthetic.tasks.wordnet import wordnet_turns
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
    there are none. A share `wordnet_share` are labels of definitions and sentences of WordNet, from the folder `wordnet`,
    and a share `cldr_share` keywords of emoji in all languages, from the folder `cldr`.
    """

    seed: int = 0
    split: Split = "train"
    tasks: dict[str, float] = dataclasses.field(default_factory=_default_tasks)
    languages: dict[str, float] = dataclasses.field(default_factory=_default_languages)
    natural: str = ""
    natural_share: float = 0.0
    wordnet: str = ""
    wordnet_share: float = 0.0
    cldr: str = ""
    cldr_share: float = 0.0

    def __post_init__(self) -> None:
        self._check(self.tasks, TASKS, "task")
        self._check(self.languages, LANGUAGES, "language")
        shares = {name: getattr(self, name) for name in ("natural_share", "wordnet_share", "cldr_share")}
        for name, share in shares.items():
            self.require(0 <= share <= 1, f"{name} is a share from 0 to 1, got {share}")
        self.require(sum(shares.values()) <= 1, f"{', '.join(shares)} are together at most 1, got {sum(shares.values()):g}")

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
    folders = {"natural": config.natural, "wordnet": config.wordnet, "cldr": config.cldr}
    source = ""
    if config.split == "train" and any(folders.values()):
        shares = (config.natural_share, config.wordnet_share, config.cldr_share)
        source = rng.choices((*folders, ""), (*shares, 1 - sum(shares)))[0]
    if source and folders[source]:
        return _borrowed(rng, source, Path(folders[source]), config.languages)
    task = rng.choices(tuple(config.tasks), tuple(config.tasks.values()))[0]
    language = rng.choices(tuple(config.languages), tuple(config.languages.values()))[0]
    turns = _TASKS[task](rng, language, config.split)
    return Conversation(turns=turns, task=task, language=language)


def _borrowed(rng: random.Random, source: str, folder: Path, languages: Mapping[str, float]) -> Conversation:
    """An example of what people wrote elsewhere."""
    if source == "natural":
        return Conversation(turns=natural_turns(rng, folder), task=source, language="en")
    if source == "wordnet":
        return Conversation(turns=wordnet_turns(rng, folder), task=source, language="en")
    language = rng.choices(tuple(languages), tuple(languages.values()))[0]
    return Conversation(turns=emoji_turns(rng, language, folder), task=source, language=language)


def generate(config: SyntheticConfig, count: int) -> Iterator[Conversation]:
    """Return the first `count` examples of the stream."""
    return (example(config, index) for index in range(count))
