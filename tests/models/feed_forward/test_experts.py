"""Experts against a plain loop over tokens and experts in float64, forward and backward.

Shapes: T tracks, N tokens, K experts chosen for a token, E experts of a track, D model dim, F hidden dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.models.config import AttentionConfig, DecoderConfig, LayerConfig, OwnKeysValuesConfig
from openafm.models.feed_forward.experts import Experts, Routing, observed_routing
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig

WEIGHTS = ("gate", "up", "down", "router.weight")


def experts(
    *, num_experts: int = 4, num_chosen: int = 2, dim: int = 16, hidden_dim: int = 24, tracks: int | None = None
) -> Experts:
    """Return experts whose router is far from uniform; `tracks` None is a model without tracks."""
    torch.set_num_threads(1)
    router = TopKRouterConfig(num_chosen=num_chosen, soft_cap=2.0)
    module = ExpertsConfig(num_experts=num_experts, hidden_dim=hidden_dim, router=router).build(dim)
    assert isinstance(module, Experts)
    if tracks is not None:
        for part in (module.router, module):
            part.stack_tracks(tracks)
    generator = torch.Generator().manual_seed(num_experts)
    module.initialize(generator, residual_scale=1.0)
    with torch.no_grad():
        module.router.weight.normal_(generator=generator)
    return module


def inputs(module: Experts, num_tokens: int, seed: int = 0) -> Tensor:
    """x_TBSD with B = 1, or x_BSD without tracks."""
    shape = (*module.gate.shape[:-3], 1, num_tokens, module.gate.shape[-1])
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def looped(x: Tensor, weights: Mapping[str, Tensor], num_chosen: int, soft_cap: float = 2.0) -> Tensor:
    """One token and one expert at a time."""
    if x.ndim == 4:
        tracks = [{name: weight[t] for name, weight in weights.items()} for t in range(len(x))]
        return torch.stack([looped(x[t], tracks[t], num_chosen, soft_cap) for t in range(len(x))])
    outputs = []
    for x_D in x.flatten(0, -2):
        logits_E = soft_cap * torch.tanh(weights["router.weight"] @ x_D / soft_cap)
        chosen_K = logits_E.argsort(descending=True)[:num_chosen]
        y_D = torch.zeros_like(x_D)
        for expert, weight in zip(chosen_K.tolist(), logits_E[chosen_K].softmax(0), strict=True):
            gate, up, down = (weights[name][expert] for name in ("gate", "up", "down"))
            y_D = y_D + weight * (down @ (F.silu(gate @ x_D) * (up @ x_D)))
        outputs.append(y_D)
    return torch.stack(outputs).view(x.shape)


def gradients(y: Tensor, x: Tensor, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """Of a sum of squares that weighs every element differently."""
    scale = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
    return list(torch.autograd.grad((scale * y * y).sum(), [x, *(weights[name] for name in WEIGHTS)]))


def check_against_loop(module: Experts, x: Tensor, num_chosen: int, tolerance: float = 1e-5) -> None:
    weights = {name: module.get_parameter(name) for name in WEIGHTS}
    x = x.requires_grad_()
    found = module(x)
    exact_x = x.detach().double().requires_grad_()
    exact = {name: weight.detach().double().requires_grad_() for name, weight in weights.items()}
    wanted = looped(exact_x, exact, num_chosen)
    pairs = zip(
        [found, *gradients(found, x, weights)],
        [wanted, *gradients(wanted, exact_x, exact)],
        ["output", "x", *WEIGHTS],
        strict=True,
    )
    for ours, theirs, name in pairs:
        assert (ours - theirs).abs().max() <= tolerance * (1 + theirs.abs().max()), name


@settings(max_examples=10, deadline=None)
@given(
    num_experts=st.integers(1, 5),
    num_chosen=st.integers(1, 5),
    num_tokens=st.integers(1, 9),
    dim=st.sampled_from([8, 16, 40]),
    hidden_dim=st.sampled_from([8, 24]),
    tracks=st.sampled_from([None, 1, 3]),
)
def test_equals_a_loop_over_tokens_and_experts(
    num_experts: int, num_chosen: int, num_tokens: int, dim: int, hidden_dim: int, tracks: int | None
) -> None:
    num_chosen = min(num_chosen, num_experts)
    module = experts(num_experts=num_experts, num_chosen=num_chosen, dim=dim, hidden_dim=hidden_dim, tracks=tracks)
    check_against_loop(module, inputs(module, num_tokens), num_chosen)


@pytest.mark.parametrize("tracks", [None, 2])
def test_experts_without_tokens_learn_nothing(tracks: int | None) -> None:
    module = experts(num_experts=6, tracks=tracks)
    x = inputs(module, 1).expand(*inputs(module, 1).shape[:-2], 7, 16).contiguous()  # one token, seven times
    check_against_loop(module, x, 2)
    module(x).square().sum().backward()
    for name in ("gate", "up", "down"):
        gradient = module.get_parameter(name).grad
        assert gradient is not None
        learned = gradient.flatten(0, -3).flatten(1).any(1)
        assert int(learned.sum()) == 2 * (tracks or 1)


def test_all_tokens_to_one_expert() -> None:
    module = experts(num_experts=3, num_chosen=1)
    x = inputs(module, 11).abs()
    with torch.no_grad():
        module.router.weight.fill_(-0.01)
        module.router.weight[1] = 0.01
    with torch.no_grad():
        assert module.router(x.flatten(0, 1)[None]).chosen_TNK.unique().tolist() == [1]
    check_against_loop(module, x, 1)


def test_no_tokens_at_all() -> None:
    module = experts(tracks=2)
    x = inputs(module, 0).requires_grad_()
    y = module(x)
    y.sum().backward()
    assert y.shape == x.shape
    assert module.gate.grad is not None
    assert not module.gate.grad.any()


def test_an_upstream_gradient_that_is_not_contiguous() -> None:
    module = experts(tracks=2)
    x = inputs(module, 5).requires_grad_()
    y = module(x)
    (expanded,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (contiguous,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
    assert torch.equal(expanded, contiguous)
    (transposed,) = torch.autograd.grad(y.transpose(0, 2), x, torch.ones_like(y).transpose(0, 2))
    assert torch.equal(transposed, contiguous)


@pytest.mark.parametrize("frozen", ["x", "gate", "down", "router.weight"])
def test_frozen_weights_get_no_gradient(frozen: str) -> None:
    """Adapters and distillation freeze parts; the others' gradients are unchanged."""
    module = experts(tracks=2)
    x = inputs(module, 6).requires_grad_()
    tensors = {"x": x, **{name: module.get_parameter(name) for name in WEIGHTS}}
    module(x).square().sum().backward()
    wanted = {name: tensor.grad for name, tensor in tensors.items() if name != frozen}
    for tensor in tensors.values():
        tensor.grad = None
    tensors[frozen].requires_grad_(False)
    module(x).square().sum().backward()
    assert tensors[frozen].grad is None
    for name, gradient in wanted.items():
        assert gradient is not None
        torch.testing.assert_close(tensors[name].grad, gradient)


