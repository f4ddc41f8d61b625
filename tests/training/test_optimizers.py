"""Optimizers: their update formulas, which parameters each trains, and weight decay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from parallel_runs import track_model
from tiny_runs import tiny_model
from torch.nn import Parameter

from openafm.core.config import ConfigError
from openafm.models.config import DecoderConfig, UntiedHeadConfig
from openafm.training import optimizers
from openafm.training.optimizer_config import AdamWConfig, MuonConfig
from openafm.training.optimizers import Muon


def names_by_optimizer(config: DecoderConfig) -> dict[str, set[str]]:
    parameters = dict(config.build().named_parameters())
    names = {parameter: name for name, parameter in parameters.items()}
    optimizers = MuonConfig().build(parameters)
    return {
        type(optimizer).__name__: {names[p] for group in optimizer.param_groups for p in group["params"]}
        for optimizer in optimizers
    }


def test_adamw_follows_its_formula_with_the_configured_betas() -> None:
    config = AdamWConfig(learning_rate=0.1, betas=(0.5, 0.75), eps=1e-3, weight_decay=0.2)
    weight = Parameter(torch.tensor([[1.0, -2.0]]))
    (optimizer,) = config.build({"layers.0.query.weight": weight})
    gradients = np.array([[0.3, -0.1], [0.2, 0.4], [-0.5, 0.1]])
    expected, mean, square = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(gradients, start=1):
        weight.grad = torch.tensor(gradient[None], dtype=torch.float32)
        optimizer.step()
        expected = expected * (1 - 0.1 * 0.2)
        mean, square = 0.5 * mean + 0.5 * gradient, 0.75 * square + 0.25 * gradient**2
        expected = expected - 0.1 * (mean / (1 - 0.5**step)) / (np.sqrt(square / (1 - 0.75**step)) + 1e-3)
        np.testing.assert_allclose(weight.detach().numpy()[0], expected, rtol=1e-5)


@pytest.mark.parametrize("model", [tiny_model(), track_model()], ids=["plain", "tracks"])
def test_muon_trains_the_matrices_of_the_layers_and_adamw_the_rest(model: DecoderConfig) -> None:
    by_optimizer = names_by_optimizer(replace(model, head=UntiedHeadConfig()))
    muon, adamw = by_optimizer["Muon"], by_optimizer["AdamW"]
    linears = ("query.weight", "key.weight", "value.weight", "attention.output.weight", "gate.weight", "router.weight")
    every_name = muon | adamw
    assert {name for name in every_name if name.startswith("layers.") and name.endswith(linears)} <= muon
    assert not muon & adamw
    assert {"embedding", "output.weight", "norm.weight"} <= adamw
    assert all("norm" not in name for name in muon)
    assert all("norm" in name or name in ("embedding", "output.weight") or "feed_forward" in name for name in adamw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_treats_each_matrix_of_a_stack_as_torch_does(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "fast_dtype", lambda device: dtype)
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 8, 20), (30, 12, 8), (1, 16, 16)):
        weights = torch.randn(shape, generator=generator)
        stacked, single = Parameter(weights.clone()), [Parameter(weight.clone()) for weight in weights]
        options = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.9}
        ours = Muon([stacked], **options)
        reference = torch.optim.Muon(single, **options, adjust_lr_fn="match_rms_adamw")
        for _ in range(3):
            stacked.grad = torch.randn(shape, generator=generator)
            for parameter, gradient in zip(single, stacked.grad, strict=True):
                parameter.grad = gradient.clone()
            ours.step()
            reference.step()
        moved = (stacked - weights).abs().max().item()
        assert moved > 0.1
        tolerance = 0.01 if dtype == torch.bfloat16 else 0.03  # torch iterates in bf16
        torch.testing.assert_close(stacked, torch.stack(list(single)), rtol=0, atol=tolerance * moved)


def test_muon_without_a_matrix_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="would train nothing"):
        MuonConfig().build({"embedding": Parameter(torch.zeros(4, 4))})
