"""The card that every bundle carries: what it is, how it was made, what it cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openafm.models.accounting import num_parameters
from openafm.recipes.config import CopiesCorpusConfig, CorpusConfig, NeedlesCorpusConfig, RunConfig, SyntheticCorpusConfig

if TYPE_CHECKING:
    from openafm.training.run import TrainingResult


def model_card(name: str, config: RunConfig, result: TrainingResult) -> str:
    """The card as Markdown."""
    model = config.trainer.model
    sharing = len(model.layers) - len(model.own_layers)
    corpora = "\n".join(f"- `{corpus.name}`: {describe_corpus(corpus)}; learns {corpus.learn}" for corpus in config.corpora)
    return f"""# {name}

A decoder of {num_parameters(model):,} parameters: {len(model.layers)} layers, {sharing} of them sharing keys and values,
dim {model.dim}, vocabulary {model.vocab_size:,}, context {model.context_length:,} tokens.

Made by the recipe `{config.recipe}`{f" from `{config.start}`" if config.start else ""}:
{result.step:,} steps, {result.num_tokens:,} tokens, {result.seconds:.0f} s of training, last loss {result.loss or 0:.3f}.

Data:
{corpora}

A model of this size trained on this data does what the data shows and nothing else: it has no knowledge of the world, does
not reason and does not hold a conversation. Structured answers always satisfy their schema; that says nothing about whether
they are right.
"""


def describe_corpus(corpus: CorpusConfig) -> str:
    """What a corpus is, in a clause."""
    if isinstance(corpus, SyntheticCorpusConfig):
        tasks = ", ".join(f"{task} {share:.0%}" for task, share in corpus.synthetic.tasks.items())
        return f"{corpus.num_examples:,} examples of the built-in corpus ({tasks})"
    if isinstance(corpus, CopiesCorpusConfig):
        return f"{corpus.num_examples:,} documents of random tokens that repeat themselves"
    if isinstance(corpus, NeedlesCorpusConfig):
        return f"{corpus.num_examples:,} documents of up to {max(corpus.needles.lengths):,} tokens with needles to find"
    return f"files of the user's own ({type(corpus).__name__})"
