"""The decoder as a module: precision, initial weights, heads and biases."""

from __future__ import annotations

import dataclasses

import torch
from tiny_decoders import (
    DOCUMENTS,
    NUM_ROWS,
    ROW_LENGTH,
    decoder_config,
    largest_difference,
    layer,
    perturbed,
    random_tokens,
)

from openafm.models.attention.context import PackedDocuments
from openafm.models.config import AttentionConfig, DecoderConfig, DenseFeedForwardConfig, UntiedHeadConfig
from openafm.models.sizes import named_size

CONFIG = decoder_config(layer(), layer(window=4), layer(source=1))


def test_the_seed_decides_the_weights() -> None:
    a, b, c = CONFIG.build(seed=3), CONFIG.build(seed=3), CONFIG.build(seed=4)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.embedding, c.embedding)


@torch.no_grad()
def test_a_fresh_model_predicts_nearly_uniformly() -> None:
    model = named_size("on_device.micro").build()
    vocab_size = model.config.vocab_size
    logits_V = model(torch.randint(vocab_size, (1, 32)))[0, -1]
    assert logits_V.logsumexp(0) - torch.tensor(float(vocab_size)).log() < 0.1


def test_weights_stay_fp32_and_compute_is_in_compute_dtype() -> None:
    model = perturbed(CONFIG)
    model.compute_dtype = torch.bfloat16
    logits = model(random_tokens(2, 9))
    assert logits.dtype is torch.bfloat16
    logits.float().sum().backward()
    assert {(p.dtype, p.grad is not None and p.grad.dtype) for p in model.parameters()} == {(torch.float32, torch.float32)}


def test_bf16_follows_fp32_in_logits_and_gradients() -> None:
    model = perturbed(CONFIG)
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        model.compute_dtype = dtype
        logits = model(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH)).float()
        gradients = torch.autograd.grad(logits.logsumexp(-1).sum(), list(model.parameters()))
        results.append((logits.detach(), torch.cat([gradient.flatten() for gradient in gradients])))
    (logits, gradients), (logits_bf16, gradients_bf16) = results
    assert (logits - logits_bf16).norm() < 0.05 * logits.norm()
    assert torch.cosine_similarity(gradients, gradients_bf16, dim=0) > 0.99


@torch.no_grad()
def test_an_untied_head_has_weights_of_its_own() -> None:
    tied, untied = CONFIG.build(), dataclasses.replace(CONFIG, head=UntiedHeadConfig()).build()
    assert tied.head_weight is tied.embedding
    assert untied.head_weight.shape == untied.embedding.shape
    tokens_BS = random_tokens(1, 5)
    untied.output.weight.copy_(untied.embedding)
    assert largest_difference(tied(tokens_BS), untied(tokens_BS)) < 1e-6


@torch.no_grad()
def test_biases_are_where_the_config_says() -> None:
    plain = layer()
    assert isinstance(plain.attention, AttentionConfig)
    assert isinstance(plain.feed_forward, DenseFeedForwardConfig)
    biased = dataclasses.replace(
        plain,
        attention=dataclasses.replace(plain.attention, input_bias=True, output_bias=True),
        feed_forward=dataclasses.replace(plain.feed_forward, bias=True),
    )
    names = {name for name, _ in decoder_config(biased).build().named_parameters() if name.endswith("bias")}
    halves = ("query", "keys_values.key", "keys_values.value", "output")
    assert names == {f"layers.0.attention.{half}.bias" for half in halves} | {
        f"layers.0.feed_forward.{part}.bias" for part in ("gate", "up", "down")
    }
    model = decoder_config(biased).build()
    before = model(random_tokens(1, 5))
    model.layers[0].attention.keys_values.value.bias.fill_(1.0)
    assert largest_difference(model(random_tokens(1, 5)), before) > 1e-4


def test_without_qk_norm_there_are_no_such_weights() -> None:
    plain = layer()
    bare = dataclasses.replace(plain, attention=dataclasses.replace(plain.attention, qk_norm=None))
    model = DecoderConfig(vocab_size=7, dim=32, layers=(bare,)).build()
    assert [name for name, _ in model.named_parameters() if "query_norm" in name or "key_norm" in name] == []
    assert model(torch.tensor([[1, 2]])).isfinite().all()
