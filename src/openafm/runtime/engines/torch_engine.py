"""Engine for any model and device: torch modules and a KV cache for each sequence.

It uses torch's threads (`torch.set_num_threads`), one in a forked process; one is often fastest for small models.

Shapes: N tokens of all sequences in a step, D sequences, V vocabulary.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import ProcessGroup

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.bundle.decoder import put_on
from openafm.compression.int8_rows import is_vision
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.models.attention.spans import EmbeddingSpan
from openafm.models.decoder import FEW_TOKENS, Decoder
from openafm.models.feed_forward.experts import Router
from openafm.models.layers import RMSNorm
from openafm.models.parallel.track_parallel import share_tracks
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.engines.base import Cache, Engine, OtherBundleError, WeightUpdateError
from openafm.runtime.engines.kv_cache import CachedSequences, TorchCache
from openafm.runtime.engines.shared_weights import base_decoder, sharing
from openafm.runtime.engines.track_group import track_group


class SharedTracksError(UsageError):
    """The model's tracks cannot be shared between processes."""


class TorchEngine(Engine):
    """Runs a decoder on the device of its weights, in its `compute_dtype`.

    Args:
        decoder: used without a copy.
        signature: signature of the bundle; snapshots are bound to it.
        base: the decoder whose weights `decoder` shares. Held so that further engines of the bundle share them too.
        beside: an engine of the same bundle, whose steps this engine shares: each computes its own sequences of a step.
    """

    def __init__(
        self,
        decoder: Decoder,
        signature: str = "",
        base: Decoder | None = None,
        beside: TorchEngine | None = None,
    ) -> None:
        super().__init__(
            vocab_size=decoder.config.vocab_size,
            context_length=decoder.config.context_length,
            signature=f"torch {decoder.compute_dtype} {signature}",
            beside=beside,
        )
        self.decoder, self._base = decoder, base
        self._cached = decoder.local_config
        self._device = decoder.device
        self._first_signature = self.signature

    @staticmethod
    def open(
        bundle: Bundle,
        adapter: AdapterPackage | None = None,
        device: torch.device | None = None,
        beside: TorchEngine | None = None,
    ) -> TorchEngine:
        """Return an engine of a bundle, in its numerics, with `adapter` or else with the bundle's recovery adapter.

        Engines of one bundle share its weights. The adapter is fully loaded; its folder may be deleted. Under torchrun, the
        processes share the tracks of a model with tracks, and their keys and values: all processes run the same program and
        get the same logits.

        Raises:
            TracksNotDivisibleError: the number of tracks is not a multiple of the number of processes.
            SharedTracksError: the tracks are to be shared, and the model is compressed or has an adapter.
            AdapterMismatchError: the adapter is for another base.
            AdapterError: the adapter is damaged.
            BundleError: the weights cannot be read or do not fit the config.
            OtherBundleError: `beside` has other weights.
        """
        adapter = adapter or bundle.recovery_adapter
        if adapter is not None:
            adapter.check_base(bundle.signature)
        group = track_group(bundle.config)
        if group is not None and (adapter is not None or bundle.numerics.is_compressed):
            raise SharedTracksError(
                f"{bundle.path} is compressed or has an adapter, so its tracks cannot be shared; open it in one process"
            )
        base = base_decoder(bundle, device, prepare=partial(_prepare, group=group))
        if beside is not None and beside._base is not base:
            raise OtherBundleError
        decoder = sharing(base)
        if adapter is None:
            share = "" if group is None else f" tracks of {group.rank()} in {group.size()}"
            return TorchEngine(decoder, f"{bundle.signature}{share}", base, beside)
        put_on(decoder, adapter)
        _lay_out_matrices(decoder)
        return TorchEngine(decoder, f"{bundle.signature} {adapter.digest}", base, beside)

    def _new_cache(self) -> Cache:
        return TorchCache(self._cached, self.decoder.compute_dtype, self._device)

    def forward(self, chunks: Sequence[TokenChunk]) -> list[NDArray[np.float32]]:
        caches = [cast(TorchCache, chunk.cache) for chunk in chunks]
        counts = [len(chunk.tokens) for chunk in chunks]
        wanted = [chunk.num_wanted for chunk in chunks]
        is_last = max(wanted) <= 1
        with torch.inference_mode():
            tokens_BS = torch.tensor([[token for chunk in chunks for token in chunk.tokens]], device=self._device)
            context = CachedSequences(caches, counts, self._device)
            compute = self.decoder.last_hidden if is_last else self.decoder.hidden
            hidden_BSD = compute(tokens_BS, context, self._inserted(chunks))
            head = self.decoder.head if max(counts) == 1 else self._head
            logits_NV = head(hidden_BSD[0]).float().cpu().numpy()
        stops = np.cumsum([1] * len(counts) if is_last else counts)
        return [logits_NV[stop - num_wanted : stop] for stop, num_wanted in zip(stops, wanted, strict=True)]

    def _states(self, chunk: TokenChunk) -> NDArray[np.float32]:
        with torch.inference_mode():
            tokens_BS = torch.tensor([chunk.tokens.tolist()], device=self._device)
            context = CachedSequences([cast(TorchCache, chunk.cache)], [len(chunk.tokens)], self._device)
            states_ND: NDArray[np.float32] = self.decoder.hidden(tokens_BS, context, [])[0].float().cpu().numpy()
        return states_ND

    def encode_views(self, views_VYXC: NDArray[np.uint8], num_tokens: int) -> NDArray[np.float32]:
        if not isinstance(self.decoder, MultimodalDecoder):
            return super().encode_views(views_VYXC, num_tokens)
        with self.scheduler.computing, torch.inference_mode():
            embeddings_LD = self.decoder.encode_images(torch.tensor(views_VYXC), num_tokens)
            vectors_LD: NDArray[np.float32] = embeddings_LD.float().cpu().numpy()
        return vectors_LD

    def update_weights(self, tensors: Mapping[str, Any], version: int) -> None:
        """See `Engine.update_weights`. The first update copies weights that are shared with other engines.

        Raises:
            WeightUpdateError: the version is not above the present one, or a name or shape is not one of the decoder's.
        """
        if version <= self.weights_version:
            raise WeightUpdateError(f"weights version {version} is not above the present {self.weights_version}")
        weights = dict(self.decoder.named_parameters())
        for name, tensor in tensors.items():
            if name not in weights:
                raise WeightUpdateError(f"the decoder has no parameter '{name}'{nearest(name, list(weights))}")
            if tuple(tensor.shape) != tuple(weights[name].shape):
                shapes = f"{list(tensor.shape)}, expected {list(weights[name].shape)}"
                raise WeightUpdateError(f"the new value of '{name}' has shape {shapes}")
        with self.scheduler.exclusive(), torch.no_grad():
            if self._base is not None:
                self.decoder, self._base = copy.deepcopy(self.decoder), None
                weights = dict(self.decoder.named_parameters())
            for name, tensor in tensors.items():
                weights[name].copy_(torch.as_tensor(tensor))
            self._drop_caches()
            self.weights_version = version
            if any(map(is_vision, tensors)):
                self.encoder_version = version
            self.signature = f"{self._first_signature} weights {version}"

    def _inserted(self, chunks: Sequence[TokenChunk]) -> list[tuple[EmbeddingSpan, torch.Tensor]]:
        """Return the embeddings of all chunks, by their positions in the step's row."""
        starts = accumulate((len(chunk.tokens) for chunk in chunks), initial=0)
        return [
            (
                EmbeddingSpan(row=0, start=start + each.start, stop=start + each.stop, digest=each.digest),
                torch.tensor(each.vectors_LD, device=self._device, dtype=self.decoder.compute_dtype),
            )
            for start, chunk in zip(starts, chunks, strict=False)
            for each in chunk.inserted
        ]

    def _head(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the logits. Few tokens are computed one by one on a CPU, so that the bits do not depend on their number."""
        if x_ND.is_cpu and 1 < len(x_ND) <= FEW_TOKENS:
            return torch.cat([self.decoder.head(x_1D) for x_1D in x_ND.split(1)])
        return self.decoder.head(x_ND)


def _prepare(decoder: Decoder, group: ProcessGroup | None) -> None:
    if group is not None:
        share_tracks(decoder, group)
    _lay_out_matrices(decoder)


@torch.no_grad()
def _lay_out_matrices(decoder: Decoder) -> None:
    """Cast matrices to the compute dtype once, and store tall matrices on a CPU in column-major order.

    A product of one token with a tall matrix then takes a third to a half of the time, that of many tokens the same. Stacked
    matrices of tracks and experts keep their order. Norms and routers stay in fp32.
    """
    in_fp32 = {
        id(weight)
        for module in decoder.modules()
        if isinstance(module, RMSNorm | Router)
        for weight in module.parameters(recurse=False)
    }
    for tensor in (*decoder.parameters(), *decoder.buffers()):
        if tensor.ndim >= 2 and id(tensor) not in in_fp32:
            matrix = tensor.to(decoder.compute_dtype)
            is_tall = matrix.is_cpu and matrix.ndim == 2 and matrix.shape[0] > matrix.shape[1]
            tensor.data = matrix.t().contiguous().t() if is_tall else matrix


if hasattr(os, "register_at_fork"):
    # The threads of OpenMP do not survive a fork: a product of several threads would wait for them forever.
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
