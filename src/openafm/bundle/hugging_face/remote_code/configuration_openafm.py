"""Config of decoders of openafm for transformers."""

from typing import Any

from transformers import PretrainedConfig


class OpenafmConfig(PretrainedConfig):
    """A dense decoder whose layers have their own keys and values or read those of an earlier layer.

    Attributes:
        keys_values_layers: for each layer, the layer whose keys and values it reads; its own index if it has its own.
        rotated_layers: for each layer, 1 if queries and keys are rotated.
        qk_norm: "after_position", "before_position" or None.
    """

    model_type = "openafm"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - transformers declares it so
    base_model_tp_plan = {  # noqa: RUF012
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }

    def __init__(
        self,
        vocab_size: int = 4096,
        hidden_size: int = 256,
        intermediate_size: int = 832,
        num_hidden_layers: int = 8,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        head_dim: int = 64,
        hidden_act: str = "silu",
        max_position_embeddings: int = 4096,
        rms_norm_eps: float = 1e-5,
        qk_norm: str | None = "after_position",
        qk_norm_eps: float = 1e-5,
        rope_parameters: dict[str, Any] | None = None,
        rotated_layers: list[int] | None = None,
        keys_values_layers: list[int] | None = None,
        layer_types: list[str] | None = None,
        sliding_window: int | None = None,
        input_bias: bool = False,
        output_bias: bool = False,
        mlp_bias: bool = False,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = True,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.hidden_act = hidden_act
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        self.qk_norm = qk_norm
        self.qk_norm_eps = qk_norm_eps
        self.rope_parameters = rope_parameters or {"rope_type": "default", "rope_theta": 500_000.0}
        self.rotated_layers = rotated_layers or [1] * num_hidden_layers
        self.keys_values_layers = keys_values_layers or list(range(num_hidden_layers))
        self.layer_types = layer_types or ["full_attention"] * num_hidden_layers
        self.sliding_window = sliding_window
        self.input_bias = input_bias
        self.output_bias = output_bias
        self.mlp_bias = mlp_bias
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
