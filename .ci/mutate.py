"""Mutation testing, bounded: change one operator or constant at a time and check that the room's tests fail.

    python .ci/mutate.py [--count 60] [--seconds 900] [--seed 0] [--only models] [--near-only] [--json]

Each mutant is written to a copy of the source tree. First the tests that import its module run against the copy, then, if
they pass, all tests of the room. A mutant that passes all of them is a survivor: an untested line, or an equivalent change.
Test runs are forked from this process, which has imported torch but not openafm. Exit code 0 even with survivors.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  # tests import it, and forks have it already

ROOT = Path(__file__).resolve().parents[1]
TEST_SECONDS = 240
# Source files (globs below src/openafm) and the tests that guard them.
GUARDS = {
    "models/**/*.py": "tests/models/**/test_*.py",
    "data/*.py": "tests/data/test_*.py",
    "data/loading/*.py": "tests/data/loading/test_*.py",
    "data/shards/*.py": "tests/data/shards/test_*.py",
    "runtime/decoding/*.py": "tests/runtime/decoding/test_*.py",
    "training/*.py": "tests/training/test_*.py",
    "training/objectives/*.py": "tests/training/objectives/test_*.py",
}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed line."""

    file: str
    line: int
    before: str
    after: str
    tests: str


def mutants(pattern: str, tests: str) -> Iterator[Mutant]:
    """Every mutant of the files that match a glob."""
    for path in sorted((ROOT / "src" / "openafm").glob(pattern)):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            changed = mutated(node)
            if changed is None or not hasattr(node, "lineno") or node.lineno != node.end_lineno:
                continue
            line = lines[node.lineno - 1]
            encoded = line.encode()
            after = (encoded[: node.col_offset] + f"({changed})".encode() + encoded[node.end_col_offset :]).decode()
            if not line.lstrip().startswith(("raise ", "assert ", '"', 'f"')):
                yield Mutant(
                    file=str(path.relative_to(ROOT)), line=node.lineno, before=line.strip(), after=after.strip(), tests=tests
                )


def mutated(node: ast.AST) -> str | None:
    """The source of a changed expression; None if the expression has no mutation."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        return ast.unparse(ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not is_type(node):
        return ast.unparse(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return repr(node.value + 1)
    if isinstance(node, ast.BoolOp):
        return ast.unparse(ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ast.unparse(node.operand)
    return None


def is_type(node: ast.BinOp) -> bool:
    """Whether an operator joins strings, whose change would not parse as arithmetic."""
    return any(
        isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in (node.left, node.right)
    )


def survives(mutant: Mutant, tree: Path, near_only: bool) -> bool:
    """Whether all tests pass with the mutant in place."""
    path = tree / mutant.file
    original, stamp = path.read_text(encoding="utf-8"), path.stat()
    lines = original.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: len(line) - len(line.lstrip())] + mutant.after + "\n"
    every = sorted(tree.glob(mutant.tests))
    near = nearest_tests(mutant, every)
    try:
        path.write_text("".join(lines), encoding="utf-8")
        others = [] if near_only else [file for file in every if file not in near]
        return passes(near, tree) and (not others or passes(others, tree))
    finally:
        path.write_text(original, encoding="utf-8")
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # its compiled file stays valid


def nearest_tests(mutant: Mutant, every: Sequence[Path]) -> list[Path]:
    """Return the tests that import the mutant's module or have its name; all tests if there are none."""
    module = ".".join(Path(mutant.file).with_suffix("").parts[1:])
    named = [file for file in every if Path(mutant.file).stem in file.stem]
    importing = [file for file in every if module in file.read_text(encoding="utf-8") and file not in named]
    return named + importing or list(every)


def passes(tests: Sequence[Path], tree: Path, seconds: float = TEST_SECONDS) -> bool:
    """Whether the tests pass in a tree; a test that hangs fails."""
    process = os.fork()
    if process == 0:
        run_tests(tests, tree)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def run_tests(tests: Sequence[Path], tree: Path) -> None:
    """Run pytest in this forked process and end it."""
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        sys.path.insert(0, str(tree / "src"))
        import openafm

        assert Path(str(openafm.__file__)).is_relative_to(tree)
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
        code = int(pytest.main([*options, *map(str, tests)]))
    finally:
        os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="mutants, drawn at random over all files")
    parser.add_argument("--seconds", type=float, default=900, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the file's path")
    parser.add_argument("--near-only", action="store_true", help="leave out the room's other tests; more mutants survive")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    every = [
        mutant for pattern, tests in GUARDS.items() for mutant in mutants(pattern, tests) if options.only in mutant.file
    ]
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    deadline, done, survivors = time.monotonic() + options.seconds, 0, []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "runs", "build")
        shutil.copytree(ROOT, tree, ignore=ignored)
        for tests in sorted({mutant.tests for mutant in drawn}):
            if not passes(sorted(tree.glob(tests)), tree, 4 * TEST_SECONDS):
                sys.exit(f"{tests} fails without a mutant")
        sys.dont_write_bytecode = True
        for mutant in drawn:
            if time.monotonic() > deadline:
                break
            done += 1
            if survives(mutant, tree, options.near_only):
                survivors.append(mutant)
                print(
                    f"survived: {mutant.file}:{mutant.line}\n  - {mutant.before}\n  + {mutant.after}",
                    file=sys.stderr,
                    flush=True,
                )
    if options.json:
        print(json.dumps({"mutants": done, "of": len(every), "survivors": [asdict(mutant) for mutant in survivors]}))
    else:
        print(f"{done} of {len(every)} mutants tried, {len(survivors)} survived")


if __name__ == "__main__":
    main()
