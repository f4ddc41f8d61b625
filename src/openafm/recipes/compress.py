"""Compression after training: a bundle in full precision in, a bundle in few bits out (report section 6).

Formats are configs: `astc` as the report compresses its server model, `int2` as the plain baseline that quantization-aware
training has to beat. The source is read and never written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.bundle import Bundle, Numerics, RecoveryAdapter, bundle_place, write_bundle
from openafm.bundle.describe import stored_bits
from openafm.compression.astc.config import AstcConfig, LiteralAstcConfig
from openafm.compression.config import QATConfig
from openafm.compression.errors import UncompressibleModelError
from openafm.core.config import Config, ConfigError, nearest, override
from openafm.core.errors import UsageError
from openafm.core.progress import Progress, progress
from openafm.data.synthetic import SyntheticConfig
from openafm.models.accounting import num_parameters
from openafm.models.config import DecoderConfig

if TYPE_CHECKING:
    from torch import Tensor

    from openafm.data.batch import Batch
    from openafm.models.decoder import Decoder

Arrays: TypeAlias = dict[str, NDArray[Any]]

_FEWEST_TOKENS = 64  # conversations of the corpus are longer than that on average, whatever the tokenizer


class UnknownFormatError(UsageError):
    """No compressed format of this name."""


class SourceBundleError(UsageError):
    """The compressed bundle would stand in the place of the one that it is made from."""


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig(Config):
    """Rows of the built-in corpus that say what enters the matrices: `num_rows` of at most `row_tokens` tokens."""

    corpus: SyntheticConfig = field(default_factory=SyntheticConfig)
    num_rows: int = 16
    row_tokens: int = 1024

    def __post_init__(self) -> None:
        self.require(self.num_rows > 0, f"num_rows must be at least 1, got {self.num_rows}")
        self.require(self.row_tokens > 1, f"row_tokens must be at least 2, got {self.row_tokens}")
        self.require(self.corpus.split == "train", "calibration must not read the held-out split")


@dataclass(frozen=True, kw_only=True)
class CompressedWeights:
    """What a compressed bundle holds beside config, tokenizer and template."""

    tensors: Arrays
    numerics: Numerics
    recovery: RecoveryAdapter | None = None
    padding_bits: int = 0


@dataclass(frozen=True, kw_only=True)
class CompressionConfig(Config):
    """Base of the formats."""

    @property
    def summary(self) -> str:
        """What is done, in a sentence for the card, on lines of its width."""
        raise ConfigError(f"{type(self).__name__} is abstract; use AstcCompression or Int2Compression")

    def check(self, model: DecoderConfig) -> None:
        """Refuse a kind of model that the format does not take, before any work.

        Raises:
            UncompressibleModelError: the message says which formats do.
        """
        from openafm.compression.low_bit import check_single_matrices

        check_single_matrices(model, "use ASTC without calibration: --format astc --set calibration=null")

    def compress(self, bundle: Bundle) -> CompressedWeights:
        """Errors as the function `compress` of this module."""
        raise ConfigError(f"{type(self).__name__} is abstract; use AstcCompression or Int2Compression")


@dataclass(frozen=True, kw_only=True)
class AstcCompression(CompressionConfig):
    """The server model's way: top singular vectors into an adapter, the rest in 6x6 ASTC blocks, a 4-bit embedding.

    With `calibration` blocks are chosen by the error of the outputs (block-GPTQ), one layer after another. `adapter` None
    leaves everything to the blocks. Without calibration `num_workers` processes share the blocks of a large matrix; with it
    columns depend on each other. Models with tracks or experts, the server model among them, are compressed without it: what
    enters each matrix of a stack is not told apart.
    """

    adapter: LoRAConfig | None = field(default_factory=LoRAConfig)
    blocks: AstcConfig | LiteralAstcConfig = field(default_factory=AstcConfig)
    calibration: CalibrationConfig | None = field(default_factory=CalibrationConfig)
    num_workers: int = 1

    def __post_init__(self) -> None:
        self.require(self.num_workers > 0, f"num_workers must be at least 1, got {self.num_workers}")
        self.require(
            self.calibration is None or isinstance(self.blocks, AstcConfig),
            "the literal ASTC recipe takes no calibration; set calibration to null",
        )

    @property
    def numerics(self) -> Numerics:
        return Numerics(weights="astc_6x6", embedding="int4_group32", activations="bfloat16", kv="int8_per_token_head")

    @property
    def summary(self) -> str:
        first = (
            "" if self.adapter is None else f"the top {self.adapter.rank} singular vectors of each matrix in an adapter, "
        )
        with_what = "without calibration"
        if self.calibration is not None:
            with_what = f"calibrated on {self.calibration.num_rows} rows of the built-in corpus"
        return f"{first}matrices in ASTC 6x6 blocks {with_what},\na 4-bit embedding, 8-bit keys and values"

    def check(self, model: DecoderConfig) -> None:
        if self.calibration is not None:
            super().check(model)

    def compress(self, bundle: Bundle) -> CompressedWeights:
        import torch

        from openafm.adapters.lora import adapter_weights
        from openafm.adapters.singular import move_singular_vectors
        from openafm.compression.int4_embedding import quantize_embedding
        from openafm.compression.keys_values import keep_in
        from openafm.compression.low_bit import layer_matrices

        decoder = _plain_decoder(bundle)
        # The embedding and the slots first: calibration then sees what the matrices will.
        embedding = quantize_embedding(decoder.embedding.detach().numpy())
        with torch.no_grad():
            decoder.embedding.copy_(torch.from_numpy(embedding.dequantize()))
        keep_in(decoder, self.numerics.kv)
        recovery = None
        if self.adapter is not None:
            move_singular_vectors(decoder, self.adapter)
            moved = {name: weight.numpy() for name, weight in adapter_weights(decoder).items()}
            recovery = RecoveryAdapter(config=self.adapter, weights=moved)
        taken = {"embedding", *layer_matrices(decoder), *(recovery.weights if recovery else ())}
        rest = {name: weight.numpy() for name, weight in decoder.state_dict().items() if name not in taken}
        encoded = self._encode(decoder, bundle)
        return CompressedWeights(
            tensors=encoded.tensors | embedding.tensors("embedding") | rest,
            numerics=self.numerics,
            recovery=recovery,
            padding_bits=encoded.padding_bits,
        )

    def _encode(self, decoder: Decoder, bundle: Bundle) -> _AstcEncoder:
        """The tensors of all matrices of the layers; in the decoder the decoded ones take their place."""
        from openafm.compression.low_bit import layer_matrices
        from openafm.compression.post_training.calibration import compress_linears

        batches = None if self.calibration is None else calibration_batches(bundle, self.calibration)
        matrices = layer_matrices(decoder)
        with progress("encode ASTC", sum(weight.numel() for weight in matrices.values())) as bar:
            encoder = _AstcEncoder(self.blocks, self.num_workers, bar)
            if batches is not None:
                compress_linears(decoder, batches, encoder)
            else:
                for name, weight in matrices.items():
                    encoder.encode(name, weight.detach())
        return encoder


@dataclass(frozen=True, kw_only=True)
class Int2Compression(CompressionConfig):
    """Two bits with no training at all: each matrix rounded to four levels at the clip that Newton's method finds.

    The numerics are those of a model trained for them, the answers are not; `on_device.qat` trains.
    """

    simulation: QATConfig = field(default_factory=QATConfig)

    @property
    def summary(self) -> str:
        return "matrices in 2 bits, rounded and not trained, a 4-bit embedding, 8-bit activations, keys and values"

    def compress(self, bundle: Bundle) -> CompressedWeights:
        from openafm.compression.deploy import packed_tensors

        decoder = _plain_decoder(bundle)
        self.simulation.install(decoder)
        return CompressedWeights(tensors=packed_tensors(decoder), numerics=self.simulation.numerics)


FORMATS: dict[str, type[CompressionConfig]] = {"astc": AstcCompression, "int2": Int2Compression}


@dataclass(frozen=True, kw_only=True)
class CompressResult:
    """What was made of what. Bits per weight count all that is stored, the adapter included; bytes are those of files.

    `padding_bits_per_weight` is the part of them that only fills up blocks at the edges of matrices.
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


