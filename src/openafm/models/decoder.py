"""The decoder: embedding, pre-norm layers, final norm, head (report 2.1), with or without parallel tracks (report 2.2).

Shapes: T tracks, B batch, S sequence, N positions, D model dim, V vocabulary. States inside a track block are x_TBSD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.models.attention.context import AttentionContext, BatchContext, WholeRows
from openafm.models.attention.row_parts import KeyValueExchange
from openafm.models.attention.spans import EmbeddingSpan, ImageKey, SpanError, check_spans
from openafm.models.config import DecoderConfig, LayerConfig, TiedHeadConfig
from openafm.models.layers import Linear, RMSNorm, stack_tracks
from openafm.models.tracks import Tracks, TracksAsHeads
from openafm.models.transfer import to_device

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Up to this many tokens in one call, such as the drafts that an engine verifies, are computed as exactly as one token alone,
# so that results do not depend on the number of tokens per step.
FEW_TOKENS = 32

InsertedEmbedding: TypeAlias = tuple[EmbeddingSpan, Tensor]
"""A span of a sequence and the embeddings [length, D] that replace those of its tokens, such as an image's."""


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

    Storing keys and values and reading them are separate steps: positions without a wanted output only store.
    """

    def __init__(self, config: LayerConfig, dim: int, index: int, norm_eps: float) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(dim, norm_eps)
        self.attention = config.attention.build(dim, index)
        self.feed_forward_norm = RMSNorm(dim, norm_eps)
        self.feed_forward = config.feed_forward.build(dim)

    def forward(self, x_BSD: Tensor, context: AttentionContext) -> Tensor:
        normed_BSD = self.attention_norm(x_BSD)
        self.attention.store(normed_BSD, context)
        return self._add(x_BSD, normed_BSD, context)

    def store(self, x_BSD: Tensor, context: AttentionContext) -> None:
        """Store these positions' keys and values in the context."""
        self.attention.store(self.attention_norm(x_BSD), context)

    def read(self, x_BSD: Tensor, context: AttentionContext) -> Tensor:
        """Return the output at positions whose keys and values are stored already."""
        return self._add(x_BSD, self.attention_norm(x_BSD), context)

    def _add(self, x_BSD: Tensor, normed_BSD: Tensor, context: AttentionContext) -> Tensor:
        x_BSD = x_BSD + self.attention(normed_BSD, context)
        return x_BSD + self.feed_forward(self.feed_forward_norm(x_BSD))

    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        self.attention_norm.initialize()
        self.attention.initialize(generator, residual_scale)
        self.feed_forward_norm.initialize()
        self.feed_forward.initialize(generator, residual_scale)


