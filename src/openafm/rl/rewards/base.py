"""The interface of rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openafm.core.config import Config
from openafm.rl.trajectories import Sample, Score


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
        kinds: the kinds of prompts that it scores; empty for all.
    """

    kinds: tuple[str, ...] = ()

    @abstractmethod
    def build(self) -> Reward:
        """Return the reward.

        Raises:
            OpenAFMError: something that it needs is missing on this machine, such as the sandbox.
        """
