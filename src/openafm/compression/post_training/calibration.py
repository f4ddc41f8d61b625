"""Calibration: second moments of the inputs of a decoder's matrices over batches of data.

Shapes: B rows, S tokens of a row, N real positions of a batch, D model dim, R outputs, C inputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from openafm.compression.errors import CompressionError
from openafm.compression.low_bit import layer_linears
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.attention.context import PackedDocuments
from openafm.models.decoder import Decoder, Layer
from openafm.models.layers import Linear

Compress: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]
"""(name, weight [R, C], second moment [C, C]) -> the compressed values of the weight."""


@torch.no_grad()
def collect_second_moments(
    decoder: Decoder, batches: Iterable[Batch], names: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Return H = sum x x^T [C, C] in fp32 over the inputs x of Linears of the layers, by name (default: all of them).

    Padding is left out.

    Raises:
        UsageError: no Linear of the layers has a given name.
        CompressionError: the batches hold no tokens, or memory is exhausted.
    """
    linears = layer_linears(decoder)
    for name in names or ():
        if name not in linears:
            raise UsageError(f"the decoder's layers have no Linear '{name}'{nearest(name, list(linears))}")
    moments = Moments({name: linear for name, linear in linears.items() if names is None or name in names})
    with out_of_memory_explained("calibration"), moments.gathering():
        for batch in batches:
            moments.positions_N = _real_positions(batch, decoder)
            decoder.hidden(_tokens(batch, decoder), _context(batch, decoder))
    return moments.complete()


@torch.no_grad()
def compress_linears(decoder: Decoder, batches: Iterable[Batch], compress: Compress) -> None:
    """Compress every Linear of the layers, in place, layer by layer.

    Each layer is calibrated on the outputs of the compressed layers before it, so that it compensates their errors. Memory
    holds one layer's inputs, and all keys and values, of all batches. After an error the decoder is partly compressed: pass
    a copy.

    Raises:
        CompressionError: the batches hold no tokens, or memory is exhausted.
    """
    batches = list(batches)
    with out_of_memory_explained("calibration"):
        contexts = [_context(batch, decoder) for batch in batches]
        inputs_BSD = [decoder.embed(_tokens(batch, decoder)) for batch in batches]
        for index, layer in enumerate(cast("Iterable[Layer]", decoder.layers)):
            prefix = f"layers.{index}."
            linears = {name: linear for name, linear in layer_linears(decoder).items() if name.startswith(prefix)}
            moments = Moments(linears)
            with moments.gathering():
                for batch, context, x_BSD in zip(batches, contexts, inputs_BSD, strict=True):
                    moments.positions_N = _real_positions(batch, decoder)
                    layer(x_BSD, context)
            for name, moment_CC in moments.complete().items():
                linears[name].weight.copy_(compress(name, linears[name].weight.detach().clone(), moment_CC))
            inputs_BSD = [layer(x_BSD, context) for context, x_BSD in zip(contexts, inputs_BSD, strict=True)]


@contextmanager
def out_of_memory_explained(what: str) -> Iterator[None]:
    """Translate out-of-memory errors of all libraries to `CompressionError`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
            raise CompressionError(
                f"{what} does not fit into memory; use fewer or shorter calibration rows, or a machine with more memory"
            ) from error
        raise


class Moments:
    """Sums of x x^T by Linear, collected by hooks at the given positions of the current batch."""

    def __init__(self, linears: Mapping[str, Linear]) -> None:
        self._linears = linears
        self._moments = {
            name: linear.weight.new_zeros(linear.in_dim, linear.in_dim, dtype=torch.float32)
            for name, linear in linears.items()
        }
        self.positions_N = torch.empty(0, dtype=torch.long)
        self._num_tokens = 0

    @contextmanager
    def gathering(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, linear in self._linears.items():
                hooks.callback(linear.register_forward_pre_hook(self._hook(self._moments[name])).remove)
            yield

    def complete(self) -> dict[str, Tensor]:
        if self._num_tokens == 0:
            raise CompressionError("no calibration tokens; pass at least one batch with a document")
        return self._moments

    def _hook(self, moment_CC: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def gather(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x_NC = inputs[0].flatten(0, -2)[self.positions_N].float()
            moment_CC.addmm_(x_NC.T, x_NC)
            self._num_tokens += len(x_NC)

        return gather


def _tokens(batch: Batch, decoder: Decoder) -> Tensor:
    return torch.from_numpy(batch.tokens_BS).to(decoder.device)


def _context(batch: Batch, decoder: Decoder) -> PackedDocuments:
    num_rows, row_length = batch.tokens_BS.shape
    return PackedDocuments(batch.documents, num_rows, row_length, decoder.device)


def _real_positions(batch: Batch, decoder: Decoder) -> Tensor:
    """Positions of documents in the flattened batch."""
    row_length = batch.tokens_BS.shape[1]
    spans = [torch.arange(d.start, d.stop) + d.row * row_length for d in batch.documents]
    return torch.cat([*spans, torch.empty(0, dtype=torch.long)]).to(decoder.device)
