"""The model card of a trained bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openafm.models.accounting import num_parameters
from openafm.recipes.config import RunConfig

if TYPE_CHECKING:
    from openafm.training.run import TrainingResult


def model_card(name: str, config: RunConfig, result: TrainingResult) -> str:
    """Return the card as Markdown: the model, how it was trained, its data, its limits."""
    model = config.trainer.model
    sharing = len(model.layers) - len(model.own_layers)
    corpora = "\n".join(f"- `{corpus.name}`: {corpus.description}; learns {corpus.learn}" for corpus in config.corpora)
    return f"""# {name}

A decoder of {num_parameters(model):,} parameters: {len(model.layers)} layers, {sharing} of them sharing keys and values,
dim {model.dim}, vocabulary {model.vocab_size:,}, context {model.context_length:,} tokens.

Trained by the recipe `{config.recipe}`{f" from `{config.start}`" if config.start else ""}:
{result.step:,} steps, {result.num_tokens:,} tokens, {result.seconds:.0f} s of training, last loss {result.loss or 0:.3f}.

Data:
{corpora}

A model of this size can only do what its data shows: it has no knowledge of the world, does not reason and cannot hold a
conversation. Structured answers always satisfy their schema, whether their values are right or wrong.
"""
