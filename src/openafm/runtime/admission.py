"""What the next step computes of all that waits: continuous batching (Orca, OSDI 2022) with chunked prefills (2308.16369).

Tokens to be decoded or verified go first and always. Prompts are cut into pieces while others decode, no larger than keeps
the step short, and take turns; alone they run in large ones. Only the time that things take depends on any of this: a row's
logits are the same bits whatever is computed beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable

from openafm.runtime.pending import Job, Piece, Request
from openafm.runtime.step_costs import StepCosts

MOST_DECODED = 32  # tokens that one sequence feeds to be decoded or verified; with more it prefills
PREFILL_CHUNK = 512
_LEAST_PIECE = 8  # tokens of a prompt in a step, however slow
_SLOWDOWN = 3.0  # times as long as it would take without, that a step with a piece of a prompt may take


def next_pieces(queue: deque[Request], costs: StepCosts, others_decode: Callable[[], bool]) -> list[Piece]:
    """What to compute at once of requests in the order of their coming, which lets prompts take turns by changing it.

    Args:
        others_decode: whether some that do not wait now are about to decode.
    """
    alone = next((request for request in queue if request.runs_alone), None)
    requests = list(queue) if alone is None else [alone]
    pieces: list[Piece] = []
    prefilling: list[tuple[Request, Job]] = []
    num_rows = 0
    for request in requests:
        for job in request.jobs:
            num_left = job.num_left
            if num_left > MOST_DECODED:
                prefilling.append((request, job))
            elif num_left:
                pieces.append(job.piece(request, num_left))
                num_rows += num_left
    room = 0
    if prefilling:
        room = _room(num_rows, costs) if pieces or others_decode() else PREFILL_CHUNK
    for request, job in prefilling:
        if room <= 0:
            break
        pieces.append(job.piece(request, room))
        room -= len(pieces[-1].tokens)
        queue.remove(request)
        queue.append(request)
    return pieces


def _room(num_decoded: int, costs: StepCosts) -> int:
    """How many tokens of prompts a step may take beside so many that are decoded."""
    beside = max(num_decoded, 1)
    without = costs.seconds(beside)
    if without is None:
        return MOST_DECODED
    limit = _SLOWDOWN * without
    most = bisect_right(range(1, PREFILL_CHUNK + 1), limit, key=lambda count: costs.seconds(beside + count) or 0.0)
    return max(most, _LEAST_PIECE)
