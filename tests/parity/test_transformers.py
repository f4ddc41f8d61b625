"""Our decoder equals transformers' in fp32: Qwen3 for the block, with shared keys and values too, SmolLM3 for 3:1 windows.

For every equality, a variant that breaks one rule must differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peers import (
    DIM,
    HEAD_DIM,
    HIDDEN_DIM,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    NUM_OWN_LAYERS,
    POWER,
    TOLERANCE,
    VOCAB_SIZE,
    copy_to_ours,
    copy_to_peer,
    decoder,
    largest_difference,
    layer,
    perturb,
    plain_layers,
    sharing_layers,
    tokens,
    transformers_pairs,
)
from torch import Tensor, nn

from openafm.models.config import QKNormConfig, RotaryConfig
from openafm.models.decoder import Decoder

transformers = pytest.importorskip("transformers")

QK_NORM = QKNormConfig(order="before_position")
HALF: dict[str, Any] = {"position": RotaryConfig(layout="half"), "qk_norm": QK_NORM}
INTERLEAVED: dict[str, Any] = {"position": RotaryConfig(layout="interleaved"), "qk_norm": QK_NORM}
LAYOUTS = [pytest.param(HALF, id="half"), pytest.param(INTERLEAVED, id="interleaved")]
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": DIM,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "intermediate_size": HIDDEN_DIM,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(autouse=True)
def _one_thread_no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def qwen3(attention: str = "sdpa") -> Any:
    config = transformers.Qwen3Config(**COMMON, head_dim=HEAD_DIM)
    config._attn_implementation = attention
    return transformers.Qwen3ForCausalLM(config).eval()


def difference(ours: Decoder, theirs: Any) -> float:
    return largest_difference(ours(tokens()), theirs(tokens(), use_cache=False).logits)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_block_equals_qwen3(layout: dict[str, Any]) -> None:
    ours, theirs = decoder(plain_layers(**layout)), qwen3()
    copy_to_peer(transformers_pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_qwen3_weights_copied_to_ours_give_its_logits(layout: dict[str, Any]) -> None:
    ours, theirs = decoder(plain_layers(**layout)), qwen3()
    perturb(theirs, seed=1)
    copy_to_ours(transformers_pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


def test_the_comparison_with_qwen3_sees_one_rule_broken() -> None:
    theirs, half = qwen3(), decoder(plain_layers(**HALF))
    copy_to_peer(transformers_pairs(half, theirs))
    state = half.state_dict()

    def broken(layers: list[Any], **changes: Tensor) -> float:
        other = decoder(layers)
        other.load_state_dict(state | changes)
        return difference(other, theirs)

    assert broken(plain_layers(**HALF)) < TOLERANCE
    assert broken(plain_layers(**INTERLEAVED)) > POWER
    assert broken(plain_layers(**HALF | {"position": RotaryConfig(layout="half", theta=10_000.0)})) > POWER
    assert broken(plain_layers(**HALF | {"position": None})) > POWER
    assert broken(plain_layers(**HALF | {"qk_norm": QKNormConfig(order="after_position")})) > POWER
    for name, weight in state.items():
        if "layers.3" in name and "norm" in name:
            assert broken(plain_layers(**HALF), **{name: torch.ones_like(weight)}) > POWER, name
    swapped = {
        "layers.3.feed_forward.gate.weight": state["layers.3.feed_forward.up.weight"],
        "layers.3.feed_forward.up.weight": state["layers.3.feed_forward.gate.weight"],
    }
    assert broken(plain_layers(**HALF), **swapped) > POWER


@contextmanager
def shared_keys_values(boundary: int) -> Iterator[str]:
    """The name of an attention function for which layers above `boundary` read the keys and values of that layer."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    stored: dict[str, tuple[Tensor, Tensor]] = {}

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        if module.layer_idx <= boundary:  # type: ignore[operator]
            stored["last"] = (key, value)
        return sdpa_attention_forward(module, query, *stored["last"], *args, **options)

    name = f"shared_above_{boundary}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    yield name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sharing_equals_qwen3_with_shared_keys_and_values(layout: dict[str, Any]) -> None:
    ours = decoder(sharing_layers(**layout))
    with shared_keys_values(NUM_OWN_LAYERS - 1) as attention:
        theirs = qwen3(attention)
        copy_to_peer(transformers_pairs(ours, theirs))
        assert difference(ours, theirs) < TOLERANCE


def test_the_comparison_of_sharing_sees_no_sharing_and_another_source() -> None:
    ours = decoder(sharing_layers(**HALF))
    unshared = qwen3()
    copy_to_peer(transformers_pairs(ours, unshared))
    assert difference(ours, unshared) > POWER
    with shared_keys_values(NUM_OWN_LAYERS - 1) as attention:
        theirs = qwen3(attention)
        copy_to_peer(transformers_pairs(ours, theirs))
        earlier = decoder(sharing_layers(source=NUM_OWN_LAYERS - 2, **HALF))
        earlier.load_state_dict(ours.state_dict())
        assert difference(earlier, theirs) > POWER


WINDOW = 8


def three_to_one(window: int, last_position: RotaryConfig | None = None) -> list[Any]:
    """Three windowed layers with rotation to one global layer without."""
    local = layer(position=RotaryConfig(layout="half"), window=window, qk_norm=None)
    return [local, local, local, layer(position=last_position, qk_norm=None)] * (NUM_LAYERS // 4)


def smollm3() -> Any:
    config = transformers.SmolLM3Config(
        **COMMON,
        no_rope_layers=[1, 1, 1, 0] * (NUM_LAYERS // 4),
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * (NUM_LAYERS // 4),
    )
    return transformers.SmolLM3ForCausalLM(config).eval()


def test_windows_and_layers_without_position_equal_smollm3() -> None:
    ours, theirs = decoder(three_to_one(WINDOW)), smollm3()
    copy_to_peer(transformers_pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param(three_to_one(WINDOW + 1), id="window one longer"),
        pytest.param(three_to_one(WINDOW - 1), id="window one shorter"),
        pytest.param(three_to_one(WINDOW, RotaryConfig(layout="half")), id="rotation in the global layers"),
    ],
)
def test_the_comparison_with_smollm3_sees_one_rule_broken(layers: list[Any]) -> None:
    ours, theirs = decoder(three_to_one(WINDOW)), smollm3()
    copy_to_peer(transformers_pairs(ours, theirs))
    other = decoder(layers)
    other.load_state_dict(ours.state_dict())
    assert difference(other, theirs) > POWER
