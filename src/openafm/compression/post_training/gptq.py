"""GPTQ (arXiv 2210.17323) with group scales.

It greedily minimizes the error of a matrix's outputs, tr((W - W~) H (W - W~)^T). With H^-1 = U^T U, U upper triangular, the
optimal correction of columns c+1.. for an error e in column c is -e U[c, c+1:] / U[c, c].

Shapes: R outputs, C inputs of a matrix, g columns of a group.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from openafm.compression.errors import CompressionError
from openafm.compression.post_training.calibration import out_of_memory_explained
from openafm.compression.post_training.config import GPTQConfig
from openafm.compression.post_training.groups import (
    Codes,
    Floats,
    Grid,
    GroupQuantized,
    assembled,
    checked_matrix,
    group_slices,
)
from openafm.core.errors import UsageError


@torch.no_grad()
def gptq(weight_RC: Tensor, moment_CC: Tensor, config: GPTQConfig, name: str = "the matrix") -> GroupQuantized:
    """Return a rounded matrix whose inputs have the second moment H = `moment_CC`, up to a factor.

    Raises:
        CompressionError: the weight is not a matrix, is not finite or exceeds fp16, the damped moment is not positive
            definite, or memory is exhausted; the message holds `name`.
        UsageError: the sizes of weight and moment differ.
    """
    weight = checked_matrix(weight_RC.numpy(force=True), name)
    num_inputs = weight.shape[1]
    if moment_CC.shape != (num_inputs, num_inputs):
        raise UsageError(f"{name} has {num_inputs} inputs but its second moment has shape {list(moment_CC.shape)}")
    with out_of_memory_explained(f"GPTQ of {name}"), np.errstate(over="ignore", invalid="ignore"):
        slices = group_slices(num_inputs, config.group)
        if config.order == "given":
            order_C, grids = np.arange(num_inputs), []
        else:
            order_C = moment_CC.diagonal().argsort(descending=True).numpy(force=True)
            grids = [config.range.grid(weight[:, columns], config.bits) for columns in slices]
        factor_CC = _inverse_factor(moment_CC[order_C][:, order_C], config.damping, name)
        codes_RC = np.empty(weight.shape, dtype=np.uint8)
        weight = weight[:, order_C]  # a copy, which takes the corrections
        for block in slices:
            if config.order == "given":
                grids.append(config.range.grid(weight[:, block], config.bits))
            block_grids = [grids[column // config.group] for column in order_C[block]]
            codes_Rg, errors_Rg = _round_block(weight[:, block], factor_CC[block, block], block_grids)
            codes_RC[:, order_C[block]] = codes_Rg
            weight[:, block.stop :] -= errors_Rg @ factor_CC[block, block.stop :]
        return assembled(codes_RC, grids, config.group, name)


def _round_block(weight_Rg: Floats, factor_gg: Floats, grids: list[Grid]) -> tuple[Codes, Floats]:
    """Codes of the columns of a block, and their errors divided by U[c, c]. Overwrites `weight_Rg`."""
    codes_Rg, errors_Rg = np.empty(weight_Rg.shape, dtype=np.uint8), np.empty_like(weight_Rg)
    for c, grid in enumerate(grids):
        column_R1 = weight_Rg[:, c : c + 1]
        codes_Rg[:, c : c + 1] = grid.codes(column_R1)
        errors_Rg[:, c : c + 1] = (column_R1 - grid.values(codes_Rg[:, c : c + 1])) / factor_gg[c, c]
        weight_Rg[:, c + 1 :] -= errors_Rg[:, c : c + 1] * factor_gg[c, c + 1 :]
    return codes_Rg, errors_Rg


def _inverse_factor(moment_CC: Tensor, damping: float, name: str) -> Floats:
    """U with H^-1 = U^T U: the inverse of the upper triangular V with H = V V^T, a reversed Cholesky factor."""
    moment_CC = moment_CC.double()
    identity_CC = torch.eye(len(moment_CC), dtype=torch.float64, device=moment_CC.device)
    damped_CC = moment_CC + damping * moment_CC.diagonal().mean() * identity_CC
    lower_CC, failed = torch.linalg.cholesky_ex(damped_CC.flip(0, 1))
    if int(failed) or not bool(lower_CC.isfinite().all()):
        raise CompressionError(
            f"the second moment of {name}'s inputs is not positive definite after damping by {damping:g}; "
            "calibrate on more tokens or raise the damping"
        )
    upper_CC = lower_CC.flip(0, 1)
    return torch.linalg.solve_triangular(upper_CC, identity_CC, upper=True).float().numpy(force=True)
