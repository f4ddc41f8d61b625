"""Checks of the input of a step: tokens, and embeddings that replace those of some tokens."""

from __future__ import annotations

from collections.abc import Sequence as List

from openafm.runtime.engines.sequence import (
    ContextWindowError,
    InsertedEmbeddings,
    InsertedEmbeddingsError,
    Sequence,
    TokenError,
)


def check_tokens(sequence: Sequence, tokens: List[int], vocab_size: int, context_length: int) -> None:
    """Check tokens that are to be appended to a sequence.

    Raises:
        TokenError: there are none, or one is outside the vocabulary.
        ContextWindowError: the sequence would exceed the context window.
    """
    if not tokens:
        raise TokenError("an entry of a step has no tokens; leave the sequence out of the batch")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        unknown = next(token for token in tokens if not 0 <= token < vocab_size)
        raise TokenError(f"token {unknown} is outside the model's vocabulary of {vocab_size}")
    if sequence.length + len(tokens) > context_length:
        raise ContextWindowError(sequence.length + len(tokens), context_length)


def placed_embeddings(
    sequence: Sequence, tokens: List[int], inserted: List[InsertedEmbeddings]
) -> tuple[InsertedEmbeddings, ...]:
    """Return embeddings for some of `tokens`, which are to be appended to a sequence, with positions in the sequence.

    Raises:
        InsertedEmbeddingsError: spans overlap, or one does not lie within the tokens.
    """
    stop = 0
    for each in sorted(inserted, key=lambda each: each.start):
        if not stop <= each.start < each.stop <= len(tokens):
            raise InsertedEmbeddingsError(
                f"embeddings for tokens {each.start}..{each.stop} of {len(tokens)}; spans must be disjoint and inside"
            )
        stop = each.stop
    return tuple(each.moved(sequence.length) for each in inserted)


def check_encoder(inserted: List[InsertedEmbeddings], encoder_version: int) -> None:
    """Check that embeddings are those of the present vision encoder; an engine has no images to encode again.

    Raises:
        InsertedEmbeddingsError: a weight update changed the encoder after they were computed.
    """
    old = [each.weights_version for each in inserted if each.weights_version < encoder_version]
    if old:
        raise InsertedEmbeddingsError(
            f"the embeddings of an image are of weights version {old[0]}, and version {encoder_version} changed the"
            " vision encoder; roll the sequence back to before the image, or add the image to a new sequence"
        )
