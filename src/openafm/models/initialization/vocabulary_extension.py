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
    """The new tokens do not continue the decoder's vocabulary, or their pieces are not in it."""


@torch.no_grad()
def extend_vocabulary(model: Decoder, pieces: Mapping[int, Sequence[int]], vocab_size: int) -> Decoder:
    """Return a copy of `model` with `vocab_size` rows in the embedding and in an untied head.

    The row of a new token is the mean of the rows of the old tokens that it replaces, `pieces[new id]`, so that the model's
    outputs change little before further training. Old rows and all other weights are bit-identical.

    Raises:
        VocabularyExtensionError: `vocab_size` is not above the present one, the keys of `pieces` are not the new ids, or a
            piece is not an old id.
    """
    old_size = model.config.vocab_size
    _check(pieces, old_size, vocab_size)
    with torch.device("meta"):
        extended = dataclasses.replace(model.config, vocab_size=vocab_size).build()
    extended.to_empty(device=model.embedding.device)
    extended.compute_dtype = model.compute_dtype
    weights = extended.state_dict()
    for name, weight in model.state_dict().items():
        if weights[name].shape == weight.shape:
            weights[name].copy_(weight)
            continue
        weights[name][:old_size] = weight
        for new_id, old_ids in pieces.items():
            weights[name][new_id] = weight[list(old_ids)].mean(dim=0)
    return extended.train(model.training)


def _check(pieces: Mapping[int, Sequence[int]], old_size: int, vocab_size: int) -> None:
    if vocab_size <= old_size:
        raise VocabularyExtensionError(f"the decoder has {old_size} tokens; a vocabulary of {vocab_size} does not extend it")
    mismatched = set(range(old_size, vocab_size)) ^ set(pieces)
    if mismatched:
        raise VocabularyExtensionError(
            f"pieces must have the new ids {old_size} to {vocab_size - 1} as keys; "
            f"missing or unexpected: {min(mismatched)}{' and others' if len(mismatched) > 1 else ''}"
        )
    for new_id, old_ids in pieces.items():
        if not old_ids or not all(0 <= old_id < old_size for old_id in old_ids):
            raise VocabularyExtensionError(
                f"the pieces of token {new_id} must be one or more ids from 0 to {old_size - 1}, got {list(old_ids)}"
            )
