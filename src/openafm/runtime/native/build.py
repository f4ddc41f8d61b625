"""The sources of the native runtime's shared library.

It contains kernels for several instruction sets and selects them at run time, so it can be moved to another machine.
Imports only the standard library and `core`, because setup.py runs it too.
"""

from __future__ import annotations

from pathlib import Path

from openafm.core.native_build import Library, NativeSources

SOURCE = Path(__file__).parent / "source"
BUILT_IN = Path(__file__).parent / "libopenafm.so"
_FUSING = "-ffp-contract=fast"
_X86: dict[str, tuple[str, ...]] = {
    "kernels_avx512.cpp": (
        *(_FUSING, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"),
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    ),
    "kernels_avx2.cpp": (_FUSING, "-mavx2", "-mfma", "-mf16c"),
}
_ARM: dict[str, tuple[str, ...]] = {
    "kernels_neon.cpp": (_FUSING,),
    "kernels_neon_dot.cpp": (_FUSING, "-march=armv8.2-a+dotprod"),
}
_SPECIAL = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
SOURCES = NativeSources(name="libopenafm", title="the native runtime", folder=SOURCE, built_in=BUILT_IN, special=_SPECIAL)


def built_library() -> Library:
    """Return the library for this machine, compiling it if needed.

    Raises:
        NativeBuildError: the library cannot be compiled.
    """
    return SOURCES.built()
