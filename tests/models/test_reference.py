"""The on-device decoder against a second implementation: plain NumPy from the report's description, without our modules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_decoders import perturbed

from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.layers import Linear
from openafm.models.sizes import shared_kv_decoder

Array = NDArray[np.float64]
OWN, SHARED = 3, 2
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
CONFIG = shared_kv_decoder(
    vocab_size=61,
    dim=32,
    num_own_layers=OWN,
    num_shared_layers=SHARED,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    hidden_dim=48,
    context_length=64,
)
EPS, THETA = 1e-5, 500_000.0


def norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def rotated(x_SHC: Array) -> Array:
    out = np.empty_like(x_SHC)
    for position in range(len(x_SHC)):
        for pair in range(HEAD_DIM // 2):
            angle = position / THETA ** (2 * pair / HEAD_DIM)
            a, b = x_SHC[position, :, 2 * pair], x_SHC[position, :, 2 * pair + 1]
            out[position, :, 2 * pair] = a * np.cos(angle) - b * np.sin(angle)
            out[position, :, 2 * pair + 1] = a * np.sin(angle) + b * np.cos(angle)
    return out


def reference_logits(weights: dict[str, Array], tokens: list[int]) -> Array:
    """Block 1 has OWN layers with keys and values of their own; block 2 reads those of the last layer of block 1."""
    x_SD = weights["embedding"][tokens]
    length = len(tokens)
    for layer in range(OWN + SHARED):
        w = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items() if f"layers.{layer}." in name}
        h_SD = norm(x_SD, w["attention_norm.weight"])
        q_SHC = (h_SD @ w["attention.query.weight"].T).reshape(length, HEADS, HEAD_DIM)
        q_SHC = norm(rotated(q_SHC), w["attention.query_norm.weight"])
        if layer < OWN:
            k_SKC = (h_SD @ w["attention.keys_values.key.weight"].T).reshape(length, KV_HEADS, HEAD_DIM)
            k_SKC = norm(rotated(k_SKC), w["attention.keys_values.key_norm.weight"])
            v_SKC = (h_SD @ w["attention.keys_values.value.weight"].T).reshape(length, KV_HEADS, HEAD_DIM)
        o_SHC = np.zeros((length, HEADS, HEAD_DIM))
        for position in range(length):
            for head in range(HEADS):
                kv_head = head // (HEADS // KV_HEADS)
                scores = k_SKC[: position + 1, kv_head] @ q_SHC[position, head] / np.sqrt(HEAD_DIM)
                p = np.exp(scores - scores.max())
                o_SHC[position, head] = (p / p.sum()) @ v_SKC[: position + 1, kv_head]
        x_SD = x_SD + o_SHC.reshape(length, -1) @ w["attention.output.weight"].T
        h_SD = norm(x_SD, w["feed_forward_norm.weight"])
        gate = h_SD @ w["feed_forward.gate.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * (h_SD @ w["feed_forward.up.weight"].T)
        x_SD = x_SD + hidden @ w["feed_forward.down.weight"].T
    return norm(x_SD, weights["norm.weight"]) @ weights["embedding"].T


@torch.no_grad()
def test_logits_equal_those_of_the_reference() -> None:
    model = perturbed(CONFIG)
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    tokens = [7, 60, 0, 7, 33, 12, 12, 5, 41]
    expected_SV = reference_logits(weights, tokens)
    for logits_SV in (
        model(torch.tensor([tokens]))[0],
        model.head(model.last_hidden(torch.tensor([tokens])))[0],  # by the prefill bypass
    ):
        n = len(logits_SV)
        assert np.abs(expected_SV[-n:] - logits_SV.double().numpy()).max() < 1e-4 * np.abs(expected_SV).max()


def wide(config: DecoderConfig) -> Decoder:
    return dataclasses.replace(config, dim=256).build(seed=3)


def test_initial_weights_have_the_standard_deviation_of_their_inputs() -> None:
    linears = {name: module for name, module in wide(CONFIG).named_modules() if isinstance(module, Linear)}
    assert len(linears) == 5 * (2 + 3) + 3 * 2
    for name, linear in linears.items():
        expected = linear.weight.shape[1] ** -0.5
        if name.endswith(("attention.output", "feed_forward.down")):
            expected /= (2 * (OWN + SHARED)) ** 0.5
        assert linear.weight.std().item() == pytest.approx(expected, rel=0.05), name
        assert abs(linear.weight.mean().item()) < 0.05 * expected
