"""Samples as rows of the policy updater. The samples of a prompt are branches of one document, which computes it once.

Shape suffixes: B rows, S tokens of a row, N tokens of a sample after its prompt, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from openafm.core.errors import OpenAFMError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import EmbeddingSpan, ImageKey, Span
from openafm.rl.trajectories import Trajectory

_WIDTHS = 8  # numbers of rows that are tried


class RowLengthError(OpenAFMError):
    """A sample with its prompt is longer than a row of the trainer."""


ImageViews: TypeAlias = Callable[[ImageKey], npt.NDArray[np.uint8]]
"""Returns the views [V, side, side, 3] of an image in one resolution mode."""

Weighted: TypeAlias = tuple[Trajectory, float]
"""A sample and its advantage."""


def packed(samples: Sequence[Weighted], present: int | None, row_tokens: int, views: ImageViews | None) -> Batch:
    """Return the rows of samples, of at most `row_tokens` tokens.

    `present` is the version of the weights whose tokens are on-policy; None if no token is. `views` returns the views of the
    images of prompts.

    Raises:
        RowLengthError: a sample is longer than `row_tokens`.
    """
    documents = _documents(samples, row_tokens)
    lengths = list(map(_length, documents))
    rows = [[documents[index] for index in row] for row in _rows(lengths, row_tokens)]
    return _batch(rows, present, views)


def one_row(trajectories: Sequence[Trajectory], views: ImageViews | None = None) -> Batch:
    """Return a batch of one row with the samples of a prompt in order, without advantages, for their log-probabilities."""
    return _batch([[[(each, 0.0) for each in trajectories]]], 0, views)


def _documents(samples: Sequence[Weighted], row_tokens: int) -> list[list[Weighted]]:
    """Return the samples by prompt. Samples that do not fit a row with those before them begin another document."""
    by_prompt: dict[object, list[Weighted]] = {}
    for sample in samples:
        by_prompt.setdefault((sample[0].prompt_tokens, sample[0].images), []).append(sample)
    documents: list[list[Weighted]] = []
    for of_prompt in by_prompt.values():
        documents.append([])
        for sample in of_prompt:
            if _length([sample]) > row_tokens:
                raise RowLengthError(
                    f"a sample of {_length([sample])} tokens with its prompt does not fit rows of {row_tokens}; raise"
                    " trainer.data.row_tokens, lower max_tokens or shorten the prompts"
                )
            if _length([*documents[-1], sample]) > row_tokens:
                documents.append([])
            documents[-1].append(sample)
    return documents


def _length(document: Sequence[Weighted]) -> int:
    """Return the positions of a document. The last tokens of its prompt and of its samples are left out and repeated."""
    return len(document[0][0].prompt_tokens) - 1 + sum(len(sample.tokens_N) for sample, _ in document)


def _rows(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Return the documents of each row, for the width of rows that takes the fewest positions."""
    if not lengths:
        return []
    least = math.ceil(sum(lengths) / row_tokens)
    widths = {max(*lengths, math.ceil(sum(lengths) / count)) for count in range(least, least + _WIDTHS)}
    candidates = [_first_fit(lengths, width) for width in sorted(widths | {row_tokens})]
    return min(candidates, key=lambda rows: (_positions(rows, lengths), len(rows)))


def _positions(rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> int:
    """Return the positions of rows, padding included."""
    return len(rows) * max(sum(lengths[index] for index in row) for row in rows)


def _first_fit(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Return the documents of each row: each is in the first row with room for it, the longest first."""
    rows, room = list[list[int]](), list[int]()
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = next((row for row, left in enumerate(room) if lengths[index] <= left), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(width)
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def _batch(rows: Sequence[Sequence[Sequence[Weighted]]], present: int | None, views: ImageViews | None) -> Batch:
    """Return the batch of the documents of each row.

    The last token of a prompt is at the beginning of every branch, because its target is the first token of the answer.
    """
    shape = (len(rows), max((sum(map(_length, documents)) for documents in rows), default=1))
    tokens_BS, targets_BS = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    loss_mask_BS, is_off_policy_BS = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    advantages_BS, behavior_BS = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    support_BSV = _empty_support(rows, shape)
    documents, branches, spans = list[Span](), list[Span](), list[EmbeddingSpan]()
    for row, of_row in enumerate(rows):
        stop = 0
        for document in of_row:
            first, start = document[0][0], stop
            stop = start + len(first.prompt_tokens) - 1
            tokens_BS[row, start:stop] = first.prompt_tokens[:-1]
            spans += [EmbeddingSpan(row, start + image.start, start + image.stop, image.digest) for image in first.images]
            for each, advantage in document:
                branch = slice(stop, stop + len(each.tokens_N))
                tokens_BS[row, branch] = [each.prompt_tokens[-1], *each.tokens_N[:-1].tolist()]
                targets_BS[row, branch] = each.tokens_N
                loss_mask_BS[row, branch] = each.loss_mask_N
                advantages_BS[row, branch] = advantage
                behavior_BS[row, branch] = each.log_probs_N
                is_off_policy_BS[row, branch] = True if present is None else each.versions_N < present
                if support_BSV is not None and each.support_NV is not None:
                    support_BSV[row, branch] = each.support_NV
                branches.append(Span(row, branch.start, branch.stop))
                stop = branch.stop
            documents.append(Span(row, start, stop))
    fields: dict[str, npt.NDArray[Any]] = {
        "advantages": advantages_BS,
        "behavior_log_probs": behavior_BS,
        "is_off_policy": is_off_policy_BS,
    }
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=targets_BS,
        loss_mask_BS=loss_mask_BS,
        documents=tuple(documents),
        token_fields=fields if support_BSV is None else fields | {"support": support_BSV},
        embedding_spans=tuple(spans),
        images={} if views is None else {span.image: views(span.image) for span in spans},
        branches=tuple(branches),
    )


def _empty_support(rows: Sequence[Sequence[Sequence[Weighted]]], shape: tuple[int, int]) -> npt.NDArray[np.uint8] | None:
    """Return a mask that allows all tokens; None if no sample has a grammar."""
    samples = [sample for documents in rows for document in documents for sample, _ in document]
    first = next((sample.support_NV for sample in samples if sample.support_NV is not None), None)
    return None if first is None else np.full((*shape, first.shape[1]), 0xFF, np.uint8)
