"""Selection of tokens for the next step: continuous batching (Orca, OSDI 2022) with chunked prefill (arXiv 2308.16369).

Tokens to decode or verify are always in the next step. While sequences decode, prompts are prefilled in chunks that keep
the step short and take turns; otherwise in large chunks. The selection changes latency, never results: a row's logits are
bit-identical whatever else is in the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from openafm.runtime.batching.pending import StepEntry, StepRequest, TokenChunk
from openafm.runtime.batching.step_costs import MAX_DECODE_TOKENS, StepCosts

PREFILL_CHUNK = 512
_LEAST_CHUNK = 8  # prompt tokens in a step, however slow
_SLOWDOWN = 3.0  # limit for a step with prompt tokens, as a multiple of its time without them


def next_chunks(queue: Iterable[StepRequest], costs: StepCosts, others_decode: Callable[[], bool]) -> list[TokenChunk]:
    """Return the chunks of the next step. A request with a prompt in it moves to the end of the queue.

    Args:
        others_decode: returns True if sequences that are not in the queue are about to decode.
    """
    requests = sorted(queue, key=lambda request: request.turn)
    alone = next((request for request in requests if request.runs_alone), None)
    chunks: list[TokenChunk] = []
    prefilling: list[tuple[StepRequest, StepEntry]] = []
    for request in requests if alone is None else (alone,):
        for entry in request.entries:
            if entry.num_left > MAX_DECODE_TOKENS:
                prefilling.append((request, entry))
            elif entry.num_left:
                chunks.append(entry.chunk(request, MAX_DECODE_TOKENS))
    if prefilling:
        num_decoded = sum(len(chunk.tokens) for chunk in chunks)
        left = _prefill_budget(num_decoded, costs) if chunks or others_decode() else PREFILL_CHUNK
        for request, entry in prefilling:
            if left <= 0:
                break
            chunks.append(entry.chunk(request, left))
            left -= len(chunks[-1].tokens)
            request.go_last()
    return chunks


def _prefill_budget(num_decoded: int, costs: StepCosts) -> int:
    """Return how many prompt tokens a step may take beside `num_decoded` other rows."""
    beside = max(num_decoded, 1)
    without = costs.seconds(beside)
    if without is None:
        return MAX_DECODE_TOKENS
    limit = _SLOWDOWN * without
    most = bisect_right(range(1, PREFILL_CHUNK + 1), limit, key=lambda count: costs.seconds(beside + count) or 0.0)
    return max(most, _LEAST_CHUNK)