def compression_config(format: str, changes: Mapping[str, str] | None = None) -> CompressionConfig:
    """The config of a format, with single values changed by dotted key.

    Raises:
        UnknownFormatError: the message names the formats.
        UnknownKeyError, ConfigError: a change of something that the format does not have, or to an impossible value.
    """
    if format not in FORMATS:
        raise UnknownFormatError(f"unknown format '{format}'{nearest(format, list(FORMATS))}")
    return override(FORMATS[format](), changes or {})


def compress(bundle: Bundle, config: CompressionConfig, name: str) -> CompressResult:
    """Compress a bundle into another one, called `name`.

    Raises:
        UncompressibleModelError: the bundle has few bits already, or a recovery adapter.
        SourceBundleError: `name` is the bundle itself.
        UncompressibleModelError: the format does not take models of this kind.
        CompressionError, SingularRankError, NonFiniteWeightError: a tensor that cannot be
            compressed; the message names it.
        CompressionError: calibration does not fit into memory.
        BundleError: the bundle is damaged.
        UsageError: `name` is no name for a bundle.
    """
    place = bundle_place(name)
    if bundle.numerics.is_compressed or bundle.recovery_adapter is not None:
        has = f"weights {bundle.numerics.weights}, embedding {bundle.numerics.embedding}"
        has += ", a recovery adapter" if bundle.recovery_adapter is not None else ""
        raise UncompressibleModelError(f"{bundle.name} is compressed already ({has}); compress what it was made from")
    if place.resolve() == bundle.path.resolve():
        raise SourceBundleError(f"'{name}' is the bundle to compress itself, which stays as it is; choose another --name")
    config.check(bundle.config)
    bundle.verify()
    made = config.compress(bundle)
    compressed = write_bundle(
        place,
        config=bundle.config,
        tokenizer=bundle.tokenizer,
        template=bundle.template,
        tensors=made.tensors,
        numerics=made.numerics,
        recovery=made.recovery,
        card=_card(name, bundle, config, made),
    )
    bits = stored_bits(compressed)
    return CompressResult(
        bundle=str(compressed.path),
        signature=compressed.signature,
        format=_format_name(config),
        source=bundle.name,
        source_signature=bundle.signature,
        bits_per_weight=bits.total,
        adapter_bits_per_weight=bits.adapter,
        padding_bits_per_weight=made.padding_bits / num_parameters(bundle.config),
        bytes=weight_bytes(compressed),
        source_bytes=weight_bytes(bundle),
    )


