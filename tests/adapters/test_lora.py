"""Adapters on a decoder: counts, outputs, gradients and weights."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from tiny_adapters import perturb_adapter, random_tokens, tiny_config, tiny_decoder

from openafm.adapters.config import LoRAConfig, SingularValueStart, ZeroStart, num_adapter_parameters
from openafm.adapters.lora import (
    AdapterInstalledError,
    AdapterTargetError,
    AdapterWeightsError,
    LoRA,
    adapter_weights,
    install,
    installed,
    load_adapter_weights,
    remove,
)
from openafm.core.config import ConfigError, from_dict, override, to_dict
from openafm.models.decoder import Decoder
from openafm.models.layers import Linear
from openafm.models.sizes import named_size

CONFIG = LoRAConfig(rank=4, alpha=8.0)


def adapted(config: LoRAConfig = CONFIG) -> Decoder:
    """A tiny decoder with an adapter that changes what it computes."""
    model = tiny_decoder()
    install(model, config)
    perturb_adapter(adapter_weights(model))
    return model


def test_rank_32_on_the_base_counts_as_published() -> None:
    base = named_size("on_device.base")
    assert num_adapter_parameters(base, LoRAConfig()) == 66_633_728
    per_layer = 32 * (2048 + 2048)
    assert num_adapter_parameters(base, LoRAConfig(targets=("query",))) == 56 * per_layer
    assert num_adapter_parameters(base, LoRAConfig(targets=("key",))) == 35 * 32 * (2048 + 256)


def test_the_count_is_what_is_installed() -> None:
    model = adapted()
    assert sum(weight.numel() for weight in adapter_weights(model).values()) == num_adapter_parameters(tiny_config(), CONFIG)


def test_names_of_the_base_are_unchanged() -> None:
    base = tiny_decoder().state_dict()
    model = adapted()
    weights = adapter_weights(model)
    assert model.state_dict().keys() == base.keys() | weights.keys()
    assert weights["layers.0.attention.query.lora.a"].shape == (4, 32)
    assert weights["layers.0.attention.keys_values.key.lora.b"].shape == (16, 4)
    assert weights["layers.2.feed_forward.down.lora.a"].shape == (4, 48)
    assert not any(name.startswith("layers.2.attention.keys_values") for name in weights)
    assert len(weights) == 2 * (7 + 7 + 5)


@torch.no_grad()
def test_a_zero_start_changes_no_bit() -> None:
    tokens_BS = random_tokens()
    for dtype in (torch.float32, torch.bfloat16):
        plain, model = tiny_decoder(), tiny_decoder()
        plain.compute_dtype = model.compute_dtype = dtype
        install(model, CONFIG)
        assert torch.equal(model(tokens_BS), plain(tokens_BS))


def test_the_seed_determines_the_initial_weights() -> None:
    starts = []
    for seed in (1, 1, 2):
        model = tiny_decoder()
        install(model, CONFIG, seed)
        starts.append(adapter_weights(model)["layers.1.feed_forward.gate.lora.a"])
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert 0.5 < starts[0].std() * 32**0.5 < 1.5


@torch.no_grad()
def test_the_output_is_that_of_the_merged_weights() -> None:
    model, merged = adapted(), tiny_decoder()
    for name, lora in installed(model).items():
        cast(Linear, merged.get_submodule(name)).weight += CONFIG.scale * lora.b @ lora.a
    tokens_BS = random_tokens()
    torch.testing.assert_close(model(tokens_BS), merged(tokens_BS), rtol=1e-4, atol=1e-4)
    assert (model(tokens_BS) - tiny_decoder()(tokens_BS)).abs().max() > 0.1


@torch.no_grad()
def test_the_adapter_computes_in_the_dtype_of_its_input() -> None:
    model = adapted()
    exact = model(random_tokens())
    model.compute_dtype = torch.bfloat16
    rounded = model(random_tokens())
    assert rounded.dtype is torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.1 * exact.norm()
    assert {weight.dtype for weight in adapter_weights(model).values()} == {torch.float32}


def test_only_the_adapter_trains() -> None:
    model = tiny_decoder()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    install(model, CONFIG)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens_BS = random_tokens()
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens_BS[:, :-1]).flatten(0, 1), tokens_BS[:, 1:].flatten()).backward()
        trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert trained == adapter_weights(model).keys()
        optimizer.step()
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert all(weight.count_nonzero() for weight in adapter_weights(model).values())


@torch.no_grad()
def test_targets_choose_linears() -> None:
    model = adapted(LoRAConfig(rank=2, targets=("query", "down")))
    assert {name.rpartition(".")[2] for name in installed(model)} == {"query", "down"}
    assert len(installed(model)) == 6
    with pytest.raises(AdapterTargetError, match=r"'qery'.*did you mean 'query'"):
        install(tiny_decoder(), LoRAConfig(targets=("qery",)))


def test_a_refused_adapter_freezes_nothing() -> None:
    model = tiny_decoder()
    with pytest.raises(AdapterTargetError):
        install(model, LoRAConfig(targets=("query", "bias")))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not installed(model)


@torch.no_grad()
def test_weights_move_to_another_decoder() -> None:
    model, other = adapted(), tiny_decoder()
    install(other, CONFIG, seed=5)
    load_adapter_weights(other, {name: weight.numpy() for name, weight in adapter_weights(model).items()})
    assert torch.equal(other(random_tokens()), model(random_tokens()))


def test_weights_that_do_not_fit_are_named_and_change_nothing() -> None:
    model = adapted()
    name = "layers.1.attention.output.lora.b"
    whole = {key: torch.zeros_like(weight) for key, weight in adapter_weights(model).items()}
    wrong = {
        "lack": {key: weight for key, weight in whole.items() if key != name},
        "adapter lacks": {**whole, "layers.9.attention.output.lora.b": torch.zeros(1)},
        r"\[32, 5\].*\[32, 4\]": {**whole, name: torch.zeros(32, 5)},
    }
    for message, weights in wrong.items():
        with pytest.raises(AdapterWeightsError, match=message) as caught:
            load_adapter_weights(model, weights)
        assert "attention.output.lora.b" in str(caught.value)
    assert all(weight.count_nonzero() for weight in adapter_weights(model).values())


@torch.no_grad()
def test_one_adapter_at_a_time() -> None:
    model = adapted()
    with pytest.raises(AdapterInstalledError, match="one at a time"):
        install(model, CONFIG)
    remove(model)
    assert torch.equal(model(random_tokens()), tiny_decoder()(random_tokens()))
    assert model.state_dict().keys() == tiny_decoder().state_dict().keys()
    for call in (remove, adapter_weights, lambda decoder: load_adapter_weights(decoder, {})):
        with pytest.raises(AdapterInstalledError, match="no adapter"):
            call(model)
    install(model, CONFIG)
    assert torch.equal(model(random_tokens()), tiny_decoder()(random_tokens()))


@torch.no_grad()
def test_a_copied_decoder_has_an_adapter_of_its_own() -> None:
    model = adapted()
    duplicate = copy.deepcopy(model)
    expected = model(random_tokens())
    assert torch.equal(duplicate(random_tokens()), expected)
    remove(duplicate)
    assert torch.equal(duplicate(random_tokens()), tiny_decoder()(random_tokens()))
    assert torch.equal(model(random_tokens()), expected)


class DoubledLinear(Linear):
    """A kind of Linear with its own weights and output, like a compressed one: no parameter, only a buffer."""

    def __init__(self, linear: Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_dim, self.out_dim = linear.in_dim, linear.out_dim
        self.register_buffer("codes", linear.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * torch.nn.functional.linear(x, cast(torch.Tensor, self.codes).to(x.dtype))


@torch.no_grad()
def test_linears_of_other_kinds_are_adapted() -> None:
    model = tiny_decoder()
    gate = DoubledLinear(model.get_submodule("layers.0.feed_forward.gate"))  # type: ignore[arg-type]
    model.get_submodule("layers.0.feed_forward").gate = gate
    install(model, CONFIG)
    perturb_adapter(adapter_weights(model))
    x = torch.randn(3, 32)
    lora = installed(model)["layers.0.feed_forward.gate"]
    torch.testing.assert_close(gate(x), gate.forward(x) + CONFIG.scale * (x @ lora.a.T @ lora.b.T))
    assert isinstance(lora, LoRA)


def test_impossible_configs_are_refused() -> None:
    for values, message in [
        ({"rank": 0}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": float("inf")}, "alpha"),
        ({"targets": ("query", "query")}, "unique"),
        ({"targets": ("attention.query",)}, "last component"),
        ({"targets": ("",)}, "last component"),
    ]:
        with pytest.raises(ConfigError, match=message):
            LoRAConfig(**values)  # type: ignore[arg-type]


def test_the_config_survives_json_and_takes_overrides() -> None:
    config = LoRAConfig(rank=8, targets=("gate",), start=SingularValueStart())
    assert from_dict(LoRAConfig, to_dict(config)) == config
    assert override(config, {"start": '{"type": "ZeroStart"}', "alpha": "4"}).start == ZeroStart()
    assert config.scale == 2.0
