"""Compress a bundle after training (report 6). The source bundle is read only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from openafm.bundle import Bundle, bundle_place, write_bundle
from openafm.bundle.describe import stored_bits
from openafm.compression.errors import UncompressibleModelError
from openafm.compression.int8_rows import with_vision_in_8_bits
from openafm.core.errors import UsageError
from openafm.models.accounting import num_parameters
from openafm.recipes.compression.formats import FORMATS, CompressedWeights, CompressionConfig
from openafm.recipes.sources.own_data import data_of, write_data


@dataclass(frozen=True, kw_only=True)
class CompressResult:
    """The compressed bundle and its size. Bits per weight count everything stored, the adapter included; bytes are of files.

    `padding_bits_per_weight` is the part that fills up blocks at the edges of matrices.
    """

    bundle: str
    signature: str
    format: str
    source: str
    source_signature: str
    bits_per_weight: float
    adapter_bits_per_weight: float
    padding_bits_per_weight: float
    bytes: int
    source_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compress(bundle: Bundle, config: CompressionConfig, name: str) -> CompressResult:
    """Compress a bundle and write the result as the bundle `name`.

    Raises:
        UncompressibleModelError: it is compressed, has a recovery adapter or no decoder, or the format does not take it.
        CompressionError, SingularRankError, NonFiniteWeightError: a tensor cannot be compressed; the message names it.
        CompressionError: calibration does not fit into memory.
        BundleError: the bundle is damaged.
        UsageError: `name` is not a valid bundle name, or is the bundle itself.
    """
    place = bundle_place(name)
    if not bundle.config.layers:
        raise UncompressibleModelError(f"{bundle.name} has no decoder to compress; compress a model that answers")
    if bundle.numerics.is_compressed or bundle.recovery_adapter is not None:
        has = f"weights {bundle.numerics.weights}, embedding {bundle.numerics.embedding}"
        has += ", a recovery adapter" if bundle.recovery_adapter is not None else ""
        raise UncompressibleModelError(f"{bundle.name} is already compressed ({has}); compress the bundle it was made from")
    if place.resolve() == bundle.path.resolve():
        raise UsageError(f"'{name}' is the source bundle and must not be overwritten; choose another --name")
    config.check(bundle.config)
    bundle.verify()
    weights = config.compress(bundle)
    tensors, numerics = with_vision_in_8_bits(weights.tensors, weights.numerics)
    compressed = write_bundle(
        place,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=tensors,
        numerics=numerics,
        recovery=weights.recovery,
        card=_card(name, bundle, config, weights),
    )
    data = data_of(bundle)
    if data is not None:
        write_data(compressed, data)
    bits = stored_bits(compressed)
    return CompressResult(
        bundle=str(compressed.path),
        signature=compressed.signature,
        format=_format_name(config),
        source=bundle.name,
        source_signature=bundle.signature,
        bits_per_weight=bits.total,
        adapter_bits_per_weight=bits.adapter,
        padding_bits_per_weight=weights.padding_bits / num_parameters(bundle.config),
        bytes=weight_bytes(compressed),
        source_bytes=weight_bytes(bundle),
    )


def weight_bytes(bundle: Bundle) -> int:
    """Return the size of all weight files on disk, the recovery adapter included."""
    return sum(file.stat().st_size for file in bundle.path.rglob("*.safetensors"))


def _format_name(config: CompressionConfig) -> str:
    return next(name for name, kind in FORMATS.items() if isinstance(config, kind))


def _card(name: str, source: Bundle, config: CompressionConfig, weights: CompressedWeights) -> str:
    parameters = num_parameters(source.config)
    bits = 8 * sum(array.nbytes for array in weights.tensors.values()) / parameters
    adapter_bits = 0.0
    if weights.recovery is not None:
        bits_of_number = {"float16": 16, "float32": 32}[weights.recovery.config.precision]
        adapter_bits = bits_of_number * sum(array.size for array in weights.recovery.weights.values()) / parameters
    return f"""# {name}

Compressed after training, without further training, to the format `{_format_name(config)}`:
{config.summary}.

- source: `{source.name}`, signature `{source.signature}`
- bits per weight, everything counted: {bits + adapter_bits:.2f}, of them the adapter's {adapter_bits:.2f}

`openafm train on_device.recovery_adapter --from {name}` trains an adapter on it; `openafm compress report` shows what
compression costs.

The card of the uncompressed bundle:

{_quoted(source.card())}
"""


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())
