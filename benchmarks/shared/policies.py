"""Policies for the benchmarks of reinforcement learning: small ones with random weights, and the shipped model in fp32.

Also a reward that takes time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.bundle.store import find_bundle
from openafm.models.attention.config import AttentionConfig, OwnKeysValuesConfig, RotaryConfig
from openafm.models.config import DecoderConfig, LayerConfig
from openafm.models.feed_forward.config import DenseFeedForwardConfig
from openafm.recipes.compression.decode import decoded_tensors
from openafm.rl.rewards.base import Reward, RewardConfig
from openafm.rl.trajectories import Sample, Score
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

TEXT = "the cat and the dog sat on the mat, copy in reverse: Ada Mo 0 1 2 3 4 5 6 7 8 9. "


def write_policy(path: Path, *, dim: int, num_layers: int, seed: int = 0) -> Bundle:
    """Write a bundle of a decoder with random weights, in the shape of Llama."""
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=340), [TEXT * 40])
    attention = AttentionConfig(
        num_heads=4,
        head_dim=dim // 4,
        keys_values=OwnKeysValuesConfig(num_heads=2),
        position=RotaryConfig(theta=1e4),
        qk_norm=None,
    )
    layer = LayerConfig(attention=attention, feed_forward=DenseFeedForwardConfig(hidden_dim=3 * dim))
    config = DecoderConfig(vocab_size=tokenizer.vocab_size, dim=dim, layers=(layer,) * num_layers, context_length=512)
    decoder = config.build(seed=seed)
    with torch.no_grad():
        decoder.embedding.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
    tensors = {name: tensor.detach().numpy().astype(np.float32) for name, tensor in decoder.state_dict().items()}
    return write_bundle(path, config=config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors)


def write_shipped_policy(path: Path) -> Bundle:
    """Write the shipped model in fp32: its 2-bit weights with the recovery adapter added, which lies on no grid."""
    shipped = open_bundle(find_bundle("nano"))
    tensors = decoded_tensors(shipped)
    return write_bundle(path, config=shipped.config, tokenizer=shipped.tokenizer, template=shipped.template, tensors=tensors)


@dataclass(frozen=True, kw_only=True)
class SlowLettersConfig(RewardConfig):
    """The share of letters, after a log-normal time with the median `seconds`, as a remote judge or a sandbox takes."""

    name: str = "letters"
    seconds: float = 0.0
    sigma: float = 0.8

    def build(self) -> Reward:
        def score(samples: Sequence[Sample]) -> list[Score]:
            if self.seconds:
                key = samples[0].prompt.digest + samples[0].text
                time.sleep(self.seconds * random.Random(key).lognormvariate(0, self.sigma))
            return [Score(reward=sum(map(str.isalpha, each.text)) / max(len(each.text), 1)) for each in samples]

        return score
