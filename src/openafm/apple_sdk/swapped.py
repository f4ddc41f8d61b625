"""Provide openafm under the SDK's package name, as for a program that only changes its import line."""

from __future__ import annotations

from pathlib import Path

from openafm.apple_sdk.source import PACKAGE

_PACKAGE = '''"""openafm, imported under another name."""

import sys

import openafm

sys.modules[__name__] = openafm
for name in {modules}:
    sys.modules[f"{{__name__}}.{{name}}"] = openafm
'''
# The public modules of the SDK. openafm has all their public names at the top level.
_MODULES = (
    "core",
    "errors",
    "generable",
    "generable_utils",
    "generation_guide",
    "generation_options",
    "generation_property",
    "generation_schema",
    "prompt",
    "session",
    "tool",
    "transcript",
)


def write_swapped_package(site_packages: Path) -> None:
    """Write a package with the SDK's name that forwards to openafm."""
    folder = site_packages / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(_PACKAGE.format(modules=_MODULES), "utf-8")