def test_without_gradients_the_result_is_the_same() -> None:
    module = experts(tracks=2)
    x = inputs(module, 9)
    with torch.no_grad():
        alone = module(x)
    assert torch.equal(alone, module(x))


@pytest.mark.parametrize("tracks", [None, 2])
def test_bf16_is_close_to_fp32(tracks: int | None) -> None:
    module = experts(tracks=tracks, num_experts=3, num_chosen=3)  # all are chosen: rounding changes no choice
    x = inputs(module, 33).requires_grad_()
    weights = {name: module.get_parameter(name) for name in WEIGHTS}
    exact = module(x)
    rounded = module(x.bfloat16())
    assert rounded.dtype is torch.bfloat16
    pairs = zip(
        [rounded.float(), *gradients(rounded.float(), x, weights)], [exact, *gradients(exact, x, weights)], strict=True
    )
    for ours, theirs in pairs:
        assert ours.dtype is torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_gelu_experts() -> None:
    config = ExpertsConfig(num_experts=2, hidden_dim=8, router=TopKRouterConfig(num_chosen=2), activation="gelu")
    module = config.build(8)
    assert isinstance(module, Experts)
    module.initialize(torch.Generator().manual_seed(0), residual_scale=1.0)
    x_D = torch.randn(8, generator=torch.Generator().manual_seed(1))
    weights_E = (module.router.weight @ x_D).softmax(0)  # far below the soft cap
    each = [module.down[e] @ (F.gelu(module.gate[e] @ x_D) * (module.up[e] @ x_D)) for e in range(2)]
    torch.testing.assert_close(module(x_D[None, None])[0, 0], weights_E[0] * each[0] + weights_E[1] * each[1])


def test_initial_weights_keep_the_variance_of_their_input() -> None:
    """The deviation is one over the root of the input width; that of residual projections is scaled."""
    module = ExpertsConfig(num_experts=4, hidden_dim=96, router=TopKRouterConfig(num_chosen=2)).build(64)
    assert isinstance(module, Experts)
    module.initialize(torch.Generator().manual_seed(0), residual_scale=0.25)
    found = [weight.std().item() for weight in (module.gate, module.up, module.down)]
    assert found == pytest.approx([64**-0.5, 64**-0.5, 0.25 * 96**-0.5], rel=0.03)


