"""The engine for any model and device: torch modules over a KV cache per sequence.

Uses as many threads as torch does (`torch.set_num_threads`); with small models one is often fastest.

Shapes: N tokens of all sequences in a step, D sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from openafm.adapters.package import Adapter
from openafm.bundle import Bundle
from openafm.bundle.decoder import put_on
from openafm.models.decoder import FEW_TOKENS, Decoder
from openafm.models.experts import Router
from openafm.models.layers import RMSNorm
from openafm.runtime.engine import Cache, Engine, LogitsOf
from openafm.runtime.kv_cache import CachedSequences, TorchCache
from openafm.runtime.shared_weights import base_decoder, sharing


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
        self._device = decoder.device

    @staticmethod
    def open(bundle: Bundle, adapter: Adapter | None = None, device: torch.device | None = None) -> TorchEngine:
        """Load a bundle, to compute in its numerics, with `adapter` over it, else with the recovery adapter that it carries.

        Engines of one bundle share its weights; the adapter's are read now, and what becomes of its folder later is nothing
        to this engine.

        Raises:
            AdapterMismatchError: the adapter is for another base.
            AdapterError: the adapter is damaged.
            BundleError: the weights cannot be read or do not fit the config.
        """
        adapter = adapter or bundle.recovery_adapter
        if adapter is not None:
            adapter.check_base(bundle.signature)
        base = base_decoder(bundle, device, prepare=_lay_out_matrices)
        decoder = sharing(base)
        if adapter is None:
            return TorchEngine(decoder, bundle.signature, base)
        put_on(decoder, adapter)
        _lay_out_matrices(decoder)
        return TorchEngine(decoder, f"{bundle.signature} {adapter.digest}", base)

    def _new_cache(self) -> Cache:
        return TorchCache(self.decoder.config, self.decoder.compute_dtype, self._device)

    def _forward(self, batch: Sequence[tuple[Cache, Sequence[int]]], logits: LogitsOf) -> list[NDArray[np.float32]]:
        caches = [cast(TorchCache, cache) for cache, _ in batch]
        counts = [len(tokens) for _, tokens in batch]
        with torch.inference_mode():
            tokens_BS = torch.tensor([[token for _, tokens in batch for token in tokens]], device=self._device)
            context = CachedSequences(caches, counts, self._device)
            compute = self.decoder.last_hidden if logits == "last" else self.decoder.hidden
            logits_NV = self._head(compute(tokens_BS, context)[0]).float().cpu().numpy()
        if logits == "last":
            return list(logits_NV)
        return np.split(logits_NV, np.cumsum(counts)[:-1])

    def _head(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Logits, of few tokens one by one: as fast on a CPU, and the same bits however many there are."""
        if x_ND.is_cpu and 1 < len(x_ND) <= FEW_TOKENS:
            return torch.cat([self.decoder.head(x_1D) for x_1D in x_ND.split(1)])
        return self.decoder.head(x_ND)


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