def weight_bytes(bundle: Bundle) -> int:
    """The size of all weight files on disk, the recovery adapter's included."""
    return sum(file.stat().st_size for file in bundle.path.rglob("*.safetensors"))


def calibration_batches(bundle: Bundle, config: CalibrationConfig) -> list[Batch]:
    """Rows of the built-in corpus in the bundle's tokens, one a batch."""
    num_examples = -(-config.num_rows * config.row_tokens // _FEWEST_TOKENS)
    return corpus_batches(bundle, config.corpus, num_examples, config.row_tokens)[: config.num_rows]


def corpus_batches(bundle: Bundle, corpus: SyntheticConfig, num_examples: int, row_tokens: int) -> list[Batch]:
    """All of the first examples of the corpus in the bundle's tokens, one row a batch; loss on the answers only."""
    from openafm.data.loader import LoaderConfig, SourceConfig
    from openafm.data.pack import PackConfig, pack_synthetic

    with tempfile.TemporaryDirectory(prefix="openafm-") as folder:
        shards = Path(folder) / "shards"
        pack_synthetic(corpus, num_examples, shards, bundle.tokenizer, bundle.template, PackConfig(source="built_in"))
        source = SourceConfig(name="built_in", path=str(shards))
        row_tokens = min(row_tokens, bundle.config.context_length)
        loader = LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=row_tokens).build()
        return [loader.batch(step) for step in range(loader.sources[0].num_rows)]


class _AstcEncoder:
    """Encodes matrices one by one, gathers their tensors, and gives back what they decode to."""

    def __init__(self, config: AstcConfig | LiteralAstcConfig, num_workers: int, bar: Progress) -> None:
        self._config, self._num_workers, self._bar = config, num_workers, bar
        self._num_done = 0
        self.tensors: Arrays = {}
        self.padding_bits = 0

    def __call__(self, linear: str, weight_RC: Tensor, moment_CC: Tensor | None = None) -> Tensor:
        return self.encode(f"{linear}.weight", weight_RC, moment_CC)

    def encode(self, name: str, weight: Tensor, moment_CC: Tensor | None = None) -> Tensor:
        """A matrix or a stack of them, by its name in the state dict."""
        import torch

        from openafm.compression.astc.matrix import decode_matrix, encode_matrix

        matrix = encode_matrix(
            weight.numpy(),
            self._config,
            calibration=None if moment_CC is None else moment_CC.numpy(),
            num_workers=self._num_workers,
            on_progress=lambda done: self._bar.update(self._num_done + done, name),
            name=name,
        )
        self._num_done += weight.numel()
        self.padding_bits += matrix.padding_bits
        self.tensors |= matrix.tensors(name)
        return torch.from_numpy(decode_matrix(matrix))


def _plain_decoder(bundle: Bundle) -> Decoder:
    """The bundle's decoder with fp32 weights of its own, to be changed."""
    import torch

    from openafm.bundle.decoder import load_decoder

    decoder = load_decoder(bundle)
    decoder.compute_dtype = torch.float32
    return decoder


def _format_name(config: CompressionConfig) -> str:
    return next(name for name, kind in FORMATS.items() if isinstance(config, kind))


def _card(name: str, source: Bundle, config: CompressionConfig, made: CompressedWeights) -> str:
    parameters = num_parameters(source.config)
    bits = 8 * sum(array.nbytes for array in made.tensors.values()) / parameters
    adapter_bits = 0.0
    if made.recovery is not None:
        bits_of_number = {"float16": 16, "float32": 32}[made.recovery.config.precision]
        adapter_bits = bits_of_number * sum(array.size for array in made.recovery.weights.values()) / parameters
    return f"""# {name}

Compressed after training, without any more of it, to the format `{_format_name(config)}`:
{config.summary}.

- made of: `{source.name}`, signature `{source.signature}`
- bits per weight, all counted: {bits + adapter_bits:.2f}, of them the adapter's {adapter_bits:.2f}

`openafm train on_device.recovery_adapter --from {name}` trains an adapter over it; `openafm compress report` shows
what is lost.

What the uncompressed bundle says of itself:

{_quoted(source.card())}
"""


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())
