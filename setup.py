"""The optional step of the install: compile the native runtime where a compiler is. All else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))
LIBRARY = Path("openafm", "runtime", "native", "libopenafm.so")


class CompilingBuild(build_py):
    """A wheel carries the library beside its source; a checkout compiles it at its first use, whenever that changes."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self._compile(Path(self.build_lib) / LIBRARY)

    def _compile(self, library):
        try:
            from openafm.runtime.native.build import compile_library, find_compiler

            compile_library(library, find_compiler())
        except Exception as error:  # whatever it is, the install goes on: there is another chance at the first use
            print(f"openafm: the native runtime was not compiled ({error}); it is at its first use", file=sys.stderr)


class TaggedWheel(bdist_wheel):
    """For this platform where the library is in it, else for any; for every Python, which the library knows nothing of."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        if (Path(self.get_finalized_command("build_py").build_lib) / LIBRARY).is_file():
            from sysconfig import get_platform

            platform = (self.plat_name or get_platform()).replace("-", "_").replace(".", "_")
        return python, abi, platform


setup(cmdclass={"build_py": CompilingBuild, "bdist_wheel": TaggedWheel})
