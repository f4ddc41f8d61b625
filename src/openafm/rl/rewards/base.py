"""The interface of rewards."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError
from openafm.rl.trajectories import Sample, Score
from openafm.tokenizer.conversation import Conversation


class TruthError(OpenAFMError):
    """The `truth` of a prompt lacks what a reward compares with, or has it in another form."""


class Reward(Protocol):
    """Score samples."""

    def __call__(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample, in order.

        A sample that cannot be scored, or not within the reward's time limit, gets a `Score` with an `error`. Called from
        several threads.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RewardConfig(Config, ABC):
    """Base of rewards; a kind of the registry, so a plugin can add one.

    Attributes:
        name: the name of the reward in metrics.
        kinds: the kinds of prompts that it scores; empty for all. `SumConfig` applies it.
    """

    VERSION: ClassVar[int] = 1
    """Raise it when the same sample gets another score: scores cached by other versions are not read."""

    name: str = "reward"
    kinds: tuple[str, ...] = ()

    @abstractmethod
    def build(self) -> Reward:
        """Return the reward.

        Raises:
            OpenAFMError: something that it needs is missing on this machine, such as the sandbox.
        """


def scored(name: str, value: float) -> Score:
    """Return the score of one term; a value that is not finite is an error of the sample."""
    if not math.isfinite(value):
        return failed(name, f"the reward is {value}")
    return Score(reward=value, terms={name: value})


def failed(name: str, error: object) -> Score:
    """Return the score of a sample that has no reward."""
    return Score(reward=0.0, error=f"{name}: {error}")


def sample_digest(sample: Sample) -> str:
    """Identify a sample by its prompt, its turns and the state that it left."""
    turns = Conversation(turns=sample.turns).to_dict()["messages"]
    parts = [sample.prompt.digest, turns, sample.text, sample.finish_reason, sample.num_tokens, dict(sample.state)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]
