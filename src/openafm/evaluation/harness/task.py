"""Tasks: items with a prompt and a reference, and the rule that scores an output."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError

Score: TypeAlias = float | tuple[float, ...]
"""The value of a metric for one item. A metric with several values for an item is averaged over all values of all items."""


class TaskDataError(OpenAFMError):
    """The data of a task are missing or have other columns. The message says where the data come from."""


class World(Protocol):
    """A stateful environment of tools."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a tool and return its output, also for errors."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model is given for one item.

    Attributes:
        kind: `chat` is one turn of a conversation. `completion` is text that the model continues, without a chat template.
            `choice` is text and continuations whose log-likelihoods are compared.
        prefix: the beginning of `text` that other items share, such as few-shot examples. It is computed once.
        stop: texts that end a completion.
        continuations: the texts that a `choice` compares.
        tools: tools as JSON objects with `name`, `description` and `parameters`.
        schema: the JSON Schema of a guided answer.
        images: encoded images that come before the text. The model must see images.
        turns: further messages of the user, each sent after the answer to the one before.
        world: the state of an environment, on which called tools run until the model answers with text.
        open_world: opens the environment of `world`; None for `features.phone.Phone`.
        rounds: answers to one message while the model calls tools; None for the default of the answerer.
    """

    text: str
    kind: Literal["chat", "completion", "choice"] = "chat"
    instructions: str = ""
    prefix: str = ""
    stop: tuple[str, ...] = ()
    max_tokens: int = 1024
    continuations: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    schema: Mapping[str, Any] | None = None
    images: tuple[bytes, ...] = field(default=(), repr=False)
    turns: tuple[str, ...] = ()
    world: Mapping[str, Any] | None = None
    open_world: Callable[[Mapping[str, Any]], World] | None = field(default=None, repr=False, compare=False)
    rounds: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form without empty fields; images are their SHA-256."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "open_world"}
        values["images"] = tuple(hashlib.sha256(image).hexdigest() for image in self.images)
        return {name: value for name, value in values.items() if value not in ("", (), None)}

    @property
    def digest(self) -> str:
        """The SHA-256 of the prompt with its limits: a part of the key of cached outputs."""
        return hashlib.sha256(
            json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
        ).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question of a task. `group` is a part that is reported apart, such as a subject."""

    id: str
    prompt: Prompt
    reference: Any = None
    language: str = "en"
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a model returned for a prompt.

    Attributes:
        calls: tool calls as objects with `name` and `arguments`, and `turn` if the prompt has several.
        log_likelihoods: of the prompt's continuations, in nats.
        finish: `stop`, `length` for an output that the token limit ended, or `error`.
        error: why there is no output; the item then scores 0.
        was_blocked: the error is that the model or a guardrail refused the prompt or the answer.
    """

    text: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    log_likelihoods: tuple[float, ...] = ()
    prompt_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    finish: str = "stop"
    error: str = ""
    was_blocked: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def encodable(self) -> Output:
        """Return the output with half surrogates, which have no UTF-8 form, replaced by a question mark."""
        text = json.dumps(self.to_dict(), ensure_ascii=False)
        return self if text.isascii() else Output.from_dict(json.loads(text.encode("utf-8", "replace")))

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Output:
        """Return the output that `to_dict` wrote."""
        lists = {"calls": tuple(values["calls"]), "log_likelihoods": tuple(values["log_likelihoods"])}
        return Output(**{**values, **lists})


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The scores of one output by metric, the answer that was read from it, and the expected one."""

    scores: Mapping[str, Score]
    extraction: str | None = None
    expected: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Config, ABC):
    """Base of tasks. A task of your own is a subclass in one file, loaded with `--plugins` and named by its class name.

    `METRIC` is the main metric: the one of tables and of `--fail-below`.
    """

    METRIC: ClassVar[str] = "accuracy"

    @abstractmethod
    def items(self, data: Path) -> Iterable[Item]:
        """Return the items from the folder `data`.

        Raises:
            TaskDataError: a file is missing, or has other columns.
        """

    @abstractmethod
    def judge(self, item: Item, output: Output) -> Verdict:
        """Return the scores of an output. Called for outputs without error only; must not raise on any text."""

    def failed(self, item: Item, output: Output) -> Verdict:
        """Return the scores of an item whose request failed, as `output.error` says: 0 for the main metric."""
        return Verdict(scores={self.METRIC: 0.0})

    def check(self) -> None:
        """Raise an `OpenAFMError` if this machine cannot score the task. Called before any request."""
