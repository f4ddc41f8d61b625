"""Results of a run of the suite, read from pytest's JUnit file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Hold one result: `outcome` is passed, failed or skipped; `reason` is empty if it passed."""

    file: str
    name: str
    outcome: str
    reason: str = ""

    __test__ = False  # pytest must not collect it as a test class


@dataclass(frozen=True, kw_only=True)
class SuiteReport:
    """Hold all results of a run."""

    results: tuple[TestResult, ...]

    @classmethod
    def read(cls, path: Path) -> SuiteReport:
        """Read a JUnit file of pytest, family xunit1."""
        return cls(results=tuple(_result(case) for case in ElementTree.parse(path).iter("testcase")))

    def counts(self) -> Counter[str]:
        """Return the number of tests by outcome."""
        return Counter(result.outcome for result in self.results)

    def print(self, title: str) -> None:
        """Print a line per file, the reasons of tests that did not pass, and the counts as the last line."""
        print()
        for file in sorted({result.file for result in self.results}):
            here = Counter(result.outcome for result in self.results if result.file == file)
            print(f"{file}: {', '.join(f'{number} {outcome}' for outcome, number in sorted(here.items()))}")
        for result in self.results:
            if result.outcome != "passed":
                print(f"{result.outcome}: {result.file}::{result.name}: {result.reason}")
        counts = self.counts()
        print(f"{title}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")


def _result(case: ElementTree.Element) -> TestResult:
    file, name = case.get("file") or case.get("classname") or "", case.get("name") or ""
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            lines = (found.get("message") or found.text or "").strip().splitlines() or [""]
            return TestResult(file=file, name=name, outcome=outcome, reason=lines[0][:300])
    return TestResult(file=file, name=name, outcome="passed")
