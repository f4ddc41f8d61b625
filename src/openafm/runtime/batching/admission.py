"""What the next step computes of all that waits: continuous batching (Orca, OSDI 2022) with chunked prefills (2308.16369).

Tokens to be decoded or verified go first and always. Prompts are cut into chunks while others decode, no larger than keeps
the step short, and take turns; alone they run in large ones. Only the time that things take depends on any of this: a row's
logits are the same bits whatever is computed beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from openafm.runtime.batching.pending import Job, Request, TokenChunk
from openafm.runtime.batching.step_costs import StepCosts

# Tokens that one sequence feeds to be decoded or verified; with more it prefills. Of so many, an engine gives the bits that
# it would give one by one.
MOST_DECODED = 32
PREFILL_CHUNK = 512
_LEAST_CHUNK = 8  # tokens of a prompt in a step, however slow
_SLOWDOWN = 3.0  # times as long as it would take without, that a step with a chunk of a prompt may take


def next_chunks(queue: Iterable[Request], costs: StepCosts, others_decode: Callable[[], bool]) -> list[TokenChunk]:
    """What to compute at once of what waits. A prompt of which that is a chunk goes behind the others.

    Args:
        others_decode: whether some that do not wait now are about to decode.
    """
    requests = sorted(queue, key=lambda request: request.turn)
    alone = next((request for request in requests if request.runs_alone), None)
    chunks: list[TokenChunk] = []
    prefilling: list[tuple[Request, Job]] = []
    num_rows = 0
    for request in requests if alone is None else (alone,):
        for job in request.jobs:
            num_left = job.num_left
            if num_left > MOST_DECODED:
                prefilling.append((request, job))
            elif num_left:
                chunks.append(job.chunk(request, num_left))
                num_rows += num_left
    room = 0
    if prefilling:
        room = _room(num_rows, costs) if chunks or others_decode() else PREFILL_CHUNK
    for request, job in prefilling:
        if room <= 0:
            break
        chunks.append(job.chunk(request, room))
        room -= len(chunks[-1].tokens)
        request.let_others_go_first()
    return chunks


def _room(num_decoded: int, costs: StepCosts) -> int:
    """How many tokens of prompts a step may take beside so many that are decoded."""
    beside = max(num_decoded, 1)
    without = costs.seconds(beside)
    if without is None:
        return MOST_DECODED
    limit = _SLOWDOWN * without
    most = bisect_right(range(1, PREFILL_CHUNK + 1), limit, key=lambda count: costs.seconds(beside + count) or 0.0)
    return max(most, _LEAST_CHUNK)
