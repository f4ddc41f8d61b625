"""The vision encoder of an earlier stage as the start of the next one."""

from __future__ import annotations

from dataclasses import replace

import torch

from openafm.bundle import open_bundle
from openafm.compression.int8_rows import with_vision_in_float
from openafm.core.errors import UsageError
from openafm.models.decoder import Decoder
from openafm.models.vision.clip import ClipModel
from openafm.models.vision.encoder import interpolated
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import ClipConfig, MultimodalConfig

PREFIX = "vision."
POSITIONS = "position_GGD"


class VisionStartError(UsageError):
    """A model or a bundle has no vision encoder, or another one."""


@torch.no_grad()
def start_vision(model: Decoder, name_or_path: str, identity: str | None = None) -> None:
    """Copy the vision encoder's weights of a bundle into a model; position embeddings are interpolated to its grid.

    Raises:
        VisionStartError: one of the two has no vision encoder, the shapes differ, or the bundle has changed.
        BundleError: the bundle cannot be read.
    """
    bundle = open_bundle(name_or_path)
    if not isinstance(model, MultimodalDecoder | ClipModel):
        raise VisionStartError("this recipe trains a model without a vision encoder; leave the start out")
    if not isinstance(bundle.config, MultimodalConfig | ClipConfig):
        raise VisionStartError(f"{bundle.path} has no vision encoder; train vision.clip or vision.joint, or name its bundle")
    if identity not in (None, bundle.identity):
        raise VisionStartError(
            f"{bundle.path} has identity {bundle.identity}, the run started from {identity}; restore that bundle or start "
            "the run in another folder"
        )
    found, wanted = bundle.config.vision, model.config.vision
    if replace(found, image_side=wanted.image_side) != wanted:
        raise VisionStartError(f"the vision encoder of {bundle.path} has another shape than the model's")
    tensors = with_vision_in_float(bundle.tensors(), bundle.numerics)
    weights = {
        name.removeprefix(PREFIX): torch.from_numpy(tensors[name].copy()) for name in tensors if name.startswith(PREFIX)
    }
    if POSITIONS in weights:
        weights[POSITIONS] = interpolated(weights[POSITIONS], wanted.grid_side(wanted.image_side))
    model.vision.load_state_dict(weights)
