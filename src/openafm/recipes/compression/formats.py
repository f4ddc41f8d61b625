"""The compressed formats as configs: `astc` as in the report's server model, `int2` as the baseline for 2-bit training,
`int4` and `int8` for open weights.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.bundle import Bundle, Numerics, RecoveryAdapter
from openafm.compression.astc.config import AstcConfig, LiteralAstcConfig
from openafm.compression.config import QATConfig
from openafm.compression.grouped import NEAREST, GroupedMatrix
from openafm.compression.post_training.config import GPTQConfig
from openafm.compression.post_training.groups import RangeConfig
from openafm.compression.post_training.half_quadratic import HalfQuadraticRange
from openafm.core.config import Config, nearest, override
from openafm.core.errors import UsageError
from openafm.core.progress import Progress, progress
from openafm.data.synthetic import SyntheticConfig
from openafm.models.config import DecoderConfig
from openafm.recipes.sources.own_data import data_of, sample_batches

if TYPE_CHECKING:
    from torch import Tensor

    from openafm.data.loading.batch import Batch
    from openafm.models.decoder import Decoder

Arrays: TypeAlias = dict[str, NDArray[Any]]

MIN_TOKENS = 64
"""Lower bound of the mean length of a conversation of the corpus, with any tokenizer."""


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig(Config):
    """Calibration data: `num_rows` rows of at most `row_tokens` tokens.

    They are of the user's data if the bundle was trained on it, else of the built-in corpus.
    """

    corpus: SyntheticConfig = field(default_factory=SyntheticConfig)
    num_rows: int = 16
    row_tokens: int = 1024

    def __post_init__(self) -> None:
        self.require(self.num_rows > 0, f"num_rows must be at least 1, got {self.num_rows}")
        self.require(self.row_tokens > 1, f"row_tokens must be at least 2, got {self.row_tokens}")
        self.require(self.corpus.split == "train", "the calibration corpus must be of split 'train', not 'held_out'")


@dataclass(frozen=True, kw_only=True)
class CompressedWeights:
    """The weights of a compressed bundle. `padding_bits` fill up blocks at the edges of matrices."""

    tensors: Arrays
    numerics: Numerics
    recovery: RecoveryAdapter | None = None
    padding_bits: int = 0


@dataclass(frozen=True, kw_only=True)
class CompressionConfig(Config, ABC):
    """Base of the formats."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Return the format in a sentence, with line breaks for the card."""

    @abstractmethod
    def compress(self, bundle: Bundle) -> CompressedWeights:
        """Return the compressed weights. Errors as `compress.compress`."""

    def check(self, model: DecoderConfig) -> None:
        """Check that the format takes this kind of model.

        Raises:
            UncompressibleModelError: it does not; the message names the formats that do.
        """
        from openafm.compression.low_bit import check_single_matrices

        check_single_matrices(model, "use ASTC without calibration: --format astc --no-calibration")


