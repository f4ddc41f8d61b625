"""Compile the native libraries during installation if a compiler is present. pyproject.toml holds everything else."""

import platform
import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))
HAS_GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
STATIC = " -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL"
"""With these options the library needs the C library only, which makes it a manylinux one."""
OLDEST_GLIBC = 17
"""The minor version of the oldest glibc that manylinux tags and pip know well: manylinux2014."""


class CompilingBuild(build_py):
    """Add the compiled libraries to a wheel; a checkout compiles them at first use and after changes."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for sources, library in _libraries(self.build_lib):
                self._compile(sources, library)

    def _compile(self, sources, library):
        try:
            from openafm.core.native_build import NativeBuildError, find_compiler

            compiler = find_compiler()
            try:
                sources.compile(library, compiler + (STATIC if HAS_GLIBC else ""))
            except NativeBuildError:  # a compiler without static libraries
                sources.compile(library, compiler)
        except Exception as error:  # the library is compiled at first use instead
            print(f"openafm: {sources.title} was not compiled ({error}); it is at its first use", file=sys.stderr)


class TaggedWheel(bdist_wheel):
    """Tag the wheel for this platform if it contains a library, and for every Python version."""

    def get_tag(self):
        python, abi, platform_tag = super().get_tag()
        build_lib = self.get_finalized_command("build_py").build_lib
        libraries = [library for _, library in _libraries(build_lib) if library.is_file()]
        if libraries:
            platform_tag = self.plat_name if self.plat_name_supplied else _platform_tag(libraries)
        return python, abi, platform_tag.replace("-", "_").replace(".", "_")


def _libraries(folder):
    """Return the sources of each native library and its path in a folder of the build."""
    from openafm.data.extraction import native_page
    from openafm.runtime.native import build

    root = Path(build.__file__).parents[3]
    return [(sources, Path(folder) / sources.built_in.relative_to(root)) for sources in (build.SOURCES, native_page.SOURCES)]


def _platform_tag(libraries):
    """Return the manylinux tag (PEP 600) of libraries that need glibc only, or else the name of this platform."""
    from sysconfig import get_platform

    content = b"".join(library.read_bytes() for library in libraries)
    if not HAS_GLIBC or re.search(rb"\0(?:libstdc\+\+|libgcc_s)\.so|\0GLIBC_PRIVATE\0", content):
        return get_platform()
    versions = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?=[.\0])", content)]
    return f"manylinux_2_{max([OLDEST_GLIBC, *versions])}_{platform.machine()}"


setup(cmdclass={"build_py": CompilingBuild, "bdist_wheel": TaggedWheel})
