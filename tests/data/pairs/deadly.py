"""A filter that ends its worker at one image."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from openafm.data.pairs.filters import Pair, PairFilter, PairFilterConfig
from openafm.data.web.documents import Dropped


@dataclass(frozen=True, kw_only=True)
class DeadlyFilterConfig(PairFilterConfig):
    """Ends the process at an image named deadly.png."""

    def build(self) -> PairFilter:
        return DeadlyFilter()


class DeadlyFilter(PairFilter):
    """See `DeadlyFilterConfig`."""

    def check(self, pair: Pair) -> Dropped | None:
        if pair.image_url.endswith("deadly.png"):
            os.kill(os.getpid(), signal.SIGKILL)
        return None
