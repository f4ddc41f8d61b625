"""Training in fp8: Linears against bf16 with emulated products, refusals, and a step on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parallel_runs import track_model
from tiny_decoders import largest_difference
from tiny_runs import tiny_model, tiny_run, write_corpus
from torch import Tensor
from torchao.float8 import Float8LinearConfig

from openafm.compression.config import QATConfig
from openafm.core.config import ConfigError
from openafm.models.decoder import Decoder
from openafm.models.layers import Linear
from openafm.training.config import BFloat16Config, Float8Config
from openafm.training.device import DeviceError
from openafm.training.float8 import Float8Linear, Float8ModelError, install_float8
from openafm.training.run import train

EMULATED = replace(Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)


def output_and_gradients(linear: Linear, x_ND: Tensor, dy_NF: Tensor) -> list[Tensor]:
    x_ND = x_ND.detach().requires_grad_()
    y_NF = linear(x_ND)
    parameters = [parameter for parameter in (linear.weight, linear.bias) if parameter is not None]
    return [y_NF, *torch.autograd.grad(y_NF, [x_ND, *parameters], dy_NF)]


def test_products_are_those_of_rounded_operands() -> None:
    """Operands have 4 significant bits: the products of random matrices differ by a few hundredths, not by nothing."""
    linear, generator = Linear(32, 48, bias=True), torch.Generator().manual_seed(0)
    linear.initialize(generator)
    x_ND, dy_NF = (torch.randn(20, dim, generator=generator).bfloat16() for dim in (32, 48))
    expected, found = (output_and_gradients(one, x_ND, dy_NF) for one in (linear, Float8Linear(linear, EMULATED)))
    for of_expected, of_found in zip(expected[:3], found[:3], strict=True):
        assert of_found.dtype == of_expected.dtype
        assert 0.005 < (of_found - of_expected).norm() / of_expected.norm() < 0.06
    assert largest_difference(found[3], expected[3]) == 0  # the gradient of the bias
    by_hand_NF = rounded(x_ND.float()) @ rounded(linear.weight.detach().bfloat16().float()).T
    assert (found[0] - by_hand_NF).norm() / by_hand_NF.norm() < 0.003  # that of a result in bf16


def rounded(x_ND: Tensor) -> Tensor:
    """Round to fp8 with 4 bits of exponent, with the largest power of two by row that does not overflow."""
    scales_N1 = (448 / x_ND.abs().amax(dim=1, keepdim=True)).log2().floor().exp2()
    return (x_ND * scales_N1).to(torch.float8_e4m3fn).float() / scales_N1


def test_the_linears_of_layers_are_replaced_and_keep_their_parameters() -> None:
    model = Decoder(tiny_model())
    before = dict(model.named_parameters())
    tokens_BS = torch.randint(1, 30, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = model(tokens_BS)
    install_float8(model, EMULATED)
    assert sum(isinstance(module, Float8Linear) for module in model.modules()) >= 4 * len(model.layers)
    assert model.output is None or type(model.output) is Linear
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert 0 < (model(tokens_BS) - expected).norm() / expected.norm() < 0.3


def test_a_run_without_such_a_gpu_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "corpus")
    with pytest.raises(DeviceError, match=r"capability 8.9 or above .*, the run computes on cpu; use BFloat16Config"):
        train(tiny_run(data, 2, precision=Float8Config()), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_what_has_no_products_in_fp8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Float8ModelError, match="not stacks of tracks"):
        install_float8(Decoder(track_model()), EMULATED)
    with pytest.raises(ConfigError, match="use BFloat16Config with them"):
        tiny_run(write_corpus(tmp_path), 2, precision=Float8Config(), qat=QATConfig())


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_run_on_a_gpu_learns_as_in_bf16(scaling: str, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "corpus")
    losses = [
        train(tiny_run(data, 20, precision=precision), tmp_path / type(precision).__name__).loss
        for precision in (BFloat16Config(), replace(Float8Config(), scaling=scaling))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
