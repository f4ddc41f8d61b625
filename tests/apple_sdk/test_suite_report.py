import pytest

from openafm.apple_sdk.suite import SuiteError, _prepare
from openafm.apple_sdk.suite_report import SuiteReport

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="one" file="tests/test_a.py"/>
<testcase classname="tests.test_a" name="two" file="tests/test_a.py"><failure message="assert 1 == 2&#10;more"/></testcase>
<testcase classname="tests.test_b" name="three" file="tests/test_b.py"><skipped message="no reason"/></testcase>
<testcase classname="" name="tests.test_c"><error message="cannot import"/></testcase>
</testsuite></testsuites>"""


def test_the_report_has_reasons_and_counts(tmp_path, capsys):
    (tmp_path / "results.xml").write_text(JUNIT)
    SuiteReport.read(tmp_path / "results.xml").print("apple-sdk")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "apple-sdk: 1 passed, 2 failed, 1 skipped"
    assert "tests/test_a.py: 1 failed, 1 passed" in lines
    assert "failed: tests/test_a.py::two: assert 1 == 2" in lines
    assert "skipped: tests/test_b.py::three: no reason" in lines


def test_files_without_their_helpers_are_not_run(tmp_path):
    (tmp_path / "test_a.py").write_text("import json\nfrom tester_things.all import thing\n")
    (tmp_path / "test_b.py").write_text("import pytest\n")
    assert list(_prepare(tmp_path)) == ["test_a.py"]
    assert "def session" in (tmp_path / "conftest.py").read_text()


def test_a_complete_suite_is_unchanged(tmp_path):
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "test_a.py").write_text("import tester_things\n")
    assert _prepare(tmp_path) == {}
    assert (tmp_path / "conftest.py").read_text() == ""


def test_no_tests_is_an_error(tmp_path):
    with pytest.raises(SuiteError, match="holds no tests"):
        _prepare(tmp_path / "tests")
