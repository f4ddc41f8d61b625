"""Check that no two test files have one base name; run by `make check`. pytest imports them by base name."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path


def main() -> int:
    paths = defaultdict(list)
    for path in sorted(Path("tests").rglob("*.py")):
        if path.name not in {"conftest.py", "__init__.py"}:
            paths[path.name].append(path)
    for name, found in paths.items():
        if len(found) > 1:
            print(f"{name}: {', '.join(map(str, found))}: give each a name of its own")
    return int(any(len(found) > 1 for found in paths.values()))


if __name__ == "__main__":
    sys.exit(main())
