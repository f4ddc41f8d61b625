"""Plugins: modules and files outside openafm that define kinds of configs (layer parts, optimizers, ...) and recipes.

A kind is a concrete subclass of `core.config.Config`; importing its module registers it. Data such as a bundle or a
checkpoint names kinds by class name only and never causes an import of a module that it names.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from openafm.core.errors import UsageError

ENTRY_POINT_GROUP = "openafm.kinds"
ENVIRONMENT_VARIABLE = "OPENAFM_PLUGINS"
FILE_PLUGIN = "openafm_plugin:"
"""Prefix of the module name of a plugin that is a file; the rest is its path."""


class PluginError(UsageError):
    """A plugin cannot be imported."""


def load_plugins(modules: Iterable[str]) -> None:
    """Import plugins; see `load_plugin`."""
    for module in modules:
        load_plugin(module)


def load_plugin(module: str) -> ModuleType:
    """Import a module by name (`my_package.kinds`) or by the path of its file (`./my_kinds.py`) and return it. Idempotent.

    Raises:
        PluginError: the module or file does not exist, or fails while it is imported.
    """
    try:
        return _import_file(Path(module).resolve()) if module.endswith(".py") else importlib.import_module(module)
    except Exception as error:
        raise PluginError(
            f"cannot import the plugin '{module}': {type(error).__name__}: {error}; "
            "expected the name of an installed module, or the path of a file such as ./my_kinds.py"
        ) from error


def plugins_of_environment() -> tuple[str, ...]:
    """Return the plugins listed in `OPENAFM_PLUGINS`, separated by commas."""
    return tuple(name.strip() for name in os.environ.get(ENVIRONMENT_VARIABLE, "").split(",") if name.strip())


def discover_kind(name: str) -> None:
    """Load the installed package that declares the kind `name` as an entry point, and the plugins of `OPENAFM_PLUGINS`.

    An entry point of the group `openafm.kinds` has the class name as its name: `MyConfig = "my_package.kinds:MyConfig"`.

    Raises:
        PluginError: a plugin fails while it is imported.
    """
    from importlib.metadata import entry_points  # takes a tenth of the start of a command

    load_plugins(entry.module for entry in entry_points(group=ENTRY_POINT_GROUP, name=name))
    load_plugins(plugins_of_environment())


def _import_file(file: Path) -> ModuleType:
    name = f"{FILE_PLUGIN}{file}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
