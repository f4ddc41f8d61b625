"""The folder of a node: its settings, its release, and the operator's key that signs statements.

NODE_FOLDER/config.json       the settings, fixed; `openafm private release` writes them
NODE_FOLDER/release.json      what is logged
NODE_FOLDER/operator.key(.pub)
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from openafm.adapters.delivery.keys import public_key, read_private_key, write_key_pair
from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.core.files import atomic_file, write_json
from openafm.serving.config import ServerConfig
from openafm.serving.private.errors import PrivateSetupError
from openafm.serving.private.log.releases import Release, differences, measure, read_release
from openafm.serving.private.node.keys import NodeKeys

_KEY = "operator.key"
_PLACE = ("host", "port", "requires_key", "tls_certificate", "tls_key")  # chosen when the node starts


def write_release(folder: Path, config: ServerConfig, *, number: int, minimum: int) -> Release:
    """Measure this installation, write settings and release, and return the release. The operator's key is kept.

    Raises:
        PrivateSetupError: the settings have more than one worker, or a guardrail model.
        OpenAFMError: a bundle is missing or damaged.
    """
    if config.workers != 1:
        raise PrivateSetupError(f"a private node has one process, got workers={config.workers}; start more nodes instead")
    if config.guardrail_model:
        raise PrivateSetupError("a release does not measure guardrail models; leave out guardrail_model")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _KEY).exists():
        write_key_pair(folder / _KEY)
    operator = public_key(read_private_key(folder / _KEY))
    release = measure(config, number=number, minimum=minimum, operator=operator)
    write_json(folder / "config.json", to_dict(config))
    with atomic_file(folder / "release.json") as file:
        file.write(release.data)
    return release


def check_place(place: ServerConfig) -> None:
    """Raise if settings are given that only the folder of the node decides.

    Raises:
        PrivateSetupError: there are such settings.
    """
    default = to_dict(ServerConfig())
    given = [name for name, value in to_dict(place).items() if name not in _PLACE and value != default[name]]
    if given:
        raise PrivateSetupError(
            f"the settings of a private node are in its folder, got {', '.join(given)} too; write a new release with"
            " `openafm private release FOLDER --set KEY=VALUE`"
        )


def read_config(folder: Path, place: ServerConfig) -> ServerConfig:
    """Return the settings of a node, at the address and with the TLS files of `place`.

    Raises:
        PrivateSetupError: the folder has no settings.
    """
    try:
        config = from_dict(ServerConfig, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, ConfigError) as error:
        raise PrivateSetupError(
            f"{folder} has no settings of a private node ({error}); `openafm private release {folder}` writes them"
        ) from error
    return dataclasses.replace(config, private=str(folder), **{name: getattr(place, name) for name in _PLACE})


def open_keys(folder: Path, config: ServerConfig) -> NodeKeys:
    """Return the keys of a node that runs the release in its folder.

    Raises:
        PrivateSetupError: there is no release, or this installation differs from it.
        DeliverySetupError: the operator's key is missing.
    """
    try:
        release = read_release((folder / "release.json").read_bytes())
    except OSError as error:
        raise PrivateSetupError(f"{folder} has no release; `openafm private release {folder}` writes it") from error
    operator_key = read_private_key(folder / _KEY)
    found = measure(config, number=release.number, minimum=release.minimum, operator=public_key(operator_key))
    if changed := differences(found, release):
        raise PrivateSetupError(
            f"this installation differs from release {release.number} in {', '.join(changed)}; restore it, or write and log"
            " a new release"
        )
    return NodeKeys(release, operator_key)
