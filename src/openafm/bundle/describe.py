"""The facts that `openafm inspect` shows about a bundle or a named size."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openafm.adapters.package import WEIGHTS as ADAPTER_WEIGHTS
from openafm.bundle.bundle import Bundle
from openafm.bundle.tensor_file import read_tensors
from openafm.compression.numerics import Numerics
from openafm.models.accounting import active_parameters, all_global, flops_per_token, kv_bytes, num_parameters
from openafm.models.config import DecoderConfig, OwnKeysValuesConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import MultimodalConfig

# Numerics of the report's deployed models, used to describe a size without weights.
PLANNED_NUMERICS = Numerics(weights="bfloat16", embedding="bfloat16", activations="bfloat16", kv="int8_per_token_head")
_BITS = {"float32": 32.0, "bfloat16": 16.0}


@dataclass(frozen=True, kw_only=True)
class StoredBits:
    """Bits stored per weight of the model, without and for the recovery adapter."""

    base: float
    adapter: float

    @property
    def total(self) -> float:
        return self.base + self.adapter


def stored_bits(bundle: Bundle) -> StoredBits:
    """Return the bits per weight of everything stored: codes, scales, minima, embedding, norms and the recovery adapter.

    Raises:
        BundleError: a weight file is damaged.
    """
    parameters = num_parameters(bundle.config)
    recovery = bundle.recovery_adapter
    adapter = {} if recovery is None else read_tensors(recovery.path / ADAPTER_WEIGHTS)
    base_bytes, adapter_bytes = (
        sum(tensor.data.nbytes for tensor in tensors.values()) for tensors in (bundle.stored_tensors, adapter)
    )
    return StoredBits(base=8 * base_bytes / parameters, adapter=8 * adapter_bytes / parameters)


@dataclass(frozen=True, kw_only=True)
class ImageDescription:
    """An image in a resolution mode: views of `side` pixels, tokens, FLOPs until its tokens, and bytes of the KV cache."""

    views: int
    side: int
    tokens: int
    flops: int
    kv_bytes: int


@dataclass(frozen=True, kw_only=True)
class VisionDescription:
    """Parameters of the vision encoder and of its adapter, and an image by resolution mode."""

    encoder_parameters: int
    adapter_parameters: int
    modes: dict[str, ImageDescription]


@dataclass(frozen=True, kw_only=True)
class Description:
    """Facts about a model. Sizes are in bytes; KV bytes include scales, over all layers that store keys and values.

    A token uses `active_parameters` of the `parameters`, because each token is routed to some experts only.
    `bits_per_weight` counts everything stored, including the recovery adapter. `..._in_16_bits` is the size of the cache
    without 8-bit keys and values, `..._unshared` also without layers that read another layer's keys and values (report 2.1,
    6); savings are relative to these, from 0 to 1. `..._all_global` is without the windows of `local_layers`, of which the
    widest is `window`. Tracks synchronize after every `block_depth` layers. FLOPs are of one token's forward pass after
    half of 4,096 or 65,536 tokens; a multiply-add counts as two. `vision` is None for a model without it. `reader_bytes`
    and `ranker_bytes` are those of the files of the reader of pages and of the rankers, 0 without them.
    """

    name: str
    path: str | None
    parameters: int
    active_parameters: int
    bits_per_weight: float
    adapter_bits_per_weight: float
    kv_bytes_per_token: int
    kv_bytes_at_4096: int
    kv_bytes_at_4096_in_16_bits: int
    kv_bytes_at_4096_in_16_bits_unshared: int
    kv_saving: float
    kv_saving_to_unshared: float
    kv_bytes_at_4096_all_global: int
    kv_bytes_at_65536: int
    kv_bytes_at_65536_all_global: int
    flops_per_token_at_4096: int
    flops_per_token_at_65536: int
    signature: str | None
    layers: int
    tracks: int
    block_depth: int | None
    expert_layers: int
    experts_per_track: int
    experts_per_token: int
    local_layers: int
    window: int | None
    sharing_layers: int
    dim: int
    vocab_size: int
    context_length: int
    weights: str
    embedding: str
    activations: str
    kv: str
    vision: VisionDescription | None = None
    reader_bytes: int = 0
    ranker_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe_bundle(bundle: Bundle) -> Description:
    """Verify a bundle and return its description.

    Raises:
        BundleError: the bundle is damaged; the message names the file.
        AdapterError: the recovery adapter is damaged.
        AdapterMismatchError: the recovery adapter belongs to another base.
    """
    bundle.verify()
    described = _describe(
        bundle.config,
        bundle.numerics,
        name=bundle.name,
        path=str(bundle.path),
        bits=stored_bits(bundle),
        signature=bundle.signature,
    )
    ranker_bytes = _bytes_of(bundle.ranker) + _bytes_of(bundle.span_ranker)
    return replace(described, reader_bytes=_bytes_of(bundle.reader), ranker_bytes=ranker_bytes)


def _bytes_of(part: Path | None) -> int:
    files = () if part is None else part.iterdir()  # the adapter of the reader is in a folder
    return sum(path.stat().st_size for path in files if path.is_file())


def describe_size(name: str) -> Description:
    """Return the description of a named size such as `on_device.base`, without weights.

    Raises:
        UnknownSizeError: no size has this name.
    """
    return _describe(
        named_size(name),
        PLANNED_NUMERICS,
        name=name,
        path=None,
        bits=StoredBits(base=_BITS[PLANNED_NUMERICS.weights], adapter=0.0),
        signature=None,
    )


def _describe(
    config: DecoderConfig,
    numerics: Numerics,
    *,
    name: str,
    path: str | None,
    bits: StoredBits,
    signature: str | None,
) -> Description:
    kv_4096 = kv_bytes(config, numerics.kv, num_tokens=4096)
    experts = [layer.feed_forward for layer in config.layers if isinstance(layer.feed_forward, ExpertsConfig)]
    windows = [layer.attention.window for layer in config.layers if layer.attention.window is not None]
    without_windows = all_global(config)
    plain, unshared = (kv_bytes(model, "bfloat16", num_tokens=4096) for model in (config, _unshared(config)))
    return Description(
        name=name,
        path=path,
        parameters=num_parameters(config),
        active_parameters=active_parameters(config),
        bits_per_weight=bits.total,
        adapter_bits_per_weight=bits.adapter,
        kv_bytes_per_token=kv_bytes(config, numerics.kv, num_tokens=1),
        kv_bytes_at_4096=kv_4096,
        kv_bytes_at_4096_in_16_bits=plain,
        kv_bytes_at_4096_in_16_bits_unshared=unshared,
        kv_saving=_saving(kv_4096, plain),
        kv_saving_to_unshared=_saving(kv_4096, unshared),
        kv_bytes_at_4096_all_global=kv_bytes(without_windows, numerics.kv, num_tokens=4096),
        kv_bytes_at_65536=kv_bytes(config, numerics.kv, num_tokens=65_536),
        kv_bytes_at_65536_all_global=kv_bytes(without_windows, numerics.kv, num_tokens=65_536),
        flops_per_token_at_4096=round(flops_per_token(config, 4096 / 2)),
        flops_per_token_at_65536=round(flops_per_token(config, 65_536 / 2)),
        signature=signature,
        layers=len(config.layers),
        tracks=config.num_tracks,
        block_depth=None if config.tracks is None else config.tracks.block_depth,
        expert_layers=len(experts),
        experts_per_track=max((e.num_experts for e in experts), default=0),
        experts_per_token=max((e.router.num_chosen for e in experts), default=0),
        local_layers=len(windows),
        window=max(windows, default=None),
        sharing_layers=len(config.layers) - len(config.own_layers),
        dim=config.dim,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        weights=numerics.weights,
        embedding=numerics.embedding,
        activations=numerics.activations,
        kv=numerics.kv,
        vision=_vision(config, numerics) if isinstance(config, MultimodalConfig) else None,
    )


def _vision(config: MultimodalConfig, numerics: Numerics) -> VisionDescription:
    return VisionDescription(
        encoder_parameters=config.vision.num_parameters(),
        adapter_parameters=config.adapter.num_parameters(config.vision.dim, config.dim),
        modes={
            mode.name: ImageDescription(
                views=mode.num_views,
                side=mode.side,
                tokens=mode.num_tokens,
                flops=round(config.image_flops(mode)),
                kv_bytes=kv_bytes(config, numerics.kv, mode.num_tokens),
            )
            for mode in config.image_modes
        },
    )


def _saving(part: int, whole: int) -> float:
    return max(0.0, 1 - part / whole) if whole else 0.0  # a model of letters stores no keys and values


def _unshared(config: DecoderConfig) -> DecoderConfig:
    """The model with its own keys and values in every layer."""
    layers = []
    for index, layer in enumerate(config.layers):
        own = OwnKeysValuesConfig(num_heads=config.kv_heads(index) // config.num_tracks)
        layers.append(replace(layer, attention=replace(layer.attention, keys_values=own)))
    return replace(config, layers=tuple(layers))
