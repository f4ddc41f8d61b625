"""How fast this machine trains the models of a size: measured once by steps of a model with random weights, and stored."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass

from openafm import __version__
from openafm.core.files import data_home, write_json
from openafm.core.regular_files import read_document
from openafm.recipes.reproduction.sizes import recipe_size

_RECIPE = "on_device.pretrain"
_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The speed of training steps of `on_device.pretrain` at a size, in positions and operations per second."""

    size: str
    tokens_per_second: float
    flops_per_second: float


def calibrated(size: str) -> Calibration:
    """Return the speed of this machine, stored in the data folder or measured now."""
    path = data_home() / "reproduction" / "calibration.json"
    key = f"{__version__}/{recipe_size(size)}/{os.cpu_count()} cores"
    try:
        stored = json.loads(read_document(path))
        return Calibration(**stored[key])
    except (OSError, ValueError, TypeError, KeyError):  # none yet, or a damaged file
        stored = {}
    found = probe(recipe_size(size))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**stored, key: asdict(found)})
    return found


def probe(size: str) -> Calibration:
    """Measure forward and backward passes as the trainer makes them.

    CPU time counts, the fastest of some steps, so that other load matters little.
    """
    import torch

    from openafm.models.accounting import flops_per_token
    from openafm.models.decoder import Decoder
    from openafm.recipes.catalog import build_run

    trainer = build_run(_RECIPE, size).trainer
    rows, row_tokens = trainer.data.rows_per_step, trainer.data.row_tokens
    threads = torch.get_num_threads()
    torch.set_num_threads(trainer.num_threads or threads)
    try:
        model = Decoder(trainer.model)
        tokens_BS = torch.randint(trainer.model.vocab_size, (rows, row_tokens))
        seconds = []
        for _ in range(_STEPS):
            started = time.process_time()
            logits_NV = model(tokens_BS)[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits_NV, tokens_BS[:, 1:].flatten())
            torch.autograd.grad(loss, [weight for weight in model.parameters() if weight.requires_grad])
            seconds.append(time.process_time() - started)
    finally:
        torch.set_num_threads(threads)
    tokens_per_second = rows * row_tokens * (trainer.num_threads or threads) / min(seconds)
    flops = 3 * flops_per_token(trainer.model, row_tokens / 2)
    return Calibration(size=size, tokens_per_second=tokens_per_second, flops_per_second=tokens_per_second * flops)
