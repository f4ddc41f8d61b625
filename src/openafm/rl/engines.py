"""The engines of a trajectory generator: the policy that samples and the reference. Torch is imported where it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openafm.bundle import Bundle, open_bundle
from openafm.compression.errors import CompressionError, UncompressibleModelError
from openafm.compression.native_numerics import native_numerics
from openafm.core.errors import UsageError
from openafm.rl.config import RLConfig
from openafm.runtime.engines.base import Engine
from openafm.runtime.native.support import takes_new_weights, unsupported
from openafm.runtime.native.update import with_numerics

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder


class RoundedPolicyError(UsageError):
    """The generators of this run cannot sample with rounded weights."""


def policy_engine(config: RLConfig) -> Engine:
    """Return an engine with the policy's modules; an adapter that is trained is installed.

    Raises:
        NativeBuildError: the weights are rounded and the native runtime cannot be compiled here.
    """
    from openafm.runtime.engines.selection import open_engine
    from openafm.runtime.engines.torch_engine import TorchEngine
    from openafm.training.initialization import untrained_model

    if config.trainer.adapter is not None:
        return TorchEngine(untrained_model(config.trainer).model)
    bundle = start_bundle(config)
    if config.generator_weights != "full":
        from openafm.runtime.native.engine import NativeEngine

        return NativeEngine(bundle, num_threads=1, numerics=native_numerics(bundle.config, config.generator_weights))
    if config.engine == "fastest" and takes_new_weights(bundle):
        return open_engine(bundle, num_threads=1, full_precision="native")
    return TorchEngine.open(bundle)


def reference_policy(bundle: Bundle, policy: Engine) -> Decoder | Engine:
    """Return the reference policy: an engine if the policy's steps do not depend on the batch, else a decoder."""
    from openafm.bundle.decoder import load_decoder

    if policy.combines:
        from openafm.runtime.engines.selection import open_engine

        return open_engine(bundle, num_threads=1, full_precision="native")
    return load_decoder(bundle).requires_grad_(False)


def start_bundle(config: RLConfig) -> Bundle:
    """Return the bundle that the run starts from."""
    assert config.trainer.from_bundle is not None, "checked by the run"
    return open_bundle(config.trainer.from_bundle)


def check_rounding(config: RLConfig, bundle: Bundle) -> None:
    """Check that the generators can sample with the weights that the config names.

    Raises:
        RoundedPolicyError: they cannot; the message has the reason.
    """
    if config.generator_weights == "full":
        return
    reason = _why_not(config, bundle)
    if reason is not None:
        raise RoundedPolicyError(
            f"generator_weights={config.generator_weights} needs the native engine, which cannot run this policy: {reason};"
            " use generator_weights=full"
        )


def _why_not(config: RLConfig, bundle: Bundle) -> str | None:
    if config.trainer.adapter is not None:
        return "the run trains an adapter"
    if not takes_new_weights(bundle):
        return "the start bundle is compressed or has a vision encoder"
    assert config.generator_weights != "full"
    reason = unsupported(bundle)
    if reason is not None:
        return reason
    try:
        return unsupported(with_numerics(bundle, native_numerics(bundle.config, config.generator_weights)))
    except UncompressibleModelError:
        return "it has parallel tracks or mixtures of experts"
    except CompressionError as error:
        return str(error)
