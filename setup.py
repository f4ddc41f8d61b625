"""Compile the native runtime during installation if a compiler is present. pyproject.toml holds everything else."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))
LIBRARY = Path("openafm", "runtime", "native", "libopenafm.so")


class CompilingBuild(build_py):
    """Add the compiled library to a wheel; a checkout compiles it at first use and after changes."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self._compile(Path(self.build_lib) / LIBRARY)

    def _compile(self, library):
        try:
            from openafm.runtime.native.build import compile_library, find_compiler

            compile_library(library, find_compiler())
        except Exception as error:  # the library is compiled at first use instead
            print(f"openafm: the native runtime was not compiled ({error}); it is at its first use", file=sys.stderr)


class TaggedWheel(bdist_wheel):
    """Tag the wheel for this platform if it contains the library, and for every Python version."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        if (Path(self.get_finalized_command("build_py").build_lib) / LIBRARY).is_file():
            from sysconfig import get_platform

            platform = (self.plat_name or get_platform()).replace("-", "_").replace(".", "_")
        return python, abi, platform


setup(cmdclass={"build_py": CompilingBuild, "bdist_wheel": TaggedWheel})
