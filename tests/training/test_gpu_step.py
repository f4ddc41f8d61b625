"""A training step on fake CUDA tensors: every device and dtype of it is checked, and no card is needed.

Torch must be built for CUDA; autograd needs a card, so that the backward pass is traced on CPU tensors that stand for
those of a GPU (tests/models/attention/test_document_attention.py).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from openafm.compression.config import QATConfig
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import Span
from openafm.models.sizes import named_size
from openafm.recipes.on_device.pretrain import NANO_OPTIMIZER
from openafm.training.objectives.base import NextToken
from openafm.training.optimizer_config import AdamWConfig, OptimizerConfig

pytestmark = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch is built without CUDA")


def one_batch() -> Batch:
    """Two rows with three documents and padding; a part of the positions carries loss."""
    tokens_BS = np.ones((2, 100), dtype=np.int64)
    loss_mask_BS = np.zeros((2, 100), dtype=np.bool_)
    loss_mask_BS[0, 10:49] = loss_mask_BS[1, 3:80] = True
    documents = (Span(0, 0, 50), Span(0, 50, 60), Span(1, 2, 90))
    return Batch(tokens_BS=tokens_BS, targets_BS=tokens_BS, loss_mask_BS=loss_mask_BS, documents=documents)


@pytest.mark.parametrize(
    ("size", "optimizer", "qat"),
    [
        ("on_device.small", NANO_OPTIMIZER, None),
        ("server.nano", AdamWConfig(), None),
        ("on_device.nano", AdamWConfig(), QATConfig()),
    ],
)
def test_a_step_stays_on_the_gpu(
    size: str, optimizer: OptimizerConfig, qat: QATConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)  # needs a driver
    with torch.device("meta"):
        model = named_size(size).build()
    awareness = None if qat is None else qat.install(model)
    model.compute_dtype = torch.bfloat16
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cuda")
        if awareness is not None:
            awareness.advance(1.0)
        with torch.no_grad():
            losses = NextToken()(model, one_batch())
        assert (losses.total.device.type, losses.total.dtype) == ("cuda", torch.float32)
        parameters = dict(model.named_parameters())
        optimizers = optimizer.build(parameters)
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        for each in optimizers:
            each.step()
            states = [tensor for state in each.state.values() for tensor in state.values()]
            assert {tensor.device.type for tensor in states} == {"cuda"}
