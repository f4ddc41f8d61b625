"""A user's file: an objective, a position embedding and a corpus of their own, and a run that uses them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openafm.data.documents import TextDocument
from openafm.data.pack import PackConfig, pack_texts
from openafm.models.config import PositionConfig
from openafm.models.sizes import shared_kv_decoder
from openafm.recipes.catalog import build_run
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.corpora import CorpusConfig
from openafm.recipes.sources.mixtures import one_source
from openafm.tokenizer.bpe import Tokenizer, TokenizerConfig
from openafm.tokenizer.template import BaseChatTemplate
from openafm.training.budgets import StepBudget
from openafm.training.config import PlainStart
from openafm.training.objectives.config import ObjectiveConfig

if TYPE_CHECKING:
    from torch import Tensor

    from openafm.models.attention.position_embedding import PositionEmbedding
    from openafm.training.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class CountingCorpusConfig(CorpusConfig):
    """Texts that count."""

    num_texts: int = 40

    def texts(self) -> Iterator[str]:
        return (" ".join(str(n + k) for k in range(40)) for n in range(self.num_texts))

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        documents = (TextDocument(text=text) for text in self.texts())
        pack_texts(documents, out, tokenizer, PackConfig(source=self.name, learn=self.learn))


@dataclass(frozen=True, kw_only=True)
class ZLossConfig(ObjectiveConfig):
    """Cross entropy plus `weight` times the squared log-partition."""

    weight: float = 1e-4

    def build(self) -> Objective:
        from openafm.data.loading.loader import Batch
        from openafm.models.decoder import Decoder
        from openafm.training.objectives.base import DEFAULT_ROUTING, Losses, target_states

        def objective(model: Decoder, batch: Batch) -> Losses:
            states = target_states(model, batch, DEFAULT_ROUTING)
            logits_NV = (states.x_ND @ states.head_weight_VD.T).float()
            z = logits_NV.logsumexp(-1).square().sum()
            cross_entropy = -logits_NV.log_softmax(-1).gather(1, states.targets_N[:, None]).sum()
            return states.losses(cross_entropy + self.weight * z, {"z": z.detach()})

        return objective


@dataclass(frozen=True, kw_only=True)
class PlainPositionConfig(PositionConfig):
    """No position embedding, written by the user."""

    def build(self, positions_BS: Tensor, head_dim: int) -> PositionEmbedding:
        from openafm.models.attention.position_embedding import PositionEmbedding

        class Plain(PositionEmbedding):
            def apply(self, x_BSHC: Tensor) -> Tensor:
                return x_BSHC

        return Plain()


def counting() -> RunConfig:
    """Train a tiny model to count, with a z-loss."""
    run = build_run("on_device.pretrain", "micro")
    model = shared_kv_decoder(
        vocab_size=320,
        dim=16,
        num_own_layers=1,
        num_shared_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        hidden_dim=24,
        context_length=128,
    )
    layers = tuple(
        replace(layer, attention=replace(layer.attention, position=PlainPositionConfig())) for layer in model.layers
    )
    trainer = replace(
        run.trainer,
        model=replace(model, layers=layers),
        data=one_source("numbers", rows_per_step=1, row_tokens=128),
        budget=StepBudget(num_steps=2),
        objective=ZLossConfig(),
        start=PlainStart(),
        log_every=1,
    )
    return RunConfig(
        recipe="my_recipe.counting",
        corpora=(CountingCorpusConfig(name="numbers"),),
        tokenizer=TokenizerConfig(vocab_size=320),
        trainer=trainer,
    )
