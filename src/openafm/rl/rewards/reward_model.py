"""Rewards of a trained reward model, in this process or from a server (report 5.2.1: "calculated by a remote server")."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import numpy as np

from openafm.core.errors import OpenAFMError
from openafm.rl.rewards.base import Reward, RewardConfig, failed, scored
from openafm.rl.rewards.time_limits import within
from openafm.rl.selection import PromptFeatures
from openafm.rl.trajectories import Sample, Score
from openafm.tokenizer.conversation import Conversation, Turn

if TYPE_CHECKING:
    import torch

    from openafm.bundle import Bundle
    from openafm.models.attention.context import BatchContext

_MAX_REPLY_BYTES = 1 << 24
_TOKENS_PER_BATCH = 16_384


class RewardServerError(OpenAFMError):
    """A reward server cannot be reached, or its reply is not one reward for each conversation."""


class NotARewardModelError(OpenAFMError):
    """A bundle has no reward head."""


class LongConversationError(OpenAFMError):
    """A conversation does not fit the context of the reward model."""


class ConversationScorer(Protocol):
    """Give conversations rewards: the protocol of local and remote reward models."""

    def rewards(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the reward of each conversation, in order.

        Raises:
            OpenAFMError: a conversation is too long, or the server fails.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LearnedRewardConfig(RewardConfig):
    """The reward of a reward model: a bundle on this machine, or one behind `openafm rl serve-rewards`.

    Attributes:
        model: the name or folder of a bundle of on_device.reward_model.
        url: the address of a server, such as `http://host:8100`, instead of `model`.
        scale: the reward is multiplied by it.
        time_limit: seconds for one call with the samples of a group.
    """

    name: str = "reward_model"
    model: str = ""
    url: str = ""
    scale: float = 1.0
    time_limit: float = 120.0

    def __post_init__(self) -> None:
        self.require(bool(self.model) != bool(self.url), "give either model, a bundle, or url, the address of a server")
        self.require(self.time_limit > 0, f"time_limit must be above 0, got {self.time_limit}")
        if self.url:
            self.require(urlsplit(self.url).scheme in ("http", "https"), f"url must be HTTP, got {self.url!r}")

    def build(self) -> Reward:
        """Return the reward.

        Raises:
            BundleError: the bundle cannot be read.
            NotARewardModelError: it has no reward head.
        """
        scorer = RemoteRewardModel(self.url, self.time_limit) if self.url else LocalRewardModel.open(self.model)
        return LearnedReward(self, scorer)


class LearnedReward:
    """See `LearnedRewardConfig`. Any `ConversationScorer` may give the rewards."""

    def __init__(self, config: LearnedRewardConfig, scorer: ConversationScorer) -> None:
        self._config, self._scorer = config, scorer

    def __call__(self, samples: Sequence[Sample]) -> list[Score]:
        config = self._config
        conversations = [
            Conversation(
                turns=(*sample.prompt.conversation.turns, *sample.turns), language=sample.prompt.conversation.language
            )
            for sample in samples
        ]
        try:
            rewards = within(config.time_limit, lambda: self._scorer.rewards(conversations))
        except Exception as error:  # networks and models fail in many ways; each costs these samples
            return [failed(config.name, f"{type(error).__name__}: {error}")] * len(samples)
        return [scored(config.name, config.scale * reward) for reward in rewards]


class LocalRewardModel:
    """A reward model in this process. Threads may share it."""

    def __init__(self, bundle: Bundle) -> None:
        from openafm.bundle.decoder import load_decoder
        from openafm.models.reward import RewardModel

        decoder = load_decoder(bundle)
        if not isinstance(decoder, RewardModel):
            raise NotARewardModelError(f"{bundle.name} has no reward head; train one with on_device.reward_model")
        self.bundle, self.decoder, self._lock = bundle, decoder, threading.Lock()

    @staticmethod
    def open(name: str | Path) -> LocalRewardModel:
        """Return the reward model of a bundle, by name or folder."""
        from openafm.bundle import open_bundle

        return LocalRewardModel(open_bundle(name))

    def rewards(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the reward of each conversation, in order."""
        import torch

        states = self.last_states([conversation.turns for conversation in conversations])
        with torch.no_grad():
            return self.decoder.rewards(states).tolist() if len(states) else []

    def last_states(self, conversations: Sequence[Sequence[Turn]]) -> torch.Tensor:
        """Return the hidden states of the last tokens, [conversations, D].

        Raises:
            LongConversationError: a conversation has more tokens than the context.
        """
        import torch

        tokens = [self._encode(turns) for turns in conversations]
        parts = [self._states(batch) for batch in _batches(tokens)]
        return torch.cat(parts) if parts else torch.zeros(0, self.decoder.config.dim)

    def prompt_features(self, prompts: Sequence[Conversation]) -> PromptFeatures:
        """Return the embeddings of prompts, the means of their states, and their cohesion as the model predicts it.

        Raises:
            NotARewardModelError: the model has no cohesion heads.
            LongConversationError: a prompt has more tokens than the context.
        """
        import torch

        if not self.decoder.config.has_cohesion:
            raise NotARewardModelError(
                f"{self.bundle.name} has no cohesion heads; prompts are selected by a model of on_device.selection_model"
            )
        tokens = [self._encode(prompt.turns) for prompt in prompts]
        means, cohesion = [], []
        for batch in _batches(tokens):
            states_SD, stops = self._hidden(batch)
            ends = stops.tolist()
            starts = [end - len(each) for each, end in zip(batch, ends, strict=True)]
            means += [states_SD[start:end].float().mean(0).numpy() for start, end in zip(starts, ends, strict=True)]
            with torch.no_grad():
                cohesion.append(self.decoder.cohesion_logits(states_SD[stops - 1]).sigmoid().numpy())
        return PromptFeatures(
            embeddings_PE=np.stack(means),
            cohesion_P2=np.concatenate(cohesion),
            languages=tuple(prompt.language for prompt in prompts),
        )

    def _encode(self, turns: Sequence[Turn]) -> Sequence[int]:
        bundle = self.bundle
        encoded = bundle.template.encode_conversation(bundle.tokenizer, Conversation(turns=tuple(turns))).tokens
        if len(encoded) > bundle.config.context_length:
            raise LongConversationError(
                f"a conversation has {len(encoded)} tokens, the reward model's context has {bundle.config.context_length}; "
                "shorten the prompts or the answers"
            )
        return encoded

    def _states(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the states of the last tokens; the layers that store no keys and values run for these alone."""
        import torch

        row_1S, context, stops = self._row(tokens)
        with torch.no_grad(), self._lock:
            return self.decoder.hidden_at(row_1S, context, stops - 1)[0]

    def _hidden(self, tokens: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states of all tokens, one conversation after the other, and where each conversation ends."""
        import torch

        row_1S, context, stops = self._row(tokens)
        with torch.no_grad(), self._lock:
            return self.decoder.hidden(row_1S, context)[0], stops

    def _row(self, tokens: Sequence[Sequence[int]]) -> tuple[torch.Tensor, BatchContext, torch.Tensor]:
        """Return conversations as one row without padding, its context, and where each conversation ends."""
        import torch

        from openafm.models.attention.context import PackedDocuments
        from openafm.models.attention.spans import Span

        device = self.decoder.device
        stops = torch.tensor([len(each) for each in tokens]).cumsum(0)
        documents = [Span(0, int(stop) - len(each), int(stop)) for each, stop in zip(tokens, stops, strict=True)]
        row_1S = torch.tensor([[token for each in tokens for token in each]], device=device)
        return row_1S, PackedDocuments(documents, 1, row_1S.shape[1], device), stops.to(device)


class RemoteRewardModel:
    """A reward model behind a server of `reward_server.py`."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._seconds = url.rstrip("/"), seconds

    def rewards(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the reward of each conversation, in order.

        Raises:
            RewardServerError: the server cannot be reached, refuses, or does not reply with one number for each.
        """
        body = json.dumps({"conversations": [conversation.to_dict() for conversation in conversations]}).encode()
        request = urllib.request.Request(
            f"{self._url}/rewards", data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as reply:
                values = json.loads(reply.read(_MAX_REPLY_BYTES))
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode("utf-8", "replace")
            raise RewardServerError(f"{self._url} replied with status {error.code}: {detail}") from error
        except (OSError, ValueError) as error:
            raise RewardServerError(
                f"{self._url} gave no rewards: {error}; start it with openafm rl serve-rewards"
            ) from error
        rewards = values.get("rewards") if isinstance(values, dict) else None
        if not isinstance(rewards, list) or len(rewards) != len(conversations) or not all(map(_is_number, rewards)):
            raise RewardServerError(f"{self._url} did not reply with {len(conversations)} rewards")
        return [float(reward) for reward in rewards]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _batches(tokens: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Divide conversations into batches of at most `_TOKENS_PER_BATCH` tokens, in order."""
    batches: list[list[Sequence[int]]] = []
    size = 0
    for each in tokens:
        if not batches or size + len(each) > _TOKENS_PER_BATCH:
            batches.append([])
            size = 0
        batches[-1].append(each)
        size += len(each)
    return batches
