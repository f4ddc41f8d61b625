"""The loss with a vocabulary divided over ranks against the loss of one process: value and gradients."""

from __future__ import annotations

import torch
from forked_processes import together
from torch import Tensor

from openafm.training.distributed.processes import Processes
from openafm.training.objectives.cross_entropy import cross_entropy_sum
from openafm.training.objectives.vocabulary_parallel import divided_cross_entropy_sum

RANKS, POSITIONS, DIM, VOCABULARY = 2, 300, 8, 24  # two chunks of positions


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(POSITIONS, DIM, generator=generator, requires_grad=True)
    weight_VD = (5 * torch.randn(VOCABULARY, DIM, generator=generator)).requires_grad_()
    return x_ND, weight_VD, torch.randint(VOCABULARY, (POSITIONS,), generator=generator)


def test_ranks_that_divide_the_vocabulary_compute_the_same_loss() -> None:
    def compare(processes: Processes) -> None:
        import torch.distributed as dist

        from openafm.training.objectives import cross_entropy

        cross_entropy.CHUNK_ELEMENTS = 1
        (x_ND, weight_VD, targets_N), expected = inputs(), inputs()
        group = dist.group.WORLD
        assert group is not None
        loss = divided_cross_entropy_sum(x_ND, weight_VD, targets_N, group)
        whole = cross_entropy_sum(*expected)
        torch.testing.assert_close(loss, whole, rtol=1e-6, atol=1e-5)
        loss.backward()
        whole.backward()
        torch.testing.assert_close(x_ND.grad, expected[0].grad)
        own = weight_VD.grad
        assert own is not None
        rows = VOCABULARY // RANKS
        assert not own[: processes.rank * rows].any()
        assert not own[(processes.rank + 1) * rows :].any()
        dist.all_reduce(own)
        torch.testing.assert_close(own / RANKS, expected[1].grad)

    together(RANKS, compare)