class Decoder(nn.Module):
    """A language model built from a `DecoderConfig`. Weights are fp32 masters; it computes in `compute_dtype`.

    Under context parallelism `key_value_exchange` connects the ranks that divide the positions of rows. The ranks of
    `vocabulary_group`, which have the same positions, may divide the vocabulary of a loss.
    """

    def __init__(self, config: DecoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        self.key_value_exchange: KeyValueExchange | None = None
        self.vocabulary_group: ProcessGroup | None = None
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.layers = nn.ModuleList(
            Layer(layer, config.dim, index, config.norm_eps) for index, layer in enumerate(config.layers)
        )
        self.tracks: Tracks | None = None
        if config.tracks is not None:
            stack_tracks(self.layers, config.tracks.num_tracks)
            self.tracks = Tracks(config.tracks, len(config.layers), config.dim)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = None if isinstance(config.head, TiedHeadConfig) else Linear(config.dim, config.vocab_size)
        if not self.embedding.is_meta:
            self.initialize(seed)

    def forward(
        self, tokens_BS: Tensor, context: AttentionContext | None = None, inserted: Sequence[InsertedEmbedding] = ()
    ) -> Tensor:
        """Return the logits of every position, [B, S, V] in `compute_dtype`. Without a context each row is one document."""
        return self.head(self.hidden(tokens_BS, context, inserted))

    def hidden(
        self, tokens_BS: Tensor, context: AttentionContext | None = None, inserted: Sequence[InsertedEmbedding] = ()
    ) -> Tensor:
        """Return the normalized output of the last layer at every position, [B, S, D]: the input of the head."""
        context = self._seen_by_layers(context or _whole_rows(tokens_BS, inserted))
        x = self.embed(tokens_BS, inserted)
        for index, layer in enumerate(self.layers):
            x = self._leave(index, layer(self._enter(index, x), context))
        return self.norm(x)

    def last_hidden(
        self, tokens_BS: Tensor, context: AttentionContext | None = None, inserted: Sequence[InsertedEmbedding] = ()
    ) -> Tensor:
        """Return `hidden` at the last position of every document only, [1, documents, D].

        The other positions stop at the last layer that stores keys and values: the prompt skips block 2 (report 2.1), and
        the attention and feed-forward of the layer before it.
        """
        context = self._seen_by_layers(context or _whole_rows(tokens_BS, inserted))
        x = self._prefill(self.embed(tokens_BS, inserted), context)
        last = context.last()
        return self._finish(x, last.indices_D, last.context)

    def hidden_at(
        self, tokens_BS: Tensor, context: BatchContext, indices_N: Tensor, inserted: Sequence[InsertedEmbedding] = ()
    ) -> Tensor:
        """Return `hidden` at some positions of the flattened batch, [1, N, D]: in training those that carry loss.

        `indices_N` ascend, else the result is wrong; they are on the host, since from a GPU they would be copied back.
        """
        x = self._prefill(self.embed(tokens_BS, inserted), self._seen_by_layers(context))
        return self._finish(x, to_device(indices_N, x.device), self._seen_by_layers(context.narrow(indices_N)))

    def _prefill(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Store the keys and values of all layers. Return the input of the last layer that stores any."""
        *before, last = cast("Iterable[Layer]", self.layers[: self.config.num_prefill_layers])
        for index, layer in enumerate(before):
            x = self._leave(index, layer(self._enter(index, x), context))
        x = self._enter(self.config.num_prefill_layers - 1, x)
        last.store(x, context)
        return x

    def _finish(self, x: Tensor, indices_N: Tensor, context: AttentionContext) -> Tensor:
        """Compute these positions from the output of `_prefill` to the final norm. Return x_1ND."""
        first = self.config.num_prefill_layers - 1
        x = x.flatten(-3, -2)[..., indices_N, :].unsqueeze(-3)
        for index, layer in enumerate(cast("Iterable[Layer]", self.layers[first:]), start=first):
            x = self._leave(index, layer.read(x if index == first else self._enter(index, x), context))
        return self.norm(x)

    def _seen_by_layers(self, context: AttentionContext) -> AttentionContext:
        return context if self.tracks is None else TracksAsHeads(context, self.tracks.num_local)

    def _enter(self, layer: int, x: Tensor) -> Tensor:
        return x if self.tracks is None else self.tracks.enter(layer, x)

    def _leave(self, layer: int, x: Tensor) -> Tensor:
        return x if self.tracks is None else self.tracks.leave(layer, x)

    def sum_over_tracks(self, x: Tensor) -> Tensor:
        """Return the sum over all tracks of `x`, a sum over the local tracks."""
        return x if self.tracks is None else self.tracks.reduce_from_tracks(x)

    @property
    def local_config(self) -> DecoderConfig:
        """The config with the number of local tracks, which determines the size of caches."""
        if self.tracks is None or self.config.tracks is None:
            return self.config
        return replace(self.config, tracks=replace(self.config.tracks, num_tracks=self.tracks.num_local))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.norm.weight.device

    def embed(self, tokens_BS: Tensor, inserted: Sequence[InsertedEmbedding] = ()) -> Tensor:
        """Return the input of the first layer, x_BSD, with the embeddings of the `inserted` spans in place of the tokens'.

        Raises:
            SpanError: a span lies outside of its row, overlaps another, or its tensor has another shape.
        """
        x_BSD = F.embedding(tokens_BS, self.embedding).to(self.compute_dtype)
        if not inserted:
            return x_BSD
        check_spans([span for span, _ in inserted], *tokens_BS.shape)
        x_BSD = x_BSD.clone()
        for span, embeddings_LD in inserted:
            expected = (span.stop - span.start, self.config.dim)
            if tuple(embeddings_LD.shape) != expected:
                raise SpanError(f"{span} needs embeddings of shape {list(expected)}, got {list(embeddings_LD.shape)}")
            x_BSD[span.row, span.start : span.stop] = embeddings_LD.to(x_BSD.dtype)
        return x_BSD

    def embed_images(self, spans: Sequence[EmbeddingSpan], images: Mapping[ImageKey, Tensor]) -> list[InsertedEmbedding]:
        """Return the embeddings of the images of spans; a decoder without a vision encoder takes none.

        Raises:
            SpanError: there are spans.
        """
        if spans:
            raise SpanError("this model has no vision encoder; train a multimodal model, or use data without images")
        return []

    def head(self, x_BSD: Tensor) -> Tensor:
        """Return logits in the dtype of x, [..., V]."""
        return F.linear(x_BSD, self.head_weight.to(x_BSD.dtype))

    @property
    def head_weight(self) -> Tensor:
        """The fp32 projection to the vocabulary [V, D]; the embedding if they are tied."""
        return self.embedding if self.output is None else self.output.weight

    def initialize(self, seed: int) -> None:
        """Draw initial weights; residual projections are scaled by 1 / sqrt(2 * layers) to bound the stream's variance."""
        device = self.embedding.device
        generator = torch.Generator("cpu" if device.type == "meta" else device).manual_seed(seed)
        nn.init.normal_(self.embedding, std=0.02, generator=generator)
        residual_scale = (2 * len(self.layers)) ** -0.5
        for layer in cast("Iterable[Layer]", self.layers):
            layer.initialize(generator, residual_scale)
        if self.tracks is not None:
            self.tracks.initialize()
        self.norm.initialize()
        if self.output is not None:
            self.output.initialize(generator)


def _whole_rows(tokens_BS: Tensor, inserted: Sequence[InsertedEmbedding]) -> WholeRows:
    return WholeRows(tokens_BS.shape[0], tokens_BS.shape[1], tokens_BS.device, [span for span, _ in inserted])
