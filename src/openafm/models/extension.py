"""A larger vocabulary for a trained decoder (report 4.1: 100k to 150k tokens).

Shapes: V vocabulary, P pieces of one new token, D model dim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from openafm.core.errors import UsageError
from openafm.models.decoder import Decoder


class VocabularyExtensionError(UsageError):
    """The new tokens do not continue the decoder's vocabulary, or are made of tokens that it does not have."""


@torch.no_grad()
def extend_vocabulary(model: Decoder, pieces: Mapping[int, Sequence[int]], vocab_size: int) -> Decoder:
    """A copy of `model` with rows for `vocab_size` tokens, in the embedding and in a head of its own if it has one.

    A new token starts as the mean of the rows of the old tokens that it replaces, `pieces[new id]`, so that the first step
    of further training sees text much as before. Old rows and all other weights are the same bits.

    Raises:
        VocabularyExtensionError: `vocab_size` is not above the present one, `pieces` is not exactly about the new ids, or a
            piece is not an old id.
    """
    old_size = model.config.vocab_size
    _check(pieces, old_size, vocab_size)
    with torch.device("meta"):
        extended = dataclasses.replace(model.config, vocab_size=vocab_size).build()
    extended.to_empty(device=model.embedding.device)
    extended.compute_dtype = model.compute_dtype
    theirs = extended.state_dict()
    for name, weight in model.state_dict().items():
        if theirs[name].shape == weight.shape:
            theirs[name].copy_(weight)
            continue
        theirs[name][:old_size] = weight
        for new_id, old_ids in pieces.items():
            theirs[name][new_id] = weight[list(old_ids)].mean(dim=0)
    return extended.train(model.training)


def _check(pieces: Mapping[int, Sequence[int]], old_size: int, vocab_size: int) -> None:
    if vocab_size <= old_size:
        raise VocabularyExtensionError(f"the decoder has {old_size} tokens; a vocabulary of {vocab_size} does not extend it")
    unexplained = set(range(old_size, vocab_size)) ^ set(pieces)
    if unexplained:
        raise VocabularyExtensionError(
            f"pieces must be given for the new ids {old_size} to {vocab_size - 1} and no others; "
            f"see id {min(unexplained)}{' and others' if len(unexplained) > 1 else ''}"
        )
    for new_id, old_ids in pieces.items():
        if not old_ids or not all(0 <= old_id < old_size for old_id in old_ids):
            raise VocabularyExtensionError(
                f"token {new_id} must be made of one or more of the ids 0 to {old_size - 1}, got {list(old_ids)}"
            )