def routed(logits: list[float], router: TopKRouterConfig) -> Routing:
    """The choice for one token with these logits."""
    module = router.build(8, len(logits))
    with torch.no_grad():
        module.weight.zero_()
        module.weight[:, 0] = torch.tensor(logits)
    x_TND = torch.zeros(1, 1, 8)
    x_TND[..., 0] = 1.0
    return module(x_TND)


def test_logits_are_capped_before_the_choice_and_the_softmax() -> None:
    routing = routed([400.0, 1.0, -400.0, 30.0], TopKRouterConfig(num_chosen=2, soft_cap=50.0))
    capped = 50 * torch.tanh(torch.tensor([400.0, 1.0, -400.0, 30.0]) / 50)
    torch.testing.assert_close(routing.logits_TNE[0, 0], capped)
    assert routing.chosen_TNK[0, 0].tolist() == [0, 3]
    torch.testing.assert_close(routing.weights_TNK[0, 0], capped[[0, 3]].softmax(0))


def test_without_a_cap_logits_are_as_they_are() -> None:
    routing = routed([400.0, 1.0, -400.0], TopKRouterConfig(num_chosen=1, soft_cap=None))
    assert routing.logits_TNE[0, 0].tolist() == [400.0, 1.0, -400.0]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 9))
def test_the_weights_of_a_token_add_up_to_one(num_experts: int, num_chosen: int, seed: int) -> None:
    num_chosen = min(num_experts, num_chosen)
    module = experts(num_experts=num_experts, num_chosen=num_chosen, tracks=2)
    routing = module.router(inputs(module, 5, seed).flatten(1, 2))
    torch.testing.assert_close(routing.weights_TNK.sum(-1), torch.ones(2, 5))
    assert all(len(set(chosen)) == num_chosen for chosen in routing.chosen_TNK.flatten(0, 1).tolist())


def test_logits_are_fp32_whatever_the_model_computes_in() -> None:
    module = experts()
    x_TND = inputs(module, 50).bfloat16()
    routing = module.router(x_TND)
    assert routing.logits_TNE.dtype is torch.float32
    assert torch.equal(routing.logits_TNE, module.router(x_TND.float()).logits_TNE)


def test_the_exchange_receives_rows_sorted_by_group_and_their_counts() -> None:
    module = experts(num_experts=3, tracks=2)
    seen: dict[str, Tensor] = {}

    def exchange(x_MD: Tensor, counts_TE: Tensor, compute: object) -> Tensor:
        seen.update(x=x_MD, counts=counts_TE)
        return torch.zeros_like(x_MD)

    x = inputs(module, 5)
    routing = module.router(x.flatten(1, 2))
    module.exchange = exchange  # type: ignore[assignment]
    assert not module(x).any()
    assert seen["counts"].tolist() == [chosen.flatten().bincount(minlength=3).tolist() for chosen in routing.chosen_TNK]
    rows = [
        x[track, 0, token]
        for track in range(2)
        for expert in range(3)
        for token in range(5)
        if expert in routing.chosen_TNK[track, token]
    ]
    assert torch.equal(seen["x"], torch.stack(rows))


def test_routing_is_observed_by_layer_and_only_inside_the_block() -> None:
    attention = AttentionConfig(num_heads=2, head_dim=8, keys_values=OwnKeysValuesConfig(num_heads=2))
    layer = LayerConfig(attention=attention, feed_forward=ExpertsConfig(num_experts=3, hidden_dim=8))
    model = DecoderConfig(vocab_size=7, dim=16, layers=(layer, layer)).build()
    with observed_routing(model) as seen:
        model(torch.tensor([[1, 2, 3]]))
    assert {index: tuple(routing.chosen_TNK.shape) for index, routing in seen.items()} == {0: (1, 3, 2), 1: (1, 3, 2)}
    seen.clear()
    model(torch.tensor([[1, 2, 3]]))
    assert not seen


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num_experts": 1, "hidden_dim": 8}, "1 experts are fewer than the 2"),
        ({"num_experts": 4, "hidden_dim": 12}, "hidden_dim must be a multiple of 8"),
        ({"num_experts": 4, "hidden_dim": 0}, "hidden_dim must be a multiple of 8"),
    ],
)
def test_impossible_sizes_are_refused(wrong: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ExpertsConfig(**wrong)


def test_impossible_routers_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_chosen must be at least 1"):
        TopKRouterConfig(num_chosen=0)
    with pytest.raises(ConfigError, match="soft_cap must be above 0"):
        TopKRouterConfig(soft_cap=0.0)


def test_a_model_dim_that_grouped_products_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model's dim must be a multiple of 8"):
        ExpertsConfig(num_experts=4, hidden_dim=8).build(12)
