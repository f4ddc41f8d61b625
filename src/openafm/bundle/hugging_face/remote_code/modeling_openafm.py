"""Decoders of openafm for transformers: KV sharing, norms of queries and keys after the rotation, layers without positions.

Shapes: B batch, S sequence, T keys, D model dim, H heads, K key/value heads, C head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_openafm import OpenafmConfig

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"  # renamed in 5.24


class OpenafmRMSNorm(nn.Module):
    """Root-mean-square norm in fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight.float()).to(x.dtype)


def rotations(config: OpenafmConfig, position_ids_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [B, 1, S, C] of the angles of halves of a head."""
    rope = config.rope_parameters
    exponents = torch.arange(0, config.head_dim, 2, device=position_ids_BS.device, dtype=torch.float32) / config.head_dim
    frequencies, factor = rope["rope_theta"] ** -exponents, 1.0
    if rope["rope_type"] != "default":
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, position_ids_BS.device)
    angles = position_ids_BS.float()[:, None, :, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * factor, angles.sin() * factor


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of each head, in fp32."""
    cosines, sines = rotation
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cosines + torch.cat([-second, first], dim=-1) * sines).to(x.dtype)


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Attention by its definition: the fallback of the attention interface."""
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores_BHST = query @ key.transpose(2, 3) * module.scaling
    if attention_mask is not None:
        scores_BHST = scores_BHST + attention_mask
    weights_BHST = scores_BHST.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights_BHST @ value).transpose(1, 2).contiguous(), weights_BHST


class OpenafmAttention(nn.Module):
    """Grouped-query attention on the layer's own keys and values, or on those of an earlier layer."""

    def __init__(self, config: OpenafmConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim, self.scaling, self.is_causal = config.head_dim, config.head_dim**-0.5, True
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        is_local = config.layer_types[layer_idx] == "sliding_attention"
        self.sliding_window = config.sliding_window if is_local else None
        self.source = config.keys_values_layers[layer_idx]
        inner_dim, kv_dim = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner_dim, bias=config.input_bias)
        self.o_proj = nn.Linear(inner_dim, config.hidden_size, bias=config.output_bias)
        if self.source == layer_idx:
            self.k_proj = nn.Linear(config.hidden_size, kv_dim, bias=config.input_bias)
            self.v_proj = nn.Linear(config.hidden_size, kv_dim, bias=config.input_bias)
        if config.qk_norm is not None:
            self.q_norm = OpenafmRMSNorm(config.head_dim, config.qk_norm_eps)
            if self.source == layer_idx:
                self.k_norm = OpenafmRMSNorm(config.head_dim, config.qk_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        rotation: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        stored: dict[int, tuple[Tensor, Tensor]],
        cache: Cache | None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the output. `stored` has the keys and values of earlier layers of this call; own ones are added."""
        query_BHSC = self._placed(self._heads(self.q_proj(hidden_states)), "q_norm", rotation)
        if self.source == self.layer_idx:
            key_BKTC = self._placed(self._heads(self.k_proj(hidden_states)), "k_norm", rotation)
            value_BKTC = self._heads(self.v_proj(hidden_states))
            if cache is not None:
                key_BKTC, value_BKTC = cache.update(key_BKTC, value_BKTC, self.layer_idx)
            stored[self.layer_idx] = key_BKTC, value_BKTC
        key_BKTC, value_BKTC = stored[self.source]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        output_BSHC, _ = attend(
            self,
            query_BHSC,
            key_BKTC,
            value_BKTC,
            attention_mask,
            dropout=0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(output_BSHC.flatten(2))

    def _heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _placed(self, x: Tensor, norm: str, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Norm and rotation in the config's order."""
        order = self.config.qk_norm
        if order == "before_position":
            x = getattr(self, norm)(x)
        if self.config.rotated_layers[self.layer_idx]:
            x = rotated(x, rotation)
        return getattr(self, norm)(x) if order == "after_position" else x


class OpenafmMLP(nn.Module):
    """Gated feed-forward."""

    def __init__(self, config: OpenafmConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class OpenafmDecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: OpenafmConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = OpenafmRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = OpenafmAttention(config, layer_idx)
        self.post_attention_layernorm = OpenafmRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = OpenafmMLP(config)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), **kwargs)
        return x + self.mlp(self.post_attention_layernorm(x))


class OpenafmPreTrainedModel(PreTrainedModel):
    """Base of the models: what transformers and other libraries may do with them."""

    config_class = OpenafmConfig
    base_model_prefix = "model"
    _no_split_modules = ["OpenafmDecoderLayer"]  # noqa: RUF012 - transformers declares them so
    _skip_keys_device_placement = ["cache", "past_key_values"]  # noqa: RUF012
    _supports_attention_backend = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True


class OpenafmModel(OpenafmPreTrainedModel):
    """The decoder without its head."""

    def __init__(self, config: OpenafmConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(OpenafmDecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = OpenafmRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache if use_cache is None else use_cache
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            num_seen = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(x.shape[1], device=x.device)[None] + num_seen
        masks = attention_mask if isinstance(attention_mask, dict) else self._masks(x, attention_mask, cache, position_ids)
        rotation = rotations(self.config, position_ids)
        stored: dict[int, tuple[Tensor, Tensor]] = {}
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            x = layer(
                x,
                rotation=rotation,
                attention_mask=masks[kind],
                stored=stored,
                cache=cache,
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), **{CACHE: cache if use_cache else None})

    def _masks(self, x: Tensor, attention_mask: Any, cache: Cache | None, position_ids: Tensor) -> dict[str, Any]:
        arguments = {
            "config": self.config,
            "inputs_embeds": x,
            "attention_mask": attention_mask,
            CACHE: cache,
            "position_ids": position_ids,
        }
        masks = {"full_attention": create_causal_mask(**arguments)}
        if "sliding_attention" in self.config.layer_types:
            masks["sliding_attention"] = create_sliding_window_causal_mask(**arguments)
        return masks


class OpenafmForCausalLM(OpenafmPreTrainedModel, GenerationMixin):
    """The decoder with its head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012

    def __init__(self, config: OpenafmConfig) -> None:
        super().__init__(config)
        self.model = OpenafmModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: getattr(outputs, CACHE)})
