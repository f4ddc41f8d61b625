"""Sources of prompts: draw n of a run gets prompt n of its source. Environments: the tools of a prompt."""

from __future__ import annotations

import contextlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from openafm.core.config import Config
from openafm.core.files import file_digest, lines_of
from openafm.rl.prompts import RLPrompt
from openafm.tokenizer.conversation import ConversationError, ToolCall


class Environment(Protocol):
    """The tools of one sample, with their state."""

    def call(self, call: ToolCall) -> str:
        """Return the output of a tool call. Wrong calls return text that describes the error."""
        ...

    @property
    def state(self) -> Mapping[str, object]:
        """Return the state after the calls so far, JSON values."""
        ...


class PromptSource(ABC):
    """An endless sequence of prompts."""

    @abstractmethod
    def prompt(self, number: int) -> RLPrompt:
        """Return prompt `number`, the same in every process."""

    def environment(self, prompt: RLPrompt) -> Environment | None:
        """Return a new environment for a sample of the prompt; None if the prompt has no tools."""
        return None

    def image(self, digest: str) -> bytes:
        """Return the bytes of an image of a prompt, by their SHA-256 in hex.

        Raises:
            ConversationError: the source has no such image.
        """
        raise ConversationError(f"the prompts have no image {digest[:12]}")


@dataclass(frozen=True, kw_only=True)
class PromptSourceConfig(Config, ABC):
    """Base of the sources of prompts; a kind of the registry."""

    @property
    def digest(self) -> str:
        """Identify the content that is not part of the config, such as a file; empty without any."""
        return ""

    @abstractmethod
    def build(self) -> PromptSource:
        """Return the source.

        Raises:
            ConversationError: a prompt cannot be read.
        """


@dataclass(frozen=True, kw_only=True)
class PromptFileConfig(PromptSourceConfig):
    """Prompts of a JSONL file, in the order of the file, or shuffled in every epoch.

    An image is a part `{"type": "image", "file": "cat.png", "num_tokens": 16}` of the content of a message; the file is
    relative to the folder of the prompts, and the number of tokens is that of a resolution mode of the model.
    """

    path: str
    shuffle: bool = True
    seed: int = 0

    @property
    def digest(self) -> str:
        path = Path(self.path)
        images = _read(path)[1] if b'"file"' in path.read_bytes() else {}
        return " ".join([file_digest(path), *sorted(images)])

    def build(self) -> PromptSource:
        return _PromptFile(self)


class _PromptFile(PromptSource):
    def __init__(self, config: PromptFileConfig) -> None:
        self._config = config
        self._prompts, self._images = _read(Path(config.path))

    def image(self, digest: str) -> bytes:
        return self._images[digest].read_bytes() if digest in self._images else super().image(digest)

    def prompt(self, number: int) -> RLPrompt:
        epoch, index = divmod(number, len(self._prompts))
        if self._config.shuffle:
            order = list(range(len(self._prompts)))
            random.Random(f"{self._config.seed} {epoch}").shuffle(order)
            index = order[index]
        return self._prompts[index]


def read_prompts(path: Path) -> list[RLPrompt]:
    """Return the prompts of a JSONL file (`RLPrompt.to_dict`).

    Raises:
        ConversationError: a line is not a prompt, an image is missing, or there is no prompt. The message names the line.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[list[RLPrompt], dict[str, Path]]:
    """Return the prompts, and their image files by digest."""
    images: dict[str, Path] = {}
    prompts = []
    for number, line in enumerate(lines_of(path.read_text(encoding="utf-8")), start=1):
        try:
            values = json.loads(line)
            for part in _image_parts(values):
                file = path.parent / part.pop("file")
                part["digest"] = file_digest(file)
                images[part["digest"]] = file
            prompts.append(RLPrompt.from_dict(values))
        except (ValueError, OSError, ConversationError) as error:
            raise ConversationError(f"line {number} of {path} is not a prompt: {error}") from error
    if not prompts:
        raise ConversationError(f"{path} has no prompts; write one JSON object a line")
    return prompts, images


def _image_parts(prompt: Any) -> list[dict[str, Any]]:
    """Return the parts of a prompt that name an image file."""
    messages = prompt.get("messages", ()) if isinstance(prompt, dict) else ()
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part for part in parts if isinstance(part, dict) and isinstance(part.get("file"), str)]


@dataclass(frozen=True, kw_only=True)
class PromptMixtureConfig(PromptSourceConfig):
    """Several sources with weights. The source of a draw depends on the seed and on the number of the draw."""

    sources: tuple[PromptSourceConfig, ...]
    weights: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(
            len(self.sources) == len(self.weights) > 0,
            f"needs a weight for each source, got {len(self.sources)} sources and {len(self.weights)} weights",
        )
        self.require(min(self.weights) > 0, f"weights must be above 0, got {self.weights}")

    @property
    def digest(self) -> str:
        return " ".join(source.digest for source in self.sources).strip()

    def build(self) -> PromptSource:
        return _PromptMixture(self)


class _PromptMixture(PromptSource):
    def __init__(self, config: PromptMixtureConfig) -> None:
        self._config = config
        self._sources = [source.build() for source in config.sources]
        self._by_kind: dict[str, PromptSource] = {}

    def prompt(self, number: int) -> RLPrompt:
        rng = random.Random(f"{self._config.seed} {number}")
        (source,) = rng.choices(self._sources, self._config.weights)
        prompt = source.prompt(number)
        self._by_kind[prompt.kind] = source
        return prompt

    def environment(self, prompt: RLPrompt) -> Environment | None:
        return self._by_kind[prompt.kind].environment(prompt)

    def image(self, digest: str) -> bytes:
        for source in self._sources:
            with contextlib.suppress(ConversationError):
                return source.image(digest)
        return super().image(digest)
