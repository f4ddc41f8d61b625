"""Check the dependencies without a network; run by `make check`.

An audit against a database of advisories needs a network, so this checks what keeps known holes out of an environment:
every requirement has a lower bound, the installed version meets it, and what a library has fixed (FIXED_IN) is below the
bound. Exit code 1 with one line for each finding. `pip check`, which runs beside it, compares libraries with each other.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

# The versions that fixed advisories of libraries which read untrusted input.
FIXED_IN = {
    "jinja2": "3.1.6",  # CVE-2025-27516: the sandbox could be left
    "cryptography": "44.0.1",  # CVE-2024-12797: OpenSSL in the wheels
}


def requirements() -> Iterator[Requirement]:
    """Return the requirements of all extras, without the package itself."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    yield from (requirement for requirement in map(Requirement, texts) if requirement.name != project["name"])


def findings(requirement: Requirement) -> Iterator[str]:
    """Return what is wrong with one requirement."""
    lower = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    if not lower:
        yield f"{requirement} has no lower bound"
    fixed = FIXED_IN.get(requirement.name)
    if fixed is not None and lower and max(lower) < Version(fixed):
        yield f"{requirement} allows versions below {fixed}, which fixed a vulnerability"
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return  # of an extra that is not installed
    if not requirement.specifier.contains(installed, prereleases=True):
        yield f"{requirement} is installed in version {installed}"


def main() -> int:
    """Print the findings; return the exit code."""
    found = [line for requirement in requirements() for line in findings(requirement)]
    print("\n".join(found) or "every dependency has a lower bound that the installed version meets")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
