"""A package outside of openafm adds a position embedding, a feed-forward, an optimizer, an objective and a recipe.

It trains through the command line. Fresh processes with the package loaded read its bundle and checkpoints; without it the
error names the missing kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm_processes

PARTIAL_ROTARY = '''
"""Rotary embedding of the first channels only, in one file that imports torch when it is built."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.models.config import PositionConfig, RotaryConfig
from openafm.models.attention.position_embedding import PositionEmbedding

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PartialRotaryConfig(PositionConfig):
    share: float = 0.5

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        return PartialRotary(RotaryConfig().build(positions_BS, int(self.share * head_dim)), int(self.share * head_dim))


class PartialRotary(PositionEmbedding):
    def __init__(self, rotation: PositionEmbedding, num_channels: int) -> None:
        self._rotation, self._num_channels = rotation, num_channels

    def apply(self, x_BSHC: Tensor) -> Tensor:
        import torch

        rotated = self._rotation.apply(x_BSHC[..., : self._num_channels])
        return torch.cat((rotated, x_BSHC[..., self._num_channels :]), dim=-1)
'''
KINDS = """
from __future__ import annotations

from dataclasses import dataclass

from openafm.models.config import FeedForwardConfig
from openafm.training.config import OptimizerConfig
from openafm.training.objectives.config import ObjectiveConfig


@dataclass(frozen=True, kw_only=True)
class SquaredReluConfig(FeedForwardConfig):
    hidden_dim: int

    def build(self, dim):
        from outside.modules import SquaredRelu

        return SquaredRelu(self, dim)


@dataclass(frozen=True, kw_only=True)
class PlainSGDConfig(OptimizerConfig):
    def build(self, parameters):
        import torch

        optimizer = torch.optim.SGD(parameters.values(), lr=self.learning_rate)
        for group in optimizer.param_groups:
            group["initial_lr"] = self.learning_rate
        return (optimizer,)


@dataclass(frozen=True, kw_only=True)
class ZLossConfig(ObjectiveConfig):
    weight: float = 1e-3

    def build(self):
        from outside.modules import ZLoss

        return ZLoss(self.weight)
"""
MODULES = """
from openafm.models.layers import Linear, Sublayer
from openafm.training.objectives.base import DEFAULT_ROUTING, target_states


class SquaredRelu(Sublayer):
    def __init__(self, config, dim):
        super().__init__()
        self.up, self.down = Linear(dim, config.hidden_dim), Linear(config.hidden_dim, dim)

    def forward(self, x):
        return self.down(self.up(x).relu().square())

    def initialize(self, generator, residual_scale):
        self.up.initialize(generator)
        self.down.initialize(generator, residual_scale)


class ZLoss:
    def __init__(self, weight):
        self._weight = weight

    def __call__(self, model, batch):
        states = target_states(model, batch, DEFAULT_ROUTING)
        logits_NV = states.x_ND.float() @ states.head_weight_VD.T
        log_z_N = logits_NV.logsumexp(-1)
        cross_entropy = (log_z_N - logits_NV.gather(1, states.targets_N[:, None])[:, 0]).sum()
        z_loss = log_z_N.square().sum()
        return states.losses(cross_entropy + self._weight * z_loss, {"z_loss": z_loss.detach()})
"""
RECIPE = '''
from openafm.data.synthetic import SyntheticConfig
from openafm.models.config import AttentionConfig, DecoderConfig, LayerConfig, OwnKeysValuesConfig
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.corpora import SyntheticCorpusConfig
from openafm.recipes.sources.mixtures import one_source
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from outside.kinds import PlainSGDConfig, SquaredReluConfig, ZLossConfig
from outside.partial_rotary import PartialRotaryConfig


def tiny() -> RunConfig:
    """Two steps with every kind of this package."""
    attention = AttentionConfig(
        num_heads=2, head_dim=8, keys_values=OwnKeysValuesConfig(num_heads=1), position=PartialRotaryConfig()
    )
    layer = LayerConfig(attention=attention, feed_forward=SquaredReluConfig(hidden_dim=24))
    return RunConfig(
        recipe="outside.tiny",
        corpora=(SyntheticCorpusConfig(name="built_in", synthetic=SyntheticConfig(languages={"en": 1}), num_examples=60),),
        tokenizer=TokenizerConfig(vocab_size=400),
        trainer=TrainerConfig(
            model=DecoderConfig(vocab_size=400, dim=16, layers=(layer,), context_length=256),
            data=one_source("built_in", rows_per_step=1, row_tokens=256),
            budget=StepBudget(num_steps=2),
            optimizer=PlainSGDConfig(learning_rate=0.1),
            objective=ZLossConfig(),
            log_every=1,
            num_threads=1,
        ),
    )
'''
PLUGINS = ("--plugins", "outside.kinds", "--plugins", "outside.partial_rotary")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "outside").mkdir()
    sources = {"__init__": "", "partial_rotary": PARTIAL_ROTARY, "kinds": KINDS, "modules": MODULES, "recipe": RECIPE}
    for name, source in sources.items():
        (folder / "outside" / f"{name}.py").write_text(source)
    return folder


def openafm(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    places = {"OPENAFM_HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return warm_processes.openafm(*arguments, cwd=folder, environment=places | environment)


@pytest.mark.slow
def test_kinds_of_an_outside_package_train_and_are_read_in_fresh_processes(folder: Path) -> None:
    trained = openafm(folder, "train", "outside.recipe:tiny", "-o", "run", "--name", "outside", "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["steps"] == 2
    assert "z_loss" in (folder / "run" / "metrics.jsonl").read_text()

    weights = 400 * 16 + 16 + 2 * 16 + 2 * 8 + 16 * (16 + 8 + 8 + 16) + 2 * 16 * 24
    described = openafm(folder, "inspect", "outside", "--json", *PLUGINS)
    assert described.returncode == 0, described.stderr
    assert json.loads(described.stdout)["parameters"] == weights
    listed = openafm(folder, "checkpoint", "list", "run", OPENAFM_PLUGINS="outside.kinds,outside.partial_rotary")
    assert listed.returncode == 0, listed.stderr

    for arguments in (("inspect", "outside"), ("checkpoint", "list", "run")):
        refused = openafm(folder, *arguments)
        assert refused.returncode == 2
        assert "unknown type 'PartialRotaryConfig' of PositionConfig" in refused.stderr
        assert "--plugins MODULE" in refused.stderr
        assert "damaged" not in refused.stderr


@pytest.mark.long
def test_kinds_of_one_file_keep_the_command_line_free_of_torch(folder: Path) -> None:
    script = (
        "import sys; from openafm.core.registry import load_plugins; import outside.recipe\n"
        "load_plugins(['outside.kinds', 'outside.partial_rotary']); outside.recipe.tiny()\n"
        "from openafm.cli.main import run; run(['recipes', 'show', 'outside.recipe:tiny'])\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch'}))"
    )
    places = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=os.environ | places, capture_output=True, text=True, check=True
    )
    assert found.stdout.endswith("[]\n")
