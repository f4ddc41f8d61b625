"""Check the project's prose for the words listed in words.txt; run by `make check`.

Prose is: comments, docstrings and raised errors in Python, all lines of Markdown, comments in C++ and Makefiles.
Exit code 1 if a word is found. A finding is one line: file, line number and what to write instead.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

RULES = Path(__file__).with_name("words.txt")
# Text in sixteen languages, and tables of other projects' names.
LEFT_OUT = re.compile(r"^src/openafm/(data/synthetic|shipped)/|^LICENSE|/golden/")
Line = tuple[int, str]


def rules() -> list[tuple[re.Pattern[str], str]]:
    """The regular expressions of words.txt with what to write instead."""
    lines = [line for line in RULES.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pairs = [line.split("=>", 1) for line in lines]
    return [(re.compile(pattern.strip(), re.IGNORECASE), instead.strip()) for pattern, instead in pairs]


def python_prose(source: str) -> Iterator[Line]:
    """Comments, docstrings and strings inside `raise` statements, each with its line number."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = node.body[0].value if node.body and isinstance(node.body[0], ast.Expr) else None
            if isinstance(found, ast.Constant) and isinstance(found.value, str):
                yield from numbered(found.value, found.lineno)
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def numbered(text: str, first: int = 1) -> Iterator[Line]:
    """The lines of a text with their numbers."""
    yield from enumerate(text.splitlines(), start=first)


def comments(source: str, marker: str) -> Iterator[Line]:
    """What follows a comment marker, line by line."""
    yield from ((number, line.split(marker, 1)[1]) for number, line in numbered(source) if marker in line)


def prose(path: Path) -> Iterator[Line]:
    """The prose of one file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return python_prose(source)
    if path.suffix in (".cpp", ".h"):
        return comments(source, "//")
    return numbered(source) if path.suffix == ".md" else comments(source, "#")


def findings() -> Iterator[str]:
    """Every listed word in a tracked file."""
    listed = ("git", "ls-files", "*.py", "*.md", "*.cpp", "*.h", "*.toml", "Makefile", ".ci/run")
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    checked = rules()
    for name in names:
        if LEFT_OUT.search(name) or not Path(name).is_file():
            continue
        for number, line in prose(Path(name)):
            for pattern, instead in checked:
                if match := pattern.search(line):
                    yield f"{name}:{number}: '{match.group()}' is out; write: {instead}"


def main() -> int:
    """Print the findings; 1 if there are any."""
    found = sorted(set(findings()))
    print("\n".join(found) or "no listed word found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
