"""All kernel sets against the portable one; NEON under qemu where Debian's cross compiler is installed."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from openafm.core.native_build import FLAGS, find_compiler
from openafm.runtime.native import build

NATIVE = Path(__file__).parent
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = next(filter(None, map(shutil.which, ("qemu-aarch64-static", "qemu-aarch64"))), None)


def compiled(program: str, compiler: str, special: dict[str, tuple[str, ...]], folder: Path, *options: str) -> Path:
    """Compile a test program with all sources of the runtime into one executable."""
    objects = []
    for source in [*sorted(build.SOURCE.glob("*.cpp")), NATIVE / program]:
        made = folder / f"{source.stem}.o"
        flags = [
            *FLAGS,
            *special.get(source.name, ()),
            *options,
            f"-I{build.SOURCE}",
            "-c",
            str(source),
            "-o",
            str(made),
        ]
        subprocess.run([*shlex.split(compiler), *flags], check=True)
        objects.append(str(made))
    executable = folder / Path(program).stem
    subprocess.run([*shlex.split(compiler), "-pthread", *options, *objects, "-o", str(executable)], check=True)
    return executable


@pytest.mark.slow
def test_kernel_sets_of_this_processor_agree(tmp_path: Path) -> None:
    special = build._SPECIAL[platform.machine().lower()]
    program = compiled("compare_kernels.cpp", find_compiler(), special, tmp_path, "-O1")
    assert "portable" in subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.slow
def test_emulated_avx512_kernels_of_groups_are_bit_exact(tmp_path: Path) -> None:
    """The only check of these kernels on processors without AVX-512."""
    sources = [NATIVE / "emulated_avx512.cpp", build.SOURCE / "kernels_portable.cpp", build.SOURCE / "pack.cpp"]
    program = tmp_path / "emulated"
    compiler = shlex.split(find_compiler())
    command = [*compiler, *FLAGS, "-O1", f"-I{build.SOURCE}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    assert subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=60).stdout == "equal\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(CROSS_COMPILER) is None, reason=f"needs {CROSS_COMPILER}")
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
def test_neon_kernels_agree_with_the_portable_ones(tmp_path: Path) -> None:
    assert EMULATOR is not None
    program = compiled("compare_kernels.cpp", CROSS_COMPILER, build._ARM, tmp_path, "-O1", "-static")
    run = subprocess.run([EMULATOR, str(program)], check=True, capture_output=True, text=True, timeout=600)
    assert run.stdout.split() == ["neon-dot", "neon", "portable"]