@dataclass(frozen=True, kw_only=True)
class AstcCompression(CompressionConfig):
    """The format of the report's server model: top singular vectors in an adapter, the rest in 6x6 ASTC blocks, a 4-bit
    embedding.

    With `calibration`, blocks minimize the error of the outputs (block-GPTQ), layer by layer. Without it, `num_workers`
    processes encode the blocks of a large matrix in parallel. `adapter` None keeps all singular vectors in the blocks.
    Models with tracks or experts must be compressed without calibration, because the inputs of stacked matrices are not
    recorded separately.
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
        calibration = "without calibration"
        if self.calibration is not None:
            calibration = f"calibrated on {self.calibration.num_rows} rows of data"
        return f"{first}matrices in ASTC 6x6 blocks {calibration},\na 4-bit embedding, 8-bit keys and values"

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

        decoder = _float_decoder(bundle)
        # Embedding and KV cache are quantized first, so that calibration runs on the inputs of the compressed model.
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
        """Encode the matrices of all layers and replace them in the decoder by their decoded values."""
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
    """Two bits without training: each matrix is rounded to four levels, clipped where Newton's method finds the least error.

    The baseline for `on_device.qat`, which trains for the same numerics.
    """

    simulation: QATConfig = field(default_factory=QATConfig)

    @property
    def summary(self) -> str:
        return "matrices in 2 bits, rounded without training, a 4-bit embedding, 8-bit activations, keys and values"

    def compress(self, bundle: Bundle) -> CompressedWeights:
        from openafm.compression.deploy import packed_tensors

        decoder = _float_decoder(bundle)
        self.simulation.install(decoder)
        return CompressedWeights(tensors=packed_tensors(decoder), numerics=self.simulation.numerics)


@dataclass(frozen=True, kw_only=True)
class GroupedCompression(CompressionConfig):
    """Base of groups of 4 and 8 bits with 8-bit activations, for the native engine.

    With `calibration`, 4-bit matrices are rounded by GPTQ, layer by layer; without it, and in 8 bits, to nearest, with the
    levels of `range` in 4 bits.
    """

    calibration: CalibrationConfig | None = None
    method: GPTQConfig = field(default_factory=GPTQConfig)
    range: RangeConfig = NEAREST

    @property
    @abstractmethod
    def weights(self) -> Literal["int4", "int8"]:
        """Return the number of bits."""

    @property
    def summary(self) -> str:
        how = "by HQQ" if isinstance(self.range, HalfQuadraticRange) else "rounded to nearest"
        if self.calibration is not None:
            how = f"by GPTQ on {self.calibration.num_rows} rows of data"
        return f"matrices in groups of {self.weights[3:]} bits {how}, the embedding too,\n8-bit activations, keys and values"

    def check(self, model: DecoderConfig) -> None:
        from openafm.compression.native_numerics import native_numerics

        native_numerics(model, self.weights)

    def compress(self, bundle: Bundle) -> CompressedWeights:
        import torch

        from openafm.compression.grouped import FORMATS as GROUPS
        from openafm.compression.keys_values import keep_in
        from openafm.compression.low_bit import layer_linears
        from openafm.compression.native_numerics import native_numerics
        from openafm.compression.post_training.calibration import compress_linears

        numerics = native_numerics(bundle.config, self.weights)
        decoder = _float_decoder(bundle)
        linears = layer_linears(decoder)
        outside = ["embedding"] if decoder.output is None else ["embedding", "output.weight"]
        tensors: Arrays = {}
        with torch.no_grad(), progress(f"round to {self.weights}", len(linears)) as bar:
            for name in outside:
                weight = decoder.get_parameter(name)
                matrix = GROUPS[numerics.embedding].quantize(weight.numpy(), name)
                tensors |= matrix.tensors(name)
                weight.copy_(torch.from_numpy(matrix.dequantize()))
            keep_in(decoder, numerics.kv)

            def rounded(name: str, weight_RC: Tensor, moment_CC: Tensor | None = None) -> Tensor:
                format = GROUPS[numerics.weights_of(name)]
                if moment_CC is None or not format.has_minimum:
                    matrix = format.quantize(weight_RC.numpy(), name, self.range)
                else:
                    method = replace(self.method, bits=format.bits, group=format.group)
                    matrix = GroupedMatrix.from_groups(method.quantize(weight_RC, moment_CC, name), format)
                tensors.update(matrix.tensors(f"{name}.weight"))
                bar.update(len(tensors) / (3 if format.has_minimum else 2), name)
                return torch.from_numpy(matrix.dequantize())

            if self.calibration is not None:
                compress_linears(decoder, calibration_batches(bundle, self.calibration), rounded)
            else:
                for name, linear in linears.items():
                    rounded(name, linear.weight.detach())
        taken = {*outside, *(f"{name}.weight" for name in linears)}
        rest = {name: weight.numpy() for name, weight in decoder.state_dict().items() if name not in taken}
        return CompressedWeights(tensors=tensors | rest, numerics=numerics)


@dataclass(frozen=True, kw_only=True)
class Int4Compression(GroupedCompression):
    """Groups of 64 with a scale and a minimum, 4.5 bits a weight; an embedding in groups of 32."""

    calibration: CalibrationConfig | None = field(default_factory=CalibrationConfig)

    @property
    def weights(self) -> Literal["int4", "int8"]:
        return "int4"


@dataclass(frozen=True, kw_only=True)
class Int8Compression(GroupedCompression):
    """Groups of 128 with a scale, 8.1 bits a weight."""

    @property
    def weights(self) -> Literal["int4", "int8"]:
        return "int8"


FORMATS: dict[str, type[CompressionConfig]] = {
    "astc": AstcCompression,
    "int2": Int2Compression,
    "int4": Int4Compression,
    "int8": Int8Compression,
}


def compression_config(format: str, changes: Mapping[str, str] | None = None) -> CompressionConfig:
    """Return the config of a format, with single values changed by dotted key.

    Raises:
        UsageError: no such format; the message names them.
        UnknownKeyError, ConfigError: a key that the format does not have, or an invalid value.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format '{format}'{nearest(format, list(FORMATS))}")
    return override(FORMATS[format](), changes or {})


def calibration_batches(bundle: Bundle, config: CalibrationConfig) -> list[Batch]:
    """Return rows in the bundle's tokens, one per batch, of the user's data if the bundle was trained on it."""
    data = data_of(bundle)
    if data is not None:
        return sample_batches(bundle, data, config.num_rows, config.row_tokens, held_out=False)
    num_examples = -(-config.num_rows * config.row_tokens // MIN_TOKENS)
    return corpus_batches(bundle, config.corpus, num_examples, config.row_tokens)[: config.num_rows]


def corpus_batches(bundle: Bundle, corpus: SyntheticConfig, num_examples: int, row_tokens: int) -> list[Batch]:
    """Return the first examples of the corpus in the bundle's tokens, one row per batch. Only answers carry loss."""
    from openafm.data.loading.loader import LoaderConfig, SourceConfig
    from openafm.data.pack import PackConfig, pack_synthetic

    with tempfile.TemporaryDirectory(prefix="openafm-") as folder:
        shards = Path(folder) / "shards"
        pack_synthetic(corpus, num_examples, shards, bundle.tokenizer, bundle.template, PackConfig(source="built_in"))
        source = SourceConfig(name="built_in", path=str(shards))
        row_tokens = min(row_tokens, bundle.config.context_length)
        loader = LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=row_tokens).build()
        return [loader.batch(step) for step in range(loader.sources[0].num_rows)]


class _AstcEncoder:
    """Encodes matrices, collects their tensors, and returns the decoded matrices."""

    def __init__(self, config: AstcConfig | LiteralAstcConfig, num_workers: int, bar: Progress) -> None:
        self._config, self._num_workers, self._bar = config, num_workers, bar
        self._num_done = 0
        self.tensors: Arrays = {}
        self.padding_bits = 0

    def __call__(self, linear: str, weight_RC: Tensor, moment_CC: Tensor | None = None) -> Tensor:
        return self.encode(f"{linear}.weight", weight_RC, moment_CC)

    def encode(self, name: str, weight: Tensor, moment_CC: Tensor | None = None) -> Tensor:
        """Encode a matrix or a stack of matrices under its name in the state dict."""
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


def _float_decoder(bundle: Bundle) -> Decoder:
    """Return a decoder with its own fp32 weights, which the caller may change."""
    import torch

    from openafm.bundle.decoder import load_decoder

    decoder = load_decoder(bundle)
    decoder.compute_dtype = torch.float32
    return decoder
