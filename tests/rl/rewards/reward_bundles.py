"""Tiny bundles of reward models."""

from __future__ import annotations

from pathlib import Path

from openafm.bundle import Bundle, write_bundle
from openafm.bundle.decoder import load_decoder
from openafm.models.reward import with_reward_head
from openafm.models.reward_config import RewardModelConfig


def write_reward_bundle(path: Path, base: Bundle, *, has_cohesion: bool = False) -> Bundle:
    config = RewardModelConfig.of(base.config, has_cohesion=has_cohesion)
    model = with_reward_head(load_decoder(base), config, seed=1)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return write_bundle(path, config=config, tokenizer=base.tokenizer, template=base.template, tensors=tensors, card="")
