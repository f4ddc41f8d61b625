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
from torch import Tensor

from openafm.bundle import Bundle, BundleError
from openafm.compression.keys_values import slot
from openafm.models.attention import KeysValues
from openafm.models.decoder import Decoder
from openafm.runtime.engine import Cache, Engine, LogitsOf
from openafm.runtime.kv_cache import CachedSequences, TorchCache

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchEngine(Engine):
    """Runs a decoder on the device where its weights are, in its `compute_dtype`.

    Args:
        decoder: used as it is, not copied.
        signature: the bundle's; snapshots go with it.
    """

    def __init__(self, decoder: Decoder, signature: str = "") -> None:
        super().__init__(
            vocab_size=decoder.config.vocab_size,
            context_length=decoder.config.context_length,
            signature=f"torch {decoder.compute_dtype} {signature}",
        )
        self.decoder = decoder
        self._device = decoder.embedding.device

    @staticmethod
    def open(bundle: Bundle, device: torch.device | None = None) -> TorchEngine:
        """Load a bundle, to compute in its numerics.

        Raises:
            BundleError: the weights cannot be read or do not fit the config.
        """
        with torch.device("meta"):
            decoder = bundle.config.build()
        decoder.compute_dtype = _DTYPES[bundle.numerics.activations]
        try:
            decoder.load_state_dict(_weights(bundle, decoder.compute_dtype, device), assign=True)
        except RuntimeError as error:
            raise BundleError(f"{bundle.path}: the weights do not fit config.json: {error}") from error
        for module in decoder.modules():
            if isinstance(module, KeysValues):
                module.slot = slot(bundle.numerics.kv)
        return TorchEngine(decoder, bundle.signature)

    def _new_cache(self) -> Cache:
        return TorchCache(self.decoder.config, self.decoder.compute_dtype, self._device)

    def _forward(self, batch: Sequence[tuple[Cache, Sequence[int]]], logits: LogitsOf) -> list[NDArray[np.float32]]:
        caches = [cast(TorchCache, cache) for cache, _ in batch]
        counts = [len(tokens) for _, tokens in batch]
        with torch.inference_mode():
            tokens_BS = torch.tensor([[token for _, tokens in batch for token in tokens]], device=self._device)
            context = CachedSequences(caches, counts, self._device)
            compute = self.decoder.last_hidden if logits == "last" else self.decoder.hidden
            logits_NV = self.decoder.head(compute(tokens_BS, context)[0]).float().cpu().numpy()
        if logits == "last":
            return list(logits_NV)
        return np.split(logits_NV, np.cumsum(counts)[:-1])


def _weights(bundle: Bundle, dtype: torch.dtype, device: torch.device | None) -> dict[str, Tensor]:
    """Matrices in the compute dtype, so that no step casts them again; the rest in fp32, as norms need it."""
    weights = {name: torch.from_numpy(np.array(array)).to(device) for name, array in bundle.tensors().items()}
    return {name: _laid_out(weight.to(dtype)) if weight.ndim == 2 else weight for name, weight in weights.items()}


def _laid_out(weight: Tensor) -> Tensor:
    """The same matrix [outputs, inputs], with the longer of the two running through memory first.

    On a CPU, one token's product with a tall matrix then takes a third to a half of the time; many tokens' takes as before.
    """
    is_tall = weight.is_cpu and weight.shape[0] > weight.shape[1]
    return weight.t().contiguous().t() if is_tall else weight
