"""`benchmarks/figures.py`: full runs one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FIGURES = Path(__file__).parents[2] / "benchmarks" / "figures.py"


def figures(folder: Path, *arguments: str) -> tuple[int, str]:
    """Call `main` on the scripts in `folder`; return its exit code and what it printed."""
    call = f"import sys, figures; from pathlib import Path; sys.exit(figures.main(sys.argv[2:], Path({str(folder)!r})))"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {call}", str(FIGURES.parent), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return ended.returncode, ended.stdout + ended.stderr


def test_finished_benchmarks_are_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text("open('runs', 'a').write('x')\nprint('output')")
    (tmp_path / "without_data.py").write_text("import sys; sys.exit(0 if sys.argv[2:] == ['--data', 'here'] else 3)")
    assert figures(tmp_path)[0] == 0
    code, printed = figures(tmp_path)
    assert (code, (tmp_path / "runs").read_text()) == (0, "x")
    assert "first: finished before" in printed
    assert "without_data: skipped" in printed
    assert (tmp_path / "build" / "figures" / "first.log").read_text() == "output\n"

    (tmp_path / "arguments.toml").write_text('without_data = ["--data", "here"]')
    assert "without_data: finished after" in figures(tmp_path, "--arguments", "arguments.toml")[1]
    figures(tmp_path, "first", "--again")
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_failed_benchmark_does_not_end_the_others(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError")
    (tmp_path / "sound.py").write_text("")
    code, printed = figures(tmp_path)
    assert code == 1
    assert "broken: failed with code 1" in printed
    assert "sound: finished" in printed
    assert figures(tmp_path, "--list")[1] == "broken\nsound                        finished\n"
    assert figures(tmp_path, "absent")[0] == 2
