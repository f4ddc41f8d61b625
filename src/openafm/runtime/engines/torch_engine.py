"""The engine for any model and device: torch modules over a KV cache per sequence.

Uses as many threads as torch does (`torch.set_num_threads`); with small models one is often fastest.

Shapes: N tokens of all sequences in a step, D sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import ProcessGroup

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.bundle.decoder import put_on
from openafm.core.errors import UsageError
from openafm.models.decoder import FEW_TOKENS, Decoder
from openafm.models.experts import Router
from openafm.models.layers import RMSNorm
from openafm.models.track_parallel import share_tracks
from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.engines.base import Cache, Engine
from openafm.runtime.engines.kv_cache import CachedSequences, TorchCache
from openafm.runtime.engines.shared_weights import base_decoder, sharing
from openafm.runtime.engines.track_group import track_group


class SharedTracksError(UsageError):
    """A model that cannot be computed by processes that share its tracks."""


class TorchEngine(Engine):
    """Runs a decoder on the device where its weights are, in its `compute_dtype`.

    Args:
        decoder: used as it is, not copied.
        signature: the bundle's; snapshots go with it.
        base: whose weights the decoder shares; kept, so that the next engine finds them.
    """

    def __init__(self, decoder: Decoder, signature: str = "", base: Decoder | None = None) -> None:
        super().__init__(
            vocab_size=decoder.config.vocab_size,
            context_length=decoder.config.context_length,
            signature=f"torch {decoder.compute_dtype} {signature}",
        )
        self.decoder, self._base = decoder, base
        self._cached = decoder.local_config
        self._device = decoder.device

    @staticmethod
    def open(bundle: Bundle, adapter: AdapterPackage | None = None, device: torch.device | None = None) -> TorchEngine:
        """Load a bundle, to compute in its numerics, with `adapter` over it, else with the recovery adapter that it carries.

        Engines of one bundle share its weights; the adapter's are read now, and what becomes of its folder later is nothing
        to this engine. Under torchrun the processes share the tracks of a model that has some, and their keys and values;
        they all run the same program and get the same logits.

        Raises:
            TracksNotDivisibleError: the tracks do not divide over the processes.
            SharedTracksError: the model is compressed or there is an adapter, and its tracks are shared.
            AdapterMismatchError: the adapter is for another base.
            AdapterError: the adapter is damaged.
            BundleError: the weights cannot be read or do not fit the config.
        """
        adapter = adapter or bundle.recovery_adapter
        if adapter is not None:
            adapter.check_base(bundle.signature)
        group = track_group(bundle.config)
        if group is not None and (adapter is not None or bundle.numerics.is_compressed):
            raise SharedTracksError(
                f"{bundle.path} is compressed or carries an adapter: its tracks cannot be shared; open it in one process"
            )
        base = base_decoder(bundle, device, prepare=partial(_prepare, group=group))
        decoder = sharing(base)
        if adapter is None:
            share = "" if group is None else f" tracks of {group.rank()} in {group.size()}"
            return TorchEngine(decoder, f"{bundle.signature}{share}", base)
        put_on(decoder, adapter)
        _lay_out_matrices(decoder)
        return TorchEngine(decoder, f"{bundle.signature} {adapter.digest}", base)

    def _new_cache(self) -> Cache:
        return TorchCache(self._cached, self.decoder.compute_dtype, self._device)

    def _forward(self, chunks: Sequence[TokenChunk]) -> list[NDArray[np.float32]]:
        caches = [cast(TorchCache, chunk.cache) for chunk in chunks]
        counts = [len(chunk.tokens) for chunk in chunks]
        wanted = [chunk.num_wanted for chunk in chunks]
        is_last = max(wanted) <= 1
        with torch.inference_mode():
            tokens_BS = torch.tensor([[token for chunk in chunks for token in chunk.tokens]], device=self._device)
            context = CachedSequences(caches, counts, self._device)
            compute = self.decoder.last_hidden if is_last else self.decoder.hidden
            logits_NV = self._head(compute(tokens_BS, context)[0]).float().cpu().numpy()
        stops = np.cumsum([1] * len(counts) if is_last else counts)
        return [logits_NV[stop - num_wanted : stop] for stop, num_wanted in zip(stops, wanted, strict=True)]

    def _head(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Logits, of few tokens one by one: as fast on a CPU, and the same bits however many there are."""
        if x_ND.is_cpu and 1 < len(x_ND) <= FEW_TOKENS:
            return torch.cat([self.decoder.head(x_1D) for x_1D in x_ND.split(1)])
        return self.decoder.head(x_ND)


def _prepare(decoder: Decoder, group: ProcessGroup | None) -> None:
    if group is not None:
        share_tracks(decoder, group)
    _lay_out_matrices(decoder)


@torch.no_grad()
def _lay_out_matrices(decoder: Decoder) -> None:
    """Matrices in the compute dtype, so that no step casts them again, the longer of their sides first in memory.

    On a CPU, one token's product with a tall matrix then takes a third to a half of the time; many tokens' takes as before.
    A matrix that lies so already stays where it is, and so do stacks of them, those of tracks and experts. Norms and routers
    compute in fp32.
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
