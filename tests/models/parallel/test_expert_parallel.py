"""The exchange of rows between the processes of experts, with threads as processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from openafm.models.parallel import expert_parallel
from openafm.models.parallel.expert_parallel import AllToAllExchange, even_counts


class Group:
    """A process of a group; all threads share `mail` and a barrier."""

    def __init__(self, rank: int, mail: list[list[Tensor]], barrier: threading.Barrier) -> None:
        self._rank, self.mail, self.barrier = rank, mail, barrier

    def size(self) -> int:
        return len(self.mail)

    def rank(self) -> int:
        return self._rank


def all_to_all_single(received: Tensor, sent: Tensor, to_receive: Any = None, to_send: Any = None, *, group: Group) -> None:
    """Give part p of `sent` to process p."""
    assert sent.is_contiguous()
    group.mail[group.rank()] = list(sent.split(to_send or len(sent) // group.size()))
    group.barrier.wait(timeout=60)
    parts = [sent_parts[group.rank()] for sent_parts in group.mail]
    assert to_receive is None or [len(part) for part in parts] == to_receive
    received.copy_(torch.cat(parts))
    group.barrier.wait(timeout=60)


@pytest.mark.parametrize("num_tracks", [1, 2])
def test_each_row_gets_the_result_of_its_expert(num_tracks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: row m of expert e is multiplied by e + 1, and by 100 in the second track."""
    monkeypatch.setattr(expert_parallel.dist, "all_to_all_single", all_to_all_single)
    num_processes, num_experts, dim = 3, 6, 4
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 5, (num_processes, num_tracks, num_experts), generator=generator)
    mail: list[list[Tensor]] = [[] for _ in range(num_processes)]
    barrier = threading.Barrier(num_processes)
    scales_TE = torch.arange(1.0, num_experts + 1) * torch.tensor([1.0, 100.0])[:num_tracks, None]

    def run(rank: int) -> tuple[Tensor, Tensor]:
        counts_TE = counts[rank]
        x_MD = torch.randn(int(counts_TE.sum()), dim, generator=torch.Generator().manual_seed(rank))
        local = slice(rank * 2, rank * 2 + 2)

        def compute(rows_MD: Tensor, counts_TL: Tensor) -> Tensor:
            assert torch.equal(counts_TL, counts[:, :, local].sum(0))
            return rows_MD * scales_TE[:, local].flatten().repeat_interleave(counts_TL.flatten())[:, None]

        group: Any = Group(rank, mail, barrier)
        found = AllToAllExchange(group)(x_MD, counts_TE, compute)
        return found, x_MD * scales_TE.flatten().repeat_interleave(counts_TE.flatten())[:, None]

    with ThreadPoolExecutor(num_processes) as pool:
        for found, expected in pool.map(run, range(num_processes)):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_even_counts_send_all_rows() -> None:
    sent_PTL = torch.zeros(3, 1, 2)
    assert even_counts(sent_PTL, sent_PTL, 8).to_send == [3, 3, 2]
    assert even_counts(sent_PTL, sent_PTL, 8).to_receive == [3, 3, 2]
