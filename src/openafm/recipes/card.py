"""The model card of a trained bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openafm.data.pack import HELD_OUT
from openafm.models.accounting import num_parameters
from openafm.models.config import DecoderConfig
from openafm.models.vision.multimodal_config import LettersModelConfig
from openafm.recipes.config import RunConfig

if TYPE_CHECKING:
    from openafm.training.run import TrainingResult


def model_card(name: str, config: RunConfig, result: TrainingResult) -> str:
    """Return the card as Markdown: the model, how it was trained, its data, its limits."""
    return f"""# {name}

{_model(config.trainer.model)}

Trained by the recipe `{config.recipe}`{f" from `{config.start}`" if config.start else ""}:
{result.step:,} steps, {result.num_tokens:,} tokens, {result.seconds:.0f} s of training, last loss {result.loss or 0:.3f}\
{"" if result.held_out_loss is None else f", held-out loss {result.held_out_loss:.3f}"}.

{_data(config)}

A model of this size can only do what its data shows: it has no knowledge of the world, does not reason and cannot hold a
conversation. Structured answers always satisfy their schema, whether their values are right or wrong.
"""


def _model(model: DecoderConfig) -> str:
    if isinstance(model, LettersModelConfig):
        return f"Convolutions of {num_parameters(model):,} parameters that classify the letters of an image by their places."
    sharing = len(model.layers) - len(model.own_layers)
    return (
        f"A decoder of {num_parameters(model):,} parameters: {len(model.layers)} layers, {sharing} of them sharing keys and "
        f"values,\ndim {model.dim}, vocabulary {model.vocab_size:,}, context {model.context_length:,} tokens."
    )


def _data(config: RunConfig) -> str:
    """Return the corpora by use: training, evaluation, tokenizer."""
    evaluation = config.trainer.evaluation
    trained = {source.name for source in config.trainer.data.sources}
    held_out = {} if evaluation is None else {source.name: source.path for source in evaluation.data.sources}
    parts: dict[str, list[str]] = {
        "Training data": [],
        "Held-out data, not trained on": [],
        "Data of the tokenizer only": [],
    }
    for corpus in config.corpora:
        if corpus.name in trained:
            parts["Training data"].append(f"`{corpus.name}`: {corpus.description}; learns {corpus.learn}")
        if corpus.name in held_out:
            is_split = held_out[corpus.name].endswith(f"/{HELD_OUT}")
            part = f"documents held out of `{corpus.name}`" if is_split else f"`{corpus.name}`: {corpus.description}"
            parts["Held-out data, not trained on"].append(part)
        if corpus.name not in trained | held_out.keys():
            parts["Data of the tokenizer only"].append(f"`{corpus.name}`: {corpus.description}")
    if not held_out:
        parts["Held-out data, not trained on"].append("none")
    filled = {title: lines for title, lines in parts.items() if lines}
    return "\n\n".join(f"{title}:\n" + "\n".join(f"- {line}" for line in lines) for title, lines in filled.items())
